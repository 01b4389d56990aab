"""The settings that a verdict compares, and what would change it: another acceptance, missing
evidence, other versions of vLLM."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from peagle.case import CaseOptions, build_case
from peagle.catalog.find import find_drafter
from peagle.catalog.schema import Drafter, Speed, SpeedRun
from peagle.catalog.tables import Instance, MethodSupport, support_of
from peagle.checks import check
from peagle.findings import Finding, errors
from peagle.planning.engines import EngineFit, Load
from peagle.planning.speculation import likely_acceptance
from peagle.speed.decision import ESTIMATE_MUST_WIN_BY, Question
from peagle.speed.models import Acceptance, Performance, Workload, is_on
from peagle.speed.verdict import (
    NO_SPECULATION,
    LoadVerdict,
    Setting,
    SettingSpeed,
    VerdictChange,
    WorkloadVerdict,
)
from peagle.vllm import versions


class ComparedSettings:
    """A target on ``gpus`` GPUs of ``instance``, or as many as ``by_load`` has for a size of
    requests and a load: with each drafter and K, and alone.

    The concurrency of ``load`` is the largest one, which one engine serves. ``refused`` says by
    drafter why it cannot run. Fits and speeds are those of plans.
    """

    def __init__(
        self,
        load: Load,
        instance: Instance,
        gpus: int,
        by_load: Mapping[tuple[Workload, int], int],
    ) -> None:
        self.load, self.instance, self.gpus = load, instance, gpus
        self._by_load = by_load
        self.refused: dict[str, str] = {}

    def settings(self, drafters: Iterable[Drafter]) -> tuple[Setting, ...]:
        """The target alone, and every drafter with each K that runs and fits."""
        settings = [NO_SPECULATION]
        for drafter in drafters:
            if reason := self.refusal(drafter):
                self.refused[drafter.name] = reason
                continue
            drafting = (Setting(drafter=drafter.name, k=k) for k in self.load.compared_ks(drafter))
            size = self.load.workload
            fitting = [
                setting for setting in drafting if self._engine(setting, size, 1)[1].fit.fits
            ]
            if not fitting:
                self.refused[drafter.name] = "does not fit in addition to the target"
            settings += fitting
        return tuple(settings)

    def performance(
        self, setting: Setting, workload: Workload, requests: float, assumed: bool = False
    ) -> Performance:
        """The speed of one engine, measured or estimated; if ``assumed``, with a likely acceptance
        where none is measured. Unknown where it does not fit, or does not draft for requests
        of this size."""
        drafter = self._drafter(setting)
        load, engine = self._engine(setting, workload, requests)
        tokens, most = workload.tokens, drafter.max_positions if drafter else None
        longer = drafter.long_context if drafter else None
        lacking = None if engine.fit.fits else "it does not fit"
        if drafter and most is not None and tokens > most:
            lacking = f"{drafter.name} drafts nothing in requests above {most:,} tokens"
        elif longer is not None and tokens >= longer.request_tokens:
            lacking = f"{longer.drafter} is the head for requests of {tokens:,} tokens"
        if lacking:
            return Performance("unknown", Acceptance(1.0, "unknown", lacking), lacking)
        acceptance = None
        if assumed:
            acceptance = likely_acceptance(load.acceptance(drafter, setting.k), setting.k)
        return load.performance(engine, drafter, setting.k, requests, assumed=acceptance)

    def assumed(self, setting: Setting, workload: Workload, requests: float) -> Performance:
        """The speed if the drafter has a likely acceptance."""
        return self.performance(setting, workload, requests, assumed=True)

    def holds_load(self, setting: Setting, workload: Workload, requests: float) -> bool:
        """Whether the KV cache of one engine is large enough for the load, as a plan requires."""
        return requests <= self._engine(setting, workload, requests)[1].most_requests

    def acceptance(self, setting: Setting) -> Acceptance:
        """What is known of the setting's acceptance on these or other GPUs."""
        return self.load.acceptance(self._drafter(setting), setting.k)

    def gpus_at(self, workload: Workload, requests: int) -> int:
        """The GPUs of the engine for this load."""
        return self._by_load.get((workload, requests), self.gpus)

    def refusal(self, drafter: Drafter | None) -> str | None:
        """The first error of a check of this drafter, or of the target alone, with this version on
        these GPUs."""
        load = self.load
        options = CaseOptions(
            k=drafter.k_recommended if drafter else None,
            max_model_len=load.max_model_len,
            vllm=load.vllm,
            concurrency=load.concurrency,
            instance_type=self.instance.type,
            tensor_parallel_size=self.gpus,
        )
        findings = errors(check(build_case(load.catalog, load.target, drafter, options)))
        return findings[0].message if findings else None

    def _drafter(self, setting: Setting) -> Drafter | None:
        name = setting.drafter
        return None if name is None else find_drafter(self.load.target, name)

    def _engine(
        self, setting: Setting, workload: Workload, requests: float
    ) -> tuple[Load, EngineFit]:
        """The load of an engine that is planned for it, and its memory."""
        concurrency = min(math.ceil(requests), self.load.concurrency)
        load = replace(self.load, workload=workload, concurrency=concurrency)
        gpus = self.gpus_at(workload, concurrency)
        return load, load.engine(self.instance, gpus, self._drafter(setting), setting.k)


