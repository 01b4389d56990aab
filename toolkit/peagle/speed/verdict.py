"""The verdict on speculation: its data, and how it is made from the speeds of all settings,
measured and estimated alike.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from peagle.catalog.tables import InstanceType, NotNegative, Positive, Version
from peagle.frozen import Frozen
from peagle.speed.acceptance import AcceptanceBasis, Basis, Performance
from peagle.speed.estimate import break_even_length
from peagle.speed.ranking import NO_SPECULATION, Line, Setting, Speeds, rank_settings, speed_or_zero
from peagle.text import usd_per_million
from peagle.workload import Workload

VERDICT_FORMAT = 1
"""The value of ``Verdict.format``, incremented when earlier files can no longer be read."""

Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
FARTHEST = 2.0
"""A verdict answers for loads, prompts and outputs that differ by at most this factor from its own:
beyond it another setting is often the fastest."""


class SettingSpeed(Frozen):
    """One setting at one load; the numbers are those of ``Performance``. ``regret_percent`` is what
    it loses against the fastest setting there; ``None`` where unknown or overruled by a
    measurement. ``break_even_acceptance_length`` is the mean number of tokens per step above which
    it is faster than the target alone; ``None`` where unknown, or where K accepted drafts do not
    suffice."""

    setting: Setting
    basis: Basis
    tokens_per_second: Amount | None
    low: Amount | None
    high: Amount | None
    ttft_seconds: Amount | None
    itl_seconds: Amount | None
    usd_per_million_tokens: Amount | None
    acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    acceptance_basis: AcceptanceBasis
    break_even_acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None
    regret_percent: Percent | None
    source: Line
    extrapolated: bool = False


class LoadVerdict(Frozen):
    """The settings at one load. ``best`` is the simplest of those that tie with the fastest,
    ``ties`` are the others; ``None`` where no speed is known. ``tensor_parallel_size`` is that of
    a plan for this load, ``None`` where it is the verdict's."""

    concurrency: Annotated[int, Field(ge=1, le=2**31)]
    tensor_parallel_size: Positive | None = None
    best: Setting | None
    ties: tuple[Setting, ...]
    speeds: tuple[SettingSpeed, ...]

    def speed(self, setting: Setting | None) -> SettingSpeed | None:
        """That setting here; ``None`` if it was not compared."""
        return next((speed for speed in self.speeds if speed.setting == setting), None)


class VerdictCrossover(Frozen):
    """The load at which speculation, with its best setting, ``stops`` or ``starts`` to pay."""

    direction: Literal["stops", "starts"]
    requests: Annotated[float, Field(ge=1, le=2**31, allow_inf_nan=False)]
    basis: Basis


class WorkloadVerdict(Frozen):
    """The verdict for requests of one size. ``robust`` is the setting to use if the load is not
    known: the one with the smallest worst-case loss over these loads (minimax regret), which is
    ``robust_regret_percent``."""

    name: Line
    prompt_tokens: Positive
    cached_prompt_tokens: NotNegative = 0
    shared_prompt_tokens: NotNegative = 0
    output_tokens: Positive
    loads: Annotated[tuple[LoadVerdict, ...], Field(min_length=1)]
    crossovers: tuple[VerdictCrossover, ...]
    robust: Setting | None
    robust_regret_percent: Percent | None

    @property
    def workload(self) -> Workload:
        """The size of its requests."""
        cached, shared = self.cached_prompt_tokens, self.shared_prompt_tokens
        return Workload(self.prompt_tokens, self.output_tokens, cached, shared)


