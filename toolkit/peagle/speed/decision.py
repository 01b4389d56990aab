"""Makes the verdict from the speeds of all settings: the winner at each load, and where it changes.

The speed of a setting comes from a function, so measurements and the model are used alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from peagle.speed.estimate import break_even_length
from peagle.speed.models import SAME_SPEED_SHARE, Performance, Workload
from peagle.speed.verdict import (
    NO_SPECULATION,
    LoadVerdict,
    Setting,
    SettingSpeed,
    VerdictCrossover,
    WorkloadVerdict,
)
from peagle.text import format_usd, usd_per_million

PerformanceOf = Callable[[Setting, Workload, float], Performance]
"""The speed of one engine with a setting, for requests of a size, at a load."""

HoldsLoad = Callable[[Setting, Workload, float], bool]
"""Whether the KV cache of an engine with a setting is large enough for a load."""

SAME_ESTIMATE_SHARE = 0.02
"""The same of two estimates, whose shared errors do not change their order. With up to 0.02 no
choice among held-out rows loses more than 5 %, with 0.03 one in 24 does (docs/estimates.md)."""

ESTIMATE_MUST_WIN_BY = 0.1
"""A measured setting yields only to an estimate that is faster by more than this share, about the
error of estimates compared with measurements: the fastest of many estimates is too optimistic."""


@dataclass(frozen=True)
class Question:
    """What is compared: settings (the target alone is one of them), loads in ascending order, the
    speed of each, and the price of the instance. Of tied settings, those of ``default_drafter`` are
    simpler.

    ``assumed`` is the speed of a setting with an acceptance that is assumed where none is known;
    only its break-even length is used. Where some settings hold the load, the others are not
    selected.
    """

    settings: Sequence[Setting]
    loads: Sequence[int]
    usd_per_hour: float | None
    default_drafter: str | None
    performance_of: PerformanceOf
    assumed: PerformanceOf | None = None
    holds_load: HoldsLoad = lambda *_: True


def decide_workload(question: Question, name: str, workload: Workload) -> WorkloadVerdict:
    """The verdict for requests of this size, with the settings that matter (``_contenders``)."""
    loads = [_at_load(question, workload, load) for load in question.loads]
    robust = _robust(question, loads)
    by_load = {load.concurrency: {speed.setting: speed for speed in load.speeds} for load in loads}
    kept = _contenders(loads, robust)
    return WorkloadVerdict(
        name=name,
        prompt_tokens=workload.prompt_tokens,
        cached_prompt_tokens=workload.cached_prompt_tokens,
        shared_prompt_tokens=workload.shared_prompt_tokens,
        output_tokens=workload.output_tokens,
        loads=tuple(_only(load, kept) for load in loads),
        crossovers=speculation_crossovers(by_load, question.usd_per_hour),
        robust=robust,
        robust_regret_percent=_worst_regret(loads, robust) if robust else None,
    )


def _at_load(question: Question, workload: Workload, load: int) -> LoadVerdict:
    performances = {
        setting: question.performance_of(setting, workload, load) for setting in question.settings
    }
    holding = {
        setting: speed
        for setting, speed in performances.items()
        if speed.basis == "measured"
        or (speed.tokens_per_second and question.holds_load(setting, workload, load))
    }
    ranking = rank_settings(holding or performances, question.default_drafter)

    def break_even(setting: Setting, performance: Performance) -> float | None:
        if not setting.k or NO_SPECULATION not in performances:
            return None
        if performance.basis == "unknown" and question.assumed is not None:
            performance = question.assumed(setting, workload, load)
        return break_even_length(performance, performances[NO_SPECULATION], workload, load)

    speeds = tuple(
        _speed(
            setting, performance, break_even(setting, performance), ranking, question.usd_per_hour
        )
        for setting, performance in performances.items()
    )
    best = ranking.tied[0] if ranking.tied else None
    return LoadVerdict(concurrency=load, best=best, ties=ranking.tied[1:], speeds=speeds)


@dataclass(frozen=True)
class Ranking:
    """The settings that cannot be told from the fastest, the simplest first, and its tokens/s.

    ``counted`` are those that may be recommended: neither an estimate of a drafter of which another
    K is measured, nor one above the winner that does not tie with it.
    """

    tied: tuple[Setting, ...]
    fastest: float
    counted: frozenset[Setting] = frozenset()


def rank_settings(
    speeds: Mapping[Setting, Performance | SettingSpeed], default_drafter: str | None = None
) -> Ranking:
    """The best settings of these; none where no speed is known.

    Estimates of a drafter do not count where another K of it is measured. Where something is
    measured, the fastest measured setting wins, unless the estimate of another drafter is clearly
    faster; the target alone may tie with it by an estimate.
    """
    drafted = {setting.drafter for setting, speed in speeds.items() if speed.basis == "measured"}
    eligible = {
        setting: speed
        for setting, speed in speeds.items()
        if speed.tokens_per_second and (speed.basis == "measured" or setting.drafter not in drafted)
    }
    if not eligible:
        return Ranking((), 0.0)
    measured = {setting: speed for setting, speed in eligible.items() if speed.basis == "measured"}
    top = max(eligible.values(), key=_tokens)
    compared = eligible
    if measured:
        best = max(measured.values(), key=_tokens)
        if _tokens(top) <= _tokens(best) * (1 + ESTIMATE_MUST_WIN_BY):
            top = best
            compared = {
                setting: speed
                for setting, speed in eligible.items()
                if setting in measured or setting == NO_SPECULATION
            }
    tied = [setting for setting, speed in compared.items() if _ties(speed, top)]

    def simplicity(setting: Setting) -> tuple[bool, bool, int, str]:
        return bool(setting.k), setting.drafter != default_drafter, setting.k, setting.drafter or ""

    slower = (setting for setting, speed in eligible.items() if _tokens(speed) <= _tokens(top))
    counted = frozenset([*tied, *slower])
    return Ranking(tuple(sorted(tied, key=simplicity)), _tokens(top), counted)


def _tokens(speed: Performance | SettingSpeed) -> float:
    return speed.tokens_per_second or 0.0


def _ties(speed: Performance | SettingSpeed, top: Performance | SettingSpeed) -> bool:
    estimates = speed.basis == top.basis == "estimated"
    share = SAME_ESTIMATE_SHARE if estimates else SAME_SPEED_SHARE
    return _tokens(speed) >= max(_tokens(top) * (1 - share), top.low or 0)


def _speed(
    setting: Setting,
    performance: Performance,
    break_even: float | None,
    ranking: Ranking,
    usd_per_hour: float | None,
) -> SettingSpeed:
    speed = performance.tokens_per_second
    counts = setting in ranking.counted
    regret = max(0.0, 1 - speed / ranking.fastest) if speed is not None and counts else None
    within = break_even if break_even is not None and break_even <= setting.k + 1 else None
    return SettingSpeed(
        setting=setting,
        basis=performance.basis,
        tokens_per_second=_rounded(speed),
        low=_rounded(performance.low),
        high=_rounded(performance.high),
        ttft_seconds=_rounded(performance.ttft_seconds),
        itl_seconds=_rounded(performance.itl_seconds),
        usd_per_million_tokens=_rounded_usd(usd_per_million(usd_per_hour, speed)),
        acceptance_length=round(min(performance.acceptance.length, setting.k + 1), 4),
        acceptance_basis=performance.acceptance.basis,
        break_even_acceptance_length=None if within is None else round(within, 2),
        regret_percent=None if regret is None else round(100 * regret, 2),
        source=performance.source,
        extrapolated=performance.extrapolated,
    )


def _rounded(value: float | None) -> float | None:
    """Six digits; more say nothing."""
    return None if value is None else float(f"{value:.6g}")


def _rounded_usd(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 4)


def _contenders(loads: Sequence[LoadVerdict], robust: Setting | None) -> set[Setting]:
    """The settings to show: the target alone, all that win or tie somewhere, the robust one, those
    with the fastest speed or estimate somewhere, and each drafter's own best."""
    kept = {NO_SPECULATION} | ({robust} if robust else set())
    kept |= {setting for load in loads for setting in (load.best, *load.ties) if setting}
    kept |= {max(load.speeds, key=_tokens).setting for load in loads if load.best}
    settings = dict.fromkeys(speed.setting for load in loads for speed in load.speeds)
    for drafter in dict.fromkeys(setting.drafter for setting in settings):
        drafter_settings = (setting for setting in settings if setting.drafter == drafter)
        kept.add(min(drafter_settings, key=lambda setting: _regrets(loads, setting)))
    return kept