def changes_of(
    compared: ComparedSettings,
    question: Question,
    decided: Sequence[WorkloadVerdict],
    of_price: Sequence[Finding] = (),
) -> Iterator[VerdictChange]:
    """Everything known that would change it, the acceptance of the verdict's own settings first;
    ``of_price``: findings about the instance's price."""
    for size in decided:
        yield from _acceptance(size)
    yield from _evidence(compared, question, decided)
    yield from _caveats(compared, decided)
    for finding in of_price:
        yield VerdictChange(kind="evidence", text=finding.message)
    yield from _versions(compared, question)


def _acceptance(size: WorkloadVerdict) -> Iterator[VerdictChange]:
    """The load at which speculation is nearest to losing, and the one at which it is nearest to
    winning."""
    wins = [(load, speed) for load in size.loads if load.best and (speed := load.speed(load.best))]
    paying = [(load.concurrency, speed) for load, speed in wins if speed.setting.k]
    tight = max(paying, key=lambda pair: _share(pair[1]), default=None)
    if tight is not None and tight[1].break_even_acceptance_length is not None:
        yield _at_length(size, *tight, "pays")
    losing = [
        (load.concurrency, speed)
        for load, best in wins
        if best.setting == NO_SPECULATION and (speed := _nearest_to_paying(load))
    ]
    near = min(losing, key=lambda pair: _share(pair[1]), default=None)
    if near is not None and _share(near[1]) > 1:
        yield _at_length(size, *near, "would pay")


def _at_length(size: WorkloadVerdict, load: float, speed: SettingSpeed, pays: str) -> VerdictChange:
    origins = {"measured": "measured on text", "imposed": "imposed in the measurement"}
    origin = origins.get(speed.acceptance_basis, speed.acceptance_basis)
    text = (
        f"{size.name}, {load:,g} at a time: {speed.setting.text} {pays} above "
        f"{speed.break_even_acceptance_length:.2f} tokens per step; {speed.acceptance_length:.2f} "
        f"is {origin}"
    )
    return VerdictChange(kind="acceptance", text=text)


def _nearest_to_paying(load: LoadVerdict) -> SettingSpeed | None:
    """The drafting setting that needs the least more acceptance to be as fast as the target."""
    speeds = [
        speed
        for speed in load.speeds
        if speed.tokens_per_second is not None and speed.break_even_acceptance_length is not None
    ]
    return min(speeds, key=_share, default=None)


def _share(speed: SettingSpeed) -> float:
    return (speed.break_even_acceptance_length or 1.0) / speed.acceptance_length


def _evidence(
    compared: ComparedSettings, question: Question, decided: Sequence[WorkloadVerdict]
) -> Iterator[VerdictChange]:
    """Winners that are estimated, and drafters that could not be compared."""
    estimated = []
    for size in decided:
        wins = [(load, load.speed(load.best)) for load in size.loads if load.best]
        guessed = [load.concurrency for load, speed in wins if speed and speed.basis == "estimated"]
        if guessed:
            loads = "all loads" if len(guessed) == len(wins) else f"{_listed(guessed)} at a time"
            estimated.append(f"{size.name}, {loads}")
    if estimated:
        yield VerdictChange(
            kind="evidence", text=f"estimated, not measured: {'; '.join(estimated)}"
        )
    for size in decided:
        yield from _faster_estimates(size)
    unknown = {
        setting.drafter: basis.source
        for setting in question.settings
        if setting.drafter and (basis := compared.acceptance(setting)).basis == "unknown"
    }
    if unknown:
        text = f"not compared, because the acceptance is unknown: {_listed(unknown)}"
        yield VerdictChange(kind="evidence", text=text)
    for size in decided:
        reasons = {
            speed.source
            for load in size.loads
            for speed in load.speeds
            if speed.basis == "unknown" and speed.setting.drafter not in unknown
        }
        for reason in sorted(reasons):
            yield VerdictChange(kind="evidence", text=f"{size.name}: {reason}")
    for reason in dict.fromkeys(compared.refused.values()):
        names = _listed([name for name, why in compared.refused.items() if why == reason])
        yield VerdictChange(kind="evidence", text=f"not compared: {names}; {reason}")


