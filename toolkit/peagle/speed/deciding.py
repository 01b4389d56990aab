"""Makes the verdict from the speeds of all settings: the winner at each load, and where it changes.

The speed of a setting comes from a function, so measurements and the model are used alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from peagle.speed.models import Performance, Workload
from peagle.speed.verdict import (
    ALONE,
    Crossover,
    LoadVerdict,
    Setting,
    SettingSpeed,
    WorkloadVerdict,
)

PerformanceOf = Callable[[Setting, Workload, float], Performance]
"""The speed of one engine with a setting, for requests of a size, at a load."""

TIE = 0.03
"""Settings tie if one is at most this share slower than the fastest, and within its interval."""

ESTIMATE_MUST_WIN_BY = 0.05
"""A measured setting yields only to an estimate that is faster by more than this share."""

_TOKENS_PER_HOUR = 3600 / 1_000_000
"""Millions of tokens per hour, for one token per second."""


@dataclass(frozen=True)
class Question:
    """What is compared: settings (the target alone is one of them), loads in ascending order, and
    the price of the instance. Of tied settings, those of ``default_drafter`` are simpler."""

    settings: Sequence[Setting]
    loads: Sequence[float]
    usd_per_hour: float | None
    default_drafter: str | None = None


def decide_workload(
    question: Question, name: str, workload: Workload, performance_of: PerformanceOf
) -> WorkloadVerdict:
    """The verdict for requests of this size, with the settings that matter (``_contenders``)."""
    loads = [_at_load(question, workload, load, performance_of) for load in question.loads]
    steady = _steady(question, loads)
    kept = _contenders(loads, steady)
    return WorkloadVerdict(
        name=name,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        loads=tuple(_only(load, kept) for load in loads),
        crossovers=tuple(_crossovers(question, loads)),
        steady=steady,
        steady_regret_percent=_worst_regret(loads, steady) if steady else None,
    )


def _at_load(
    question: Question, workload: Workload, load: float, performance_of: PerformanceOf
) -> LoadVerdict:
    found = {one: performance_of(one, workload, load) for one in question.settings}
    fastest = max((p.tokens_per_second or 0 for p in found.values()), default=0)
    speeds = tuple(
        _speed(one, performance, found.get(ALONE), workload, load, fastest, question.usd_per_hour)
        for one, performance in found.items()
    )
    tied = tied_with_fastest(speeds)
    order = sorted(tied, key=lambda one: _simplicity(question, one))
    winners = [one.setting for one in order]
    best = winners[0] if winners else None
    return LoadVerdict(concurrency=load, best=best, ties=tuple(winners[1:]), speeds=speeds)


def tied_with_fastest(speeds: Iterable[SettingSpeed]) -> list[SettingSpeed]:
    """The settings whose speed cannot be told from the fastest one's, which is among them."""
    known = [one for one in speeds if one.tokens_per_second]
    if not known:
        return []
    top = max(known, key=lambda one: one.tokens_per_second or 0)
    return [one for one in known if _ties(one, top)]


def _ties(one: SettingSpeed, top: SettingSpeed) -> bool:
    speed, fastest = one.tokens_per_second or 0, top.tokens_per_second or 0
    measured_against_estimate = one.basis == "measured" and top.basis == "estimated"
    share = ESTIMATE_MUST_WIN_BY if measured_against_estimate else TIE
    return speed >= fastest * (1 - share) and speed >= (top.low or 0)


def _simplicity(question: Question, one: SettingSpeed) -> tuple[bool, bool, bool, int, str]:
    """Sort key, the simplest first: nothing to draft, measured, the default drafter, a small K."""
    setting = one.setting
    return (
        setting.drafter is not None,
        one.basis != "measured",
        setting.drafter != question.default_drafter,
        setting.k,
        setting.drafter or "",
    )


def _speed(
    setting: Setting,
    found: Performance,
    alone: Performance | None,
    workload: Workload,
    load: float,
    fastest: float,
    usd_per_hour: float | None,
) -> SettingSpeed:
    speed = found.tokens_per_second
    length = break_even_length(found, alone, workload, load) if setting.k and alone else None
    within = length if length is not None and length <= setting.k + 1 else None
    return SettingSpeed(
        setting=setting,
        basis=found.basis,
        tokens_per_second=speed,
        low=found.low,
        high=found.high,
        ttft_seconds=found.ttft_seconds,
        itl_seconds=found.itl_seconds,
        usd_per_million_tokens=usd_per_million(usd_per_hour, speed),
        acceptance_length=round(min(found.acceptance.length, setting.k + 1), 4),
        acceptance_basis=found.acceptance.basis,
        break_even_acceptance_length=None if within is None else round(within, 2),
        regret_percent=None if speed is None else round(100 * (1 - speed / fastest), 2),
        source=found.source,
    )


def usd_per_million(usd_per_hour: float | None, tokens_per_second: float | None) -> float | None:
    """The price of a million output tokens in USD, if price and speed are known."""
    if usd_per_hour is None or not tokens_per_second:
        return None
    return round(usd_per_hour / (tokens_per_second * _TOKENS_PER_HOUR), 4)