def _only(load: LoadVerdict, kept: set[Setting]) -> LoadVerdict:
    speeds = tuple(speed for speed in load.speeds if speed.setting in kept)
    return load.model_copy(update={"speeds": speeds})


def _regrets(loads: Sequence[LoadVerdict], setting: Setting) -> tuple[int, float]:
    """At how many loads the setting does not count, and its greatest loss elsewhere in percent."""
    speeds = [load.speed(setting) for load in loads if load.best]
    regrets = [
        speed.regret_percent for speed in speeds if speed and speed.regret_percent is not None
    ]
    return len(speeds) - len(regrets), max(regrets, default=0.0)


def _worst_regret(loads: Sequence[LoadVerdict], setting: Setting) -> float | None:
    """The setting's greatest loss at any load in percent; ``None`` where it does not count at one
    (``Ranking.counted``), and where nothing is known."""
    unknown, worst = _regrets(loads, setting)
    return None if unknown or not any(load.best for load in loads) else worst


def _robust(question: Question, loads: Sequence[LoadVerdict]) -> Setting | None:
    worst = [
        (regret, index)
        for index, setting in enumerate(question.settings)
        if (regret := _worst_regret(loads, setting)) is not None
    ]
    return question.settings[min(worst)[1]] if worst else None


def speculation_crossovers(
    loads: Mapping[int, Mapping[Setting, Performance | SettingSpeed]], usd_per_hour: float | None
) -> tuple[VerdictCrossover, ...]:
    """Where speculation with its best setting stops or starts to pay against the target alone, of
    the speeds by load and setting: in verdicts, and in sweeps. Settings that tie change no side.
    """
    points = [point for load in sorted(loads) if (point := _gain(load, loads[load]))]
    price = partial(usd_per_million, usd_per_hour)
    return tuple(crossovers(points, SAME_SPEED_SHARE, price))