def _caveats(
    compared: ComparedSettings, decided: Sequence[WorkloadVerdict]
) -> Iterator[VerdictChange]:
    """What the measurements that decide here do not show."""
    sources = [
        speed.source
        for size in decided
        for load in size.loads
        for speed in load.speeds
        if speed.basis == "measured"
    ]
    used = (run for run in compared.load.runs if any(run.file in source for source in sources))
    for caveat in dict.fromkeys(run.caveat for run in used if run.caveat):
        yield VerdictChange(kind="evidence", text=f"measured here: {caveat}")


def _faster_estimates(size: WorkloadVerdict) -> Iterator[VerdictChange]:
    """Settings that the model finds faster than the best measured one."""
    faster: dict[Setting, list[tuple[float, float]]] = {}
    for load in size.loads:
        best = load.speed(load.best)
        if best is None or best.basis != "measured" or not best.tokens_per_second:
            continue
        for speed in load.speeds:
            gain = (speed.tokens_per_second or 0) / best.tokens_per_second - 1
            if speed.basis == "estimated" and gain > ESTIMATE_MUST_WIN_BY:
                faster.setdefault(speed.setting, []).append((load.concurrency, gain))
    if faster:
        setting = max(faster, key=lambda setting: max(gain for _, gain in faster[setting]))
        gains = faster[setting]
        most = max(gain for _, gain in gains)
        loads = _listed([load for load, _ in gains])
        yield VerdictChange(
            kind="evidence",
            text=f"{size.name}, {loads} at a time: {setting.text} is estimated to be up to "
            f"{most:.0%} faster; a measurement would decide",
        )


_MOST_LISTED = 9


def _listed(values: Collection[object]) -> str:
    texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if len(texts) > _MOST_LISTED:
        texts = [*texts[: _MOST_LISTED - 1], f"{len(texts) - _MOST_LISTED + 1} more"]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _versions(compared: ComparedSettings, question: Question) -> Iterator[VerdictChange]:
    """The first newer version of the catalogue that adapts the drafted length, and what was
    measured with other versions on these GPUs."""
    load, table = compared.load, compared.load.catalog.runtimes
    newer = [entry.vllm for entry in table.runtimes if versions.compare(entry.vllm, load.vllm) > 0]
    drafters = [drafter for drafter in load.target.drafters if drafter.public]

    def adapts(drafter: Drafter, vllm: str) -> MethodSupport | None:
        support = support_of(table, drafter.method, drafter.parallel_drafting, vllm)
        return support if support and support.adaptive else None

    for vllm in sorted(newer, key=versions.parse):
        gained = {
            drafter.name: support
            for drafter in drafters
            if (support := adapts(drafter, vllm)) and not adapts(drafter, load.vllm)
        }
        if not gained:
            continue
        without = [drafter.name for drafter in drafters if drafter.parallel_drafting]
        text = f"vLLM {vllm} can adapt the drafted length of {_listed(gained)} to the load"
        text += f", not that of {_listed(without)}" if without else ""
        notes = dict.fromkeys(support.note for support in gained.values() if support.note)
        yield VerdictChange(kind="version", text="; ".join([text, *notes]))
        break
    for run in compared.load.runs:
        here = is_on(run, compared.instance.gpu, compared.gpus)
        if here and versions.compare(run.vllm, load.vllm) != 0:
            yield _measured_with(run, compared, question)


def _measured_with(run: SpeedRun, compared: ComparedSettings, question: Question) -> VerdictChange:
    """What is fastest in a run of another version, compared with the verdict's version."""
    best: dict[tuple[int, int | None, int | None], Speed] = {}
    for row in run.speeds:
        at = (row.concurrency, row.prompt_tokens, row.output_tokens)
        if at not in best or row.output_tokens_per_second > best[at].output_tokens_per_second:
            best[at] = row
    wins = Counter((row.drafter, row.k) for row in best.values())
    (drafter, k), count = wins.most_common(1)[0]
    setting = Setting(drafter=drafter, k=k)
    ratios = []
    for (load, prompt, answer), row in best.items():
        if (row.drafter, row.k) != (drafter, k) or not prompt or not answer:
            continue
        if setting in question.settings:
            here = compared.performance(setting, Workload(prompt, answer), load).tokens_per_second
            ratios += [row.output_tokens_per_second / here] if here else []
    text = f"measured with vLLM {run.vllm}: {setting.text} is fastest in {count} of {len(best)}"
    if ratios:
        text += f", with {median(ratios):.2f} times the tokens/s of vLLM {compared.load.vllm}"
    return VerdictChange(kind="version", text=f"{text} ({run.file})")
