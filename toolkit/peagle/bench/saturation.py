"""Whether a load is more than a server can take: then its numbers are of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from statistics import fmean, median

from peagle.bench.intervals import t_quantile
from peagle.bench.models import BenchLoad, BenchRow
from peagle.bench.sender import SentRequest

LEAST_GAIN = 1.02
"""More requests must give so many times the tokens."""

_LEAST_REQUESTS = 8
_GROWTH = 0.5
"""The time to the first token grows by this share of its mean over the load."""


def queue_reason(
    load: BenchLoad, good: Sequence[SentRequest], waiting: Sequence[tuple[float, float]]
) -> str:
    """Why requests of this load wait in a queue; empty if they do not.

    By the engine's own gauge where it can be read, else by the times: most requests wait longer
    for their first token than for all others, or the wait grows in every repetition.
    """
    if load.concurrency == 1 or not good:
        return ""
    start, end = min(one.start for one in good), max(one.end for one in good)
    inside = [requests for at, requests in waiting if start <= at <= end]
    if len(inside) >= 2 and median(inside) > 0:
        return f"{median(inside):.0f} of {load.concurrency} requests wait in the engine's queue"
    timed = [(one.start, one.ttft, one.end - one.start) for one in good if one.ttft is not None]
    if len(timed) < _LEAST_REQUESTS:
        return ""
    first = median(ttft for _, ttft, _ in timed)
    rest = median(seconds - ttft for _, ttft, seconds in timed)
    if first > rest > 0:
        return f"requests wait {first:.2g} s for the first token, and {rest:.2g} s for the others"
    numbers = {one.repetition for one in good}
    if all(grows(_waits(good, number)) for number in numbers):
        return "the time to the first token grows during the load: the queue grows"
    return ""


def _waits(good: Sequence[SentRequest], repetition: int) -> list[tuple[float, float]]:
    return [
        (one.start, one.ttft)
        for one in good
        if one.repetition == repetition and one.ttft is not None
    ]


def grows(points: Sequence[tuple[float, float]]) -> bool:
    """Whether the second numbers grow with the first ones: significantly (one-sided t-test of the
    slope at 2.5 %), and by half of their mean from the first to the last."""
    count = len(points)
    if count < _LEAST_REQUESTS:
        return False
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return False
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    error = sqrt(rest / (count - 2) / spread)
    rise = slope * (max(x for x, _ in points) - min(x for x, _ in points))
    return slope > t_quantile(count - 2) * error and rise > _GROWTH * mean_y


def with_saturation(rows: Sequence[BenchRow]) -> tuple[BenchRow, ...]:
    """The rows; one is saturated whose tokens per second are hardly more than those of a smaller
    load of the same setting and workload."""
    flagged = {id(row): _no_gain(row, rows) for row in rows}
    return tuple(replace(row, saturated=row.saturated or flagged[id(row)]) for row in rows)


def _no_gain(row: BenchRow, rows: Sequence[BenchRow]) -> str:
    smaller = [
        other
        for other in rows
        if (other.setting, other.load.workload) == (row.setting, row.load.workload)
        and other.load.concurrency < row.load.concurrency
        and not other.incomplete
    ]
    if not smaller or row.incomplete:
        return ""
    best = max(smaller, key=lambda other: other.tokens_per_second.value)
    if row.tokens_per_second.value >= LEAST_GAIN * best.tokens_per_second.value:
        return ""
    requests = best.load.concurrency
    return f"no more tokens per second than with {requests} request{'s' * (requests != 1)}"
