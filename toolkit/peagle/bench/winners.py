"""What follows from the rows of a result: the fastest settings, crossovers and gates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from peagle.bench.result import BenchResult, BenchRow, BenchSetting
from peagle.errors import Refused
from peagle.speed.acceptance import NO_DRAFT_ACCEPTANCE, Performance
from peagle.speed.ranking import Setting
from peagle.speed.verdict import VerdictCrossover, speculation_crossovers
from peagle.workload import Slo


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


def settings(rows: Iterable[BenchRow]) -> list[BenchSetting]:
    """The settings of the rows: without speculation first, then by drafter and K."""
    distinct = dict.fromkeys(row.setting for row in rows)
    return sorted(distinct, key=lambda setting: (setting.drafter or "", setting.k, setting.text))


def winners(rows: Iterable[BenchRow], slo: Slo | None = None) -> list[Winner]:
    """The fastest setting at each load of one workload, ascending; with ``slo`` only of the
    settings whose mean times are measured and meet it, so that a load may be missing."""

    def meets(row: BenchRow) -> bool:
        if slo is None:
            return True
        excess = slo.excess(row.ttft.mean if row.ttft else None, row.itl.mean if row.itl else None)
        return excess is not None and excess <= 1

    by_load: dict[int, list[BenchRow]] = {}
    for row in rows:
        if row.tokens_per_second.value > 0:  # a load that ended at once has no speed
            by_load.setdefault(row.load.concurrency, []).append(row)
    best = []
    for _, at_load in sorted(by_load.items()):
        alone = next((row for row in at_load if not row.setting.k), None)
        ranked = sorted(filter(meets, at_load), key=lambda row: -row.tokens_per_second.value)
        if ranked:
            best.append(Winner(ranked[0], ranked[1] if ranked[1:] else None, alone))
    return best


def crossovers(rows: Iterable[BenchRow]) -> tuple[VerdictCrossover, ...]:
    """Where speculation stops or starts to pay for one workload, by the fastest repetition of each
    row: a verdict with these rows as evidence has the same crossovers."""
    loads: dict[int, dict[Setting, Performance]] = {}
    complete = [row for row in rows if row.is_complete and row.setting.is_known]
    for row in sorted(complete, key=lambda row: row.fastest.value):
        drafter, k, speed = row.setting.drafter, row.setting.k, row.fastest
        setting = Setting(drafter=(drafter or row.setting.text) if k else None, k=k)
        loads.setdefault(row.load.concurrency, {})[setting] = Performance(
            "measured", NO_DRAFT_ACCEPTANCE, "", speed.value, speed.low, speed.high
        )
    return speculation_crossovers(loads)


@dataclass(frozen=True)
class BenchGates:
    """What every load must reach, so that a pipeline goes on: mean times, output tokens per second,
    USD per million output tokens, tokens per verification step. ``None``: no limit."""

    slo: Slo | None = None
    min_tokens_per_second: float | None = None
    max_usd_per_million_tokens: float | None = None
    min_acceptance_length: float | None = None


def require_gates(result: BenchResult, gates: BenchGates) -> None:
    """Raise Refused if a load misses a gate. A limit on what was not measured is missed."""
    slo = gates.slo or Slo()

    def misses(row: BenchRow) -> Iterator[str]:
        length = row.acceptance.length if row.acceptance else None
        measured = (
            ("TTFT in s", row.ttft.mean if row.ttft else None, "at most", slo.ttft),
            ("ITL in s", row.itl.mean if row.itl else None, "at most", slo.itl),
            ("tokens/s", row.tokens_per_second.value, "at least", gates.min_tokens_per_second),
            ("USD per million tokens", row.usd_per_million_tokens, "at most",
             gates.max_usd_per_million_tokens),
            ("acceptance length", length, "at least", gates.min_acceptance_length),
        )  # fmt: skip
        for what, value, bound, limit in measured:
            if limit is not None and (
                value is None or (value > limit if bound == "at most" else value < limit)
            ):
                shown = "unknown" if value is None else f"{value:,.4g}"
                yield f"{row.load.concurrency} at a time: {what} {shown}, {bound} {limit:g}"

    missed = [miss for row in result.rows for miss in misses(row)]
    if missed:
        more = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        raise Refused(
            f"a gate is missed at {missed[0]}{more}",
            "change the plan, or the gates",
            code="gate-missed",
        )