class Verdict(Frozen):
    """The verdict on a target on one kind of GPU; ``peagle.render.plan_file`` reads and writes
    it. Speeds are of one engine, and costs at its share of the GPUs; ``usd_per_hour`` is the price
    of one whole instance. ``changes`` say what would change the verdict."""

    format: Literal[1] = 1
    target: Line
    gpu: Line
    tensor_parallel_size: Positive
    vllm: Version
    max_model_len: Positive | None = None
    instance_type: InstanceType
    gpu_count: Positive
    region: Line
    usd_per_hour: Amount | None
    price_date: Line | None
    workloads: Annotated[tuple[WorkloadVerdict, ...], Field(min_length=1)]
    changes: tuple[Line, ...]

    def __repr__(self) -> str:
        sizes = f"{len(self.workloads)} sizes of requests"
        loads = ", ".join(str(load.concurrency) for load in self.workloads[0].loads)
        return f"<Verdict {self.target} on {self.gpu}: {sizes}, {loads} at a time>"

    __str__ = __repr__

    def at(self, workload: Workload | None, load: float) -> tuple[WorkloadVerdict, LoadVerdict]:
        """The verdict for the nearest size of requests (``None``: the first) and, of it, for the
        nearest load; both nearest by ratio."""
        planned = self.workloads[0].workload if workload is None else workload

        def distance(verdict: WorkloadVerdict) -> float:
            size = verdict.workload
            ratios = (
                size.prompt_tokens / planned.prompt_tokens,
                size.new_prompt_tokens / planned.new_prompt_tokens,
                size.output_tokens / planned.output_tokens,
            )
            return sum(abs(math.log(ratio)) for ratio in ratios)

        chosen = min(self.workloads, key=distance)
        loads = chosen.loads
        return chosen, min(loads, key=lambda at: abs(math.log(at.concurrency / max(load, 1))))


def is_covered(size: WorkloadVerdict, entry: LoadVerdict, planned: Workload, load: float) -> bool:
    """Whether the verdict's ``entry`` for ``size`` answers for ``load`` such requests."""
    ratios = (
        load / entry.concurrency,
        planned.prompt_tokens / size.prompt_tokens,
        planned.new_prompt_tokens / size.workload.new_prompt_tokens,
        planned.output_tokens / size.output_tokens,
    )
    return all(1 / FARTHEST <= ratio <= FARTHEST for ratio in ratios)


class SettingResult(NamedTuple):
    """The performance of one engine with a setting at a load, and whether its KV cache is large
    enough for it, or was measured to serve it. ``assumed`` is the performance with an acceptance
    that is assumed where none is known; only its break-even length is used."""

    performance: Performance
    holds_load: bool = True
    assumed: Performance | None = None


def decide_workload(
    name: str,
    workload: Workload,
    compared: Mapping[int, Mapping[Setting, SettingResult]],
    usd_per_hour: Mapping[int, float | None],
    default_drafter: str | None,
) -> WorkloadVerdict:
    """The verdict for requests of this size, of what is ``compared`` at each load in ascending
    order, at this price of an engine. It has the settings that matter: the target alone, all that
    win or tie somewhere, the robust one, those with the fastest speed or estimate somewhere, and
    each drafter's own best. Of tied settings, those of ``default_drafter`` are simpler. Where some
    settings hold a load, the others are not selected."""
    loads = [
        _decide_load(workload, load, settings, usd_per_hour[load], default_drafter)
        for load, settings in compared.items()
    ]
    settings = [*dict.fromkeys(setting for at_load in compared.values() for setting in at_load)]
    # At how many loads a setting does not count, and its greatest loss elsewhere in percent.
    regrets: dict[Setting, tuple[int, float]] = {}
    decided = [load for load in loads if load.best]
    for setting in settings:
        rated = [speed for load in decided if (speed := load.speed(setting))]
        losses = [s.regret_percent for s in rated if s.regret_percent is not None]
        regrets[setting] = len(decided) - len(losses), max(losses, default=0.0)
    everywhere = [s for s in settings if decided and not regrets[s][0]]
    robust = min(everywhere, key=lambda setting: regrets[setting][1], default=None)
    kept = {NO_SPECULATION} | ({robust} if robust else set())
    for load in decided:
        kept |= {setting for setting in (load.best, *load.ties) if setting}
        kept.add(max(load.speeds, key=speed_or_zero).setting)
    for drafter in {setting.drafter for setting in settings}:
        of_drafter = (setting for setting in settings if setting.drafter == drafter)
        kept.add(min(of_drafter, key=lambda setting: regrets[setting]))
    by_load = {  # of the settings whose KV cache holds the load
        load.concurrency: {
            speed.setting: speed
            for speed in load.speeds
            if compared[load.concurrency][speed.setting].holds_load or not speed.setting.k
        }
        for load in loads
    }
    return WorkloadVerdict(
        name=name,
        prompt_tokens=workload.prompt_tokens,
        cached_prompt_tokens=workload.cached_prompt_tokens,
        shared_prompt_tokens=workload.shared_prompt_tokens,
        output_tokens=workload.output_tokens,
        loads=tuple(
            load.model_copy(update={"speeds": tuple(s for s in load.speeds if s.setting in kept)})
            for load in loads
        ),
        crossovers=speculation_crossovers(by_load),
        robust=robust,
        robust_regret_percent=regrets[robust][1] if robust else None,
    )


