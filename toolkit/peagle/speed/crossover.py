"""The loads at which speculation stops or starts to pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from peagle.speed.verdict import VerdictCrossover
from peagle.text import format_usd


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