def _gain(
    load: float, speeds: Mapping[Setting, Performance | SettingSpeed]
) -> SpeculationGain | None:
    """Speculation against the target alone; ``None`` where the speed of one is unknown."""
    alone = speeds.get(NO_SPECULATION)
    drafting = {setting: speed for setting, speed in speeds.items() if setting.k}
    ranked = rank_settings(drafting).tied
    if alone is None or not alone.tokens_per_second or not ranked:
        return None
    best = max((drafting[setting] for setting in ranked), key=_tokens)
    measured = alone.basis == best.basis == "measured"
    ratio = _tokens(best) / alone.tokens_per_second
    fastest = rank_settings(speeds).tied
    wins = NO_SPECULATION not in fastest and ratio > 1
    loses = fastest == (NO_SPECULATION,) and ratio < 1
    side = 1 if wins else -1 if loses else 0
    return SpeculationGain(load, ratio, alone.tokens_per_second, measured, side)


@dataclass(frozen=True)
class SpeculationGain:
    """Speculation against the target alone at one load: ``ratio`` is how many times as fast the
    best drafting setting is; ``side`` is 1 where it wins, -1 where the target alone does, and 0
    where they tie."""

    load: float
    ratio: float
    alone: float
    measured: bool
    side: int


def crossovers(
    points: Sequence[SpeculationGain], equal: float, price_of: Callable[[float], float | None]
) -> Iterator[VerdictCrossover]:
    """Where the winner changes sides, at the load at which the ratio passes 1: interpolated on the
    logarithm of the load. A tie changes no side.

    ``points`` ascend in load. Speeds within the share ``equal`` of each other are about equally
    fast; ``price_of`` is the price of a million tokens in USD at this many tokens per second.
    """
    first = 0
    decided = [number for number, point in enumerate(points) if point.side]
    for here, there in pairwise(decided):
        if points[here].side == points[there].side:
            continue
        back = (n for n in range(there + 1, len(points)) if points[n].side == points[here].side)
        end = next(back, len(points))
        before = next(n for n in range(here, there) if _passes_one(points[n], points[n + 1]))
        yield _crossover(points[first:end], before - first, equal, price_of)
        first = there


