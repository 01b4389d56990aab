"""What the rows of a result say: the fastest settings, where speculation pays, limits, gates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from peagle.bench.result import BenchResult, BenchRow, BenchSetting
from peagle.errors import Refused
from peagle.speed.acceptance import NO_DRAFT_ACCEPTANCE
from peagle.speed.decision import crossover_text, speculation_crossovers
from peagle.speed.models import Performance
from peagle.speed.slo import Slo
from peagle.speed.verdict import Setting, VerdictCrossover
from peagle.text import format_usd


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


def settings(rows: Iterable[BenchRow]) -> list[BenchSetting]:
    """The settings of the rows: without speculation first, then by drafter and K."""

    def order(setting: BenchSetting) -> tuple[str, int, tuple[float, ...]]:
        return setting.drafter or "", setting.k, setting.imposed_rates

    return sorted(dict.fromkeys(row.setting for row in rows), key=order)


def meets(row: BenchRow, slo: Slo) -> bool:
    """Whether the row's mean times are within the objective; a time that was not measured is not,
    if it is limited."""
    excess = slo.excess(row.ttft.mean if row.ttft else None, row.itl.mean if row.itl else None)
    return excess is not None and excess <= 1


def winners(rows: Iterable[BenchRow], slo: Slo | None = None) -> list[Winner]:
    """The fastest setting at each load of one workload, ascending; with ``slo`` only of the
    settings that meet them, so that a load may be missing."""
    by_load: dict[int, list[BenchRow]] = {}
    for row in usable(rows):
        by_load.setdefault(row.load.concurrency, []).append(row)
    best = []
    for _, at_load in sorted(by_load.items()):
        alone = next((row for row in at_load if not row.setting.k), None)
        allowed = [row for row in at_load if slo is None or meets(row, slo)]
        ranked = sorted(allowed, key=lambda row: -row.tokens_per_second.value)
        if ranked:
            best.append(Winner(ranked[0], ranked[1] if ranked[1:] else None, alone))
    return best


def crossovers(
    rows: Iterable[BenchRow], usd_per_hour: float | None = None
) -> tuple[VerdictCrossover, ...]:
    """Where speculation stops or starts to pay for one workload, as a verdict on these rows as
    evidence says: of their fastest repetitions."""
    loads: dict[int, dict[Setting, Performance]] = {}
    complete = [row for row in rows if row.is_complete and row.setting.is_known]
    for row in sorted(complete, key=lambda row: row.fastest.value):
        drafter, k, speed = row.setting.drafter, row.setting.k, row.fastest
        setting = Setting(drafter=(drafter or row.setting.text) if k else None, k=k)
        loads.setdefault(row.load.concurrency, {})[setting] = Performance(
            "measured", NO_DRAFT_ACCEPTANCE, "", speed.value, speed.low, speed.high
        )
    return speculation_crossovers(loads, usd_per_hour)


def fastest_text(rows: Sequence[BenchRow]) -> str:
    """Which setting is fastest at which loads of one workload, in one sentence with its gain."""
    best = winners(rows)
    if not best:
        return "Nothing was measured."
    parts = []
    for setting, group in groupby(best, key=lambda winner: winner.best.setting):
        members = list(group)
        gains = [winner.gain for winner in members if winner.gain is not None and setting.k]
        low, high = (f"{limit(gains):.2f}" if gains else "" for limit in (min, max))
        notes = [f"{low if low == high else f'{low} to {high}'} times the speed"] if gains else []
        notes += [] if any(winner.clear for winner in members) else ["intervals overlap"]
        first, last = members[0].load, members[-1].load
        loads = f"{first:,} to {last:,}" if first != last else f"{last:,}"
        text = f"{setting.text} at {loads} request{'s' if last > 1 else ''}"
        parts.append(f"{text} ({', '.join(notes)})" if notes else text)
    against = ", against no speculation" if any("times" in part for part in parts) else ""
    return f"Fastest{against}: {', '.join(parts)}."


def summary_of(rows: Sequence[BenchRow], usd_per_hour: float | None = None) -> str:
    """The fastest settings of one workload, and each crossover of a verdict on the rows as
    evidence."""
    changes = (crossover_text(crossover) for crossover in crossovers(rows, usd_per_hour))
    by_fastest = (f"By the fastest repetitions, {text[0].lower()}{text[1:]}" for text in changes)
    return " ".join((fastest_text(rows), *by_fastest))


def summaries(result: BenchResult, slo: Slo | None = None) -> list[str]:
    """The summary of each workload, with its name if there are several."""
    workloads = result.by_workload()
    lines = []
    for workload, rows in workloads.items():
        text = summary_of(rows, result.usd_per_hour)
        text += f" {slo_summary(rows, slo)}" if slo else ""
        lines.append(f"{workload.name}: {text}" if len(workloads) > 1 else text)
    return lines


def slo_summary(rows: Sequence[BenchRow], slo: Slo) -> str:
    """Which setting meets the objective at the highest speed, as one sentence."""
    allowed = winners(rows, slo)
    if not allowed:
        return f"No setting meets {slo.text} (mean times in seconds)."
    best = max(allowed, key=lambda winner: winner.best.tokens_per_second.value).best
    return (
        f"Within {slo.text} (mean times in seconds): {best.setting.text} serves up to "
        f"{best.load.concurrency:,} concurrent requests at "
        f"{best.tokens_per_second.value:,.0f} tokens/s."
    )


@dataclass(frozen=True)
class BenchGates:
    """What a measurement must reach, so that a pipeline goes on. Limits of every load: mean times,
    output tokens per second of the server, USD per million output tokens, tokens per verification
    step. ``None``: no limit."""

    slo: Slo | None = None
    min_tokens_per_second: float | None = None
    max_usd_per_million_tokens: float | None = None
    min_acceptance_length: float | None = None


def missed_gates(result: BenchResult, gates: BenchGates) -> tuple[str, ...]:
    """What each load misses, such as ``8 at a time: ITL 0.031 s, at most 0.02 s``. A limit on what
    was not measured is missed."""
    return tuple(
        f"{row.load.concurrency} at a time: {miss}"
        for row in result.rows
        for miss in _missed(row, gates)
    )


def require_gates(result: BenchResult, gates: BenchGates) -> None:
    """Raise Refused if a load misses a gate."""
    missed = missed_gates(result, gates)
    if missed:
        more = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        raise Refused(
            f"a gate is missed at {missed[0]}{more}",
            "change the plan, or the gates",
            code="gate-missed",
        )


def _missed(row: BenchRow, gates: BenchGates) -> Iterator[str]:
    slo = gates.slo or Slo()
    for label, times, most in (("TTFT", row.ttft, slo.ttft), ("ITL", row.itl, slo.itl)):
        if most is not None and (times is None or times.mean > most):
            shown = "unknown" if times is None else f"{times.mean:.3f} s"
            yield f"{label} {shown}, at most {most:g} s"
    speed, least = row.tokens_per_second.value, gates.min_tokens_per_second
    if least is not None and speed < least:
        yield f"{speed:,.0f} tokens/s, at least {least:,.0f}"
    cost, limit = row.usd_per_million_tokens, gates.max_usd_per_million_tokens
    if limit is not None and (cost is None or cost > limit):
        shown = "an unknown price" if cost is None else format_usd(cost)
        yield f"{shown} per million tokens, at most {format_usd(limit)}"
    length, floor = row.acceptance.length if row.acceptance else None, gates.min_acceptance_length
    if floor is not None and (length is None or length < floor):
        shown = "unknown" if length is None else f"{length:.2f}"
        yield f"acceptance length {shown}, at least {floor:g}"
