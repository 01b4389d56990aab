"""Gates: what a measurement must reach, so that a pipeline goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peagle.bench.models import BenchResult, BenchRow
from peagle.errors import Refused
from peagle.speed.slo import Slo
from peagle.text import format_usd


@dataclass(frozen=True)
class BenchGates:
    """Limits of every load: mean times, output tokens per second of the server, USD per million
    output tokens, tokens per verification step. ``None``: no limit."""

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
    itl = row.itl.mean if row.itl else None
    for label, seconds, most in (("TTFT", row.ttft.mean, slo.ttft), ("ITL", itl, slo.itl)):
        if most is not None and (seconds is None or seconds > most):
            shown = "unknown" if seconds is None else f"{seconds:.3f} s"
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