def break_even_length(
    drafting: Performance, alone: Performance, workload: Workload, load: float
) -> float | None:
    """The acceptance length from which on speculation is as fast as the target alone: at least 1;
    ``None`` if unknown, or if no length suffices.

    A request takes ``load * output tokens / tokens per second``. Of that only the time after the
    first token shrinks with the acceptance length, in proportion to it.
    """
    if not drafting.tokens_per_second or not alone.tokens_per_second:
        return None
    first = drafting.ttft_seconds or 0.0
    taken = load * workload.output_tokens / drafting.tokens_per_second - first
    allowed = load * workload.output_tokens / alone.tokens_per_second - first
    if taken <= 0 or allowed <= 0:
        return None
    return max(1.0, drafting.acceptance.length * taken / allowed)


def _contenders(loads: Sequence[LoadVerdict], steady: Setting | None) -> set[Setting]:
    """The settings to show: the target alone, all that win or tie somewhere, the steady one, and
    each drafter's own best."""
    kept = {ALONE} | ({steady} if steady else set())
    kept |= {one for load in loads for one in (load.best, *load.ties) if one}
    settings = dict.fromkeys(one.setting for load in loads for one in load.speeds)
    for drafter in dict.fromkeys(one.drafter for one in settings):
        own = [one for one in settings if one.drafter == drafter]
        known = [one for one in own if _worst_regret(loads, one) is not None]
        kept.add(
            min(known, key=lambda one: (_worst_regret(loads, one), one.k)) if known else own[0]
        )
    return kept


def _only(load: LoadVerdict, kept: set[Setting]) -> LoadVerdict:
    speeds = tuple(one for one in load.speeds if one.setting in kept)
    return load.model_copy(update={"speeds": speeds})


def _worst_regret(loads: Sequence[LoadVerdict], setting: Setting) -> float | None:
    """The setting's greatest loss at any load in percent; ``None`` where a speed is unknown."""
    found = [load.speed(setting) for load in loads if load.best]
    regrets = [one.regret_percent if one else None for one in found]
    known = [regret for regret in regrets if regret is not None]
    return max(known) if known and len(known) == len(regrets) else None


def _steady(question: Question, loads: Sequence[LoadVerdict]) -> Setting | None:
    worst = [
        (regret, index)
        for index, one in enumerate(question.settings)
        if (regret := _worst_regret(loads, one)) is not None
    ]
    return question.settings[min(worst)[1]] if worst else None


@dataclass(frozen=True)
class _Point:
    """Speculation against the target alone at one load: ``ratio`` is how many times as fast the
    best drafting setting is."""

    load: float
    ratio: float
    alone: float
    measured: bool


def _crossovers(question: Question, loads: Sequence[LoadVerdict]) -> Iterable[Crossover]:
    """Where the ratio passes 1, interpolated on the logarithm of the load."""
    points = [point for load in loads if (point := _point(load))]
    for before, after in pairwise(points):
        if (before.ratio > 1) == (after.ratio > 1):
            continue
        requests = _load_at(before, after, 1.0)
        share = math.log(requests / before.load) / math.log(after.load / before.load)
        alone = before.alone * (after.alone / before.alone) ** share
        ends = _equal_range(points, before, after)
        yield Crossover(
            direction="stops" if before.ratio > 1 else "starts",
            requests=round(requests, 1),
            low=round(min(ends[0], requests), 1),
            high=round(max(ends[1], requests), 1),
            usd_per_million_tokens=usd_per_million(question.usd_per_hour, alone),
            basis="measured" if before.measured and after.measured else "estimated",
        )


def _point(load: LoadVerdict) -> _Point | None:
    alone = load.speed(ALONE)
    drafting = [one for one in load.speeds if one.setting.k and one.tokens_per_second]
    if alone is None or not alone.tokens_per_second or not drafting:
        return None
    best = max(drafting, key=lambda one: one.tokens_per_second or 0)
    measured = alone.basis == best.basis == "measured"
    ratio = (best.tokens_per_second or 0) / alone.tokens_per_second
    return _Point(load.concurrency, ratio, alone.tokens_per_second, measured)


def _load_at(before: _Point, after: _Point, ratio: float) -> float:
    """The load between two points at which the ratio is this one."""
    share = (before.ratio - ratio) / (before.ratio - after.ratio)
    load: float = before.load * (after.load / before.load) ** min(max(share, 0.0), 1.0)
    return load


def _equal_range(points: Sequence[_Point], before: _Point, after: _Point) -> tuple[float, float]:
    """The loads around a crossing at which the ratio is within ``TIE`` of 1."""
    above, below = (1 + TIE, 1 - TIE) if before.ratio > 1 else (1 - TIE, 1 + TIE)
    low, high = before.load, after.load
    left = points[: points.index(after) + 1]
    for one, other in reversed(list(pairwise(left))):
        if _outside(one, above):
            low = _load_at(one, other, above)
            break
        low = one.load
    for one, other in pairwise(points[points.index(before) :]):
        if _outside(other, below):
            high = _load_at(one, other, below)
            break
        high = other.load
    return low, high


def _outside(point: _Point, limit: float) -> bool:
    return point.ratio >= limit if limit > 1 else point.ratio <= limit