def _decide_load(
    workload: Workload,
    load: int,
    compared: Mapping[Setting, SettingResult],
    usd_per_hour: float | None,
    default_drafter: str | None,
) -> LoadVerdict:
    performances = {setting: each.performance for setting, each in compared.items()}
    holding = {
        setting: speed
        for setting, speed in performances.items()
        if speed.tokens_per_second and compared[setting].holds_load
    }
    ranking = rank_settings(holding or performances, default_drafter)
    alone, speeds = performances.get(NO_SPECULATION), []
    for setting, performance in performances.items():
        tokens, break_even = performance.tokens_per_second, None
        if setting.k and alone is not None:
            drafting = compared[setting].assumed or performance
            break_even = break_even_length(drafting, alone, workload, load)
        regret = None
        if tokens is not None and setting in ranking.counted:
            regret = round(100 * max(0.0, 1 - tokens / ranking.fastest), 2)
        usd = usd_per_million(usd_per_hour, tokens)
        possible = break_even is not None and break_even <= setting.k + 1
        speeds.append(
            SettingSpeed(
                setting=setting,
                basis=performance.basis,
                tokens_per_second=_rounded(tokens),
                low=_rounded(performance.low),
                high=_rounded(performance.high),
                ttft_seconds=_rounded(performance.ttft_seconds),
                itl_seconds=_rounded(performance.itl_seconds),
                usd_per_million_tokens=None if usd is None else round(usd, 4),
                acceptance_length=round(min(performance.acceptance.length, setting.k + 1), 4),
                acceptance_basis=performance.acceptance.basis,
                break_even_acceptance_length=round(break_even or 0, 2) if possible else None,
                regret_percent=regret,
                source=performance.source,
                extrapolated=performance.extrapolated,
            )
        )
    best = ranking.tied[0] if ranking.tied else None
    return LoadVerdict(concurrency=load, best=best, ties=ranking.tied[1:], speeds=tuple(speeds))


def _rounded(value: float | None) -> float | None:
    """The value with six significant digits."""
    return None if value is None else float(f"{value:.6g}")


class _Gain(NamedTuple):
    """Speculation against the target alone at one load: ``ratio`` is how many times as fast the
    best drafting setting is; ``side`` is 1 where it wins, -1 where the target alone does, and 0
    where they tie."""

    load: int
    ratio: float
    measured: bool
    side: int


def speculation_crossovers(loads: Mapping[int, Speeds]) -> tuple[VerdictCrossover, ...]:
    """Where speculation with its best setting stops or starts to pay against the target alone, of
    the speeds by load and setting: in verdicts, and in sweeps. The winner changes sides at the load
    at which the ratio passes 1, interpolated on the logarithm of the load. Settings that tie change
    no side."""
    points = [point for load in sorted(loads) if (point := _gain(load, loads[load]))]
    crossovers = []
    decided = [number for number, point in enumerate(points) if point.side]
    for here, there in pairwise(decided):
        if points[here].side == points[there].side:
            continue
        pairs = pairwise(points[here : there + 1])
        before, after = next(pair for pair in pairs if (pair[0].ratio > 1) != (pair[1].ratio > 1))
        share = (before.ratio - 1) / (before.ratio - after.ratio)
        crossovers.append(
            VerdictCrossover(
                direction="stops" if before.ratio > 1 else "starts",
                requests=round(before.load * (after.load / before.load) ** share, 1),
                basis="measured" if before.measured and after.measured else "estimated",
            )
        )
    return tuple(crossovers)


def _gain(load: int, speeds: Speeds) -> _Gain | None:
    """Speculation against the target alone; ``None`` where the speed of one is unknown."""
    alone = speeds.get(NO_SPECULATION)
    drafting = {setting: speed for setting, speed in speeds.items() if setting.k}
    ranked = rank_settings(drafting).tied
    if alone is None or not alone.tokens_per_second or not ranked:
        return None
    best = max((drafting[setting] for setting in ranked), key=speed_or_zero)
    ratio = speed_or_zero(best) / alone.tokens_per_second
    fastest = rank_settings(speeds).tied
    wins = NO_SPECULATION not in fastest and ratio > 1
    loses = fastest == (NO_SPECULATION,) and ratio < 1
    return _Gain(load, ratio, alone.basis == best.basis == "measured", wins - loses)