def crossover_text(crossover: VerdictCrossover) -> str:
    """``Speculation stops paying at about 38 requests (32 to 46), at $0.12 per million output
    tokens; measured.``"""
    price = crossover.usd_per_million_tokens
    cost = f", at {format_usd(price)} per million output tokens" if price is not None else ""
    low, high = f"{crossover.low:,.0f}", f"{crossover.high:,.0f}"
    between = f" ({low} to {high})" if low != high else ""
    return (
        f"Speculation {crossover.direction} paying at about {crossover.requests:,.0f} requests"
        f"{between}{cost}; {crossover.basis}."
    )


def _passes_one(before: SpeculationGain, after: SpeculationGain) -> bool:
    return (before.ratio > 1) != (after.ratio > 1)


def _crossover(
    points: Sequence[SpeculationGain],
    number: int,
    equal: float,
    price_of: Callable[[float], float | None],
) -> VerdictCrossover:
    """The crossover between this point and the next; ``points`` have no other one."""
    before, after = points[number], points[number + 1]
    requests = _load_at(before, after, 1.0)
    share = math.log(requests / before.load) / math.log(after.load / before.load)
    alone = before.alone * (after.alone / before.alone) ** share
    ends = _equal_range(points, before, after, equal)
    return VerdictCrossover(
        direction="stops" if before.ratio > 1 else "starts",
        requests=round(requests, 1),
        low=round(min(ends[0], requests), 1),
        high=round(max(ends[1], requests), 1),
        usd_per_million_tokens=price_of(alone),
        basis="measured" if before.measured and after.measured else "estimated",
    )


def _load_at(before: SpeculationGain, after: SpeculationGain, ratio: float) -> float:
    """The load between two points at which the ratio is this one."""
    share = (before.ratio - ratio) / (before.ratio - after.ratio)
    load: float = before.load * (after.load / before.load) ** min(max(share, 0.0), 1.0)
    return load


def _equal_range(
    points: Sequence[SpeculationGain], before: SpeculationGain, after: SpeculationGain, equal: float
) -> tuple[float, float]:
    """The loads around a crossing at which the ratio is within ``equal`` of 1."""
    above, below = (1 + equal, 1 - equal) if before.ratio > 1 else (1 - equal, 1 + equal)
    low, high = before.load, after.load
    left = points[: points.index(after) + 1]
    for point, next_point in reversed(list(pairwise(left))):
        if _outside(point, above):
            low = _load_at(point, next_point, above)
            break
        low = point.load
    for point, next_point in pairwise(points[points.index(before) :]):
        if _outside(next_point, below):
            high = _load_at(point, next_point, below)
            break
        high = next_point.load
    return low, high


def _outside(point: SpeculationGain, limit: float) -> bool:
    return point.ratio >= limit if limit > 1 else point.ratio <= limit
