"""Compares the settings of a sweep: the fastest at each load, crossovers, objectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from peagle.bench.models import BenchResult, BenchRow, BenchSetting, BenchWorkload, Times
from peagle.speed.acceptance import NO_DRAFT_ACCEPTANCE
from peagle.speed.crossover import crossover_text
from peagle.speed.decision import speculation_crossovers
from peagle.speed.models import Performance
from peagle.speed.slo import Slo
from peagle.speed.verdict import Setting, VerdictCrossover


def known(times: Times | None) -> bool:
    """Whether the times were measured."""
    return times is not None and times.count > 0


def meets(row: BenchRow, slo: Slo) -> bool:
    """Whether the row's mean times are within the objective; a time that was not measured is not,
    if it is limited."""
    ttft = row.ttft.mean if known(row.ttft) else None
    itl = row.itl.mean if row.itl and known(row.itl) else None
    excess = slo.excess(ttft, itl)
    return excess is not None and excess <= 1


@dataclass(frozen=True)
class Winner:
    """The fastest setting at one load. ``alone`` is the row without speculation, ``second`` the
    next best setting. ``clear``: its interval lies above that of the second."""

    best: BenchRow
    second: BenchRow | None
    alone: BenchRow | None

    @property
    def load(self) -> int:
        return self.best.load.concurrency

    @property
    def clear(self) -> bool:
        other = self.second
        return other is None or self.best.tokens_per_second.low > other.tokens_per_second.high

    @property
    def gain(self) -> float | None:
        """The speed as a multiple of that without speculation; ``None`` if that is not known."""
        if self.alone is None:
            return None
        return self.best.tokens_per_second.value / self.alone.tokens_per_second.value


def usable(rows: Iterable[BenchRow]) -> list[BenchRow]:
    """The rows with a speed: a load that ended at once has none."""
    return [row for row in rows if row.tokens_per_second.value > 0]


def complete(rows: Iterable[BenchRow]) -> list[BenchRow]:
    """The rows with a speed that did not end early and in which no request failed."""
    return [row for row in usable(rows) if not row.incomplete and not row.errors]


def workloads(rows: Iterable[BenchRow]) -> list[BenchWorkload]:
    """The workloads of the rows, each once, in their order."""
    return list(dict.fromkeys(row.load.workload for row in rows))


def settings(rows: Iterable[BenchRow]) -> list[BenchSetting]:
    """The settings of the rows: without speculation first, then by drafter and K."""
    found = dict.fromkeys(row.setting for row in rows)
    return sorted(found, key=lambda one: (one.k > 0, one.drafter or "", one.k, one.imposed_rates))


def winners(rows: Iterable[BenchRow], slo: Slo | None = None) -> list[Winner]:
    """The fastest setting at each load of one workload, ascending; with ``slo`` only of the
    settings that meet them, so that a load may be missing."""
    by_load: dict[int, list[BenchRow]] = {}
    for row in usable(rows):
        by_load.setdefault(row.load.concurrency, []).append(row)
    found = []
    for _, at_load in sorted(by_load.items()):
        alone = next((row for row in at_load if not row.setting.k), None)
        allowed = [row for row in at_load if slo is None or meets(row, slo)]
        ranked = sorted(allowed, key=lambda row: -row.tokens_per_second.value)
        if ranked:
            found.append(Winner(ranked[0], ranked[1] if ranked[1:] else None, alone))
    return found


def crossovers(
    rows: Iterable[BenchRow], usd_per_hour: float | None = None
) -> tuple[VerdictCrossover, ...]:
    """Where speculation stops or starts to pay for one workload, as a verdict on these rows as
    evidence says: of their fastest repetitions."""
    loads: dict[int, dict[Setting, Performance]] = {}
    for row in sorted(complete(rows), key=lambda row: row.fastest.value):
        one, speed = row.setting, row.fastest
        if not one.is_known:
            continue
        setting = Setting(drafter=(one.drafter or one.text) if one.k else None, k=one.k)
        found = Performance("measured", NO_DRAFT_ACCEPTANCE, "", speed.value, speed.low, speed.high)
        loads.setdefault(row.load.concurrency, {})[setting] = found
    return speculation_crossovers(loads, usd_per_hour)


def summary_of(rows: Sequence[BenchRow], usd_per_hour: float | None = None) -> str:
    """Which setting is fastest at which loads of one workload, in one sentence with its gain, and
    one for each crossover."""
    best = winners(rows)
    if not best:
        return "Nothing was measured."
    parts = []
    for setting, group in groupby(best, key=lambda one: one.best.setting):
        ones = list(group)
        gains = [gain for one in ones if (gain := one.gain) is not None] if setting.k else []
        times = f"{_range(gains)} times the speed" if gains else ""
        overlap = "" if any(one.clear for one in ones) else ", intervals overlap"
        text = f"{setting.text} at {loads_text([one.load for one in ones])}"
        more = f"{times}{overlap}".removeprefix(", ")
        parts.append(f"{text} ({more})" if more else text)
    against = ", against no speculation" if any("times" in part for part in parts) else ""
    changes = (crossover_text(one) for one in crossovers(rows, usd_per_hour))
    by_fastest = (f"By the fastest repetitions, {one[0].lower()}{one[1:]}" for one in changes)
    return " ".join((f"Fastest{against}: {', '.join(parts)}.", *by_fastest))


def summaries(result: BenchResult, slo: Slo | None = None) -> list[str]:
    """The summary of each workload, with its name if there are several."""
    lines = []
    every = workloads(result.rows)
    for workload in every:
        rows = [row for row in result.rows if row.load.workload == workload]
        text = summary_of(rows, result.usd_per_hour)
        text += f" {slo_summary(rows, slo)}" if slo else ""
        lines.append(f"{workload.name}: {text}" if every[1:] else text)
    return lines


def slo_summary(rows: Sequence[BenchRow], slo: Slo) -> str:
    """Which setting meets the objective at the highest speed, as one sentence."""
    allowed = winners(rows, slo)
    if not allowed:
        return f"No setting meets {slo.text} (mean times in seconds)."
    best = max(allowed, key=lambda one: one.best.tokens_per_second.value).best
    return (
        f"Within {slo.text} (mean times in seconds): {best.setting.text} serves up to "
        f"{best.load.concurrency:,} concurrent requests at "
        f"{best.tokens_per_second.value:,.0f} tokens/s."
    )


def loads_text(loads: Sequence[int]) -> str:
    """``1 request``, ``8 to 64 requests``."""
    if len(loads) > 1:
        return f"{loads[0]:,} to {loads[-1]:,} requests"
    return f"{loads[0]:,} request{'s' if loads[0] > 1 else ''}"


def _range(gains: Sequence[float]) -> str:
    low, high = f"{min(gains):.2f}", f"{max(gains):.2f}"
    return low if low == high else f"{low} to {high}"
