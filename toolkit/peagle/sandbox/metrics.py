"""CloudWatch's metrics in the sandbox: data points, statistics, and metric math.

A data point counts from the moment it is published, at its own time; nothing waits for the end of
a minute, as it does on AWS. Data points are kept for three hours, as AWS keeps high resolution.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEPT_SECONDS = 3 * 3600
_MOST_POINTS = 50_000
"""Data points that are kept of one metric."""

_LONGEST_EXPRESSION = 2048
"""Characters, as in the model of GetMetricData."""

Series = dict[float, float]
"""Start of a period in epoch seconds -> the statistic of that period."""


class InvalidQuery(ValueError):
    """A statistic or an expression that CloudWatch does not have."""


@dataclass(frozen=True)
class Metric:
    """What CloudWatch knows a metric by."""

    region: str
    namespace: str
    name: str
    dimensions: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, region: str, document: Mapping[str, Any]) -> Metric:
        """The metric in a request's ``Metric``: Namespace, MetricName, Dimensions."""
        dimensions = document.get("Dimensions") or ()
        pairs = frozenset((one["Name"], one["Value"]) for one in dimensions)
        return cls(region, document["Namespace"], document["MetricName"], pairs)


@dataclass(frozen=True)
class DataPoint:
    """Values that were published together; one value has ``count`` 1. ``time`` is epoch seconds."""

    time: float
    total: float
    count: float
    low: float
    high: float

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


class Store:
    """The data points of all metrics; used by many threads."""

    def __init__(self) -> None:
        self._points: dict[Metric, deque[DataPoint]] = {}
        self._lock = threading.Lock()

    def add(self, metric: Metric, value: float, at: float | None = None, count: float = 1) -> None:
        """Publish ``value``, ``count`` times."""
        when = time.time() if at is None else at
        self.add_point(metric, DataPoint(when, value * count, count, value, value))

    def add_point(self, metric: Metric, point: DataPoint) -> None:
        """Publish a point; forgets what is older than ``KEPT_SECONDS``."""
        with self._lock:
            points = self._points.setdefault(metric, deque(maxlen=_MOST_POINTS))
            points.append(point)
            while points[0].time < point.time - KEPT_SECONDS:
                points.popleft()

    def metrics(self, region: str) -> list[Metric]:
        """The metrics of a region, in the order in which they were first published."""
        with self._lock:
            return [metric for metric in self._points if metric.region == region]

    def points(self, metric: Metric, start: float, end: float) -> list[DataPoint]:
        """The points from ``start`` up to ``end``, without ``end``."""
        with self._lock:
            return [one for one in self._points.get(metric, ()) if start <= one.time < end]

    def series(self, metric: Metric, stat: str, period: float, start: float, end: float) -> Series:
        """One value for each period with points; periods begin at multiples of ``period``.

        Raises InvalidQuery for an unknown statistic.
        """
        compute = statistic(stat)
        periods: dict[float, list[DataPoint]] = {}
        for point in self.points(metric, start, end):
            periods.setdefault(point.time // period * period, []).append(point)
        return {begun: compute(points) for begun, points in sorted(periods.items())}

    def evaluate(
        self, region: str, queries: Iterable[Mapping[str, Any]], start: float, end: float
    ) -> dict[str, Series]:
        """The series of every query of GetMetricData or of an alarm's ``Metrics``, by its Id.

        Raises InvalidQuery.
        """
        return _Evaluation(self, region, {one["Id"]: one for one in queries}, start, end).all()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._points.clear()


STORE = Store()


def statistic(name: str) -> Callable[[Sequence[DataPoint]], float]:
    """The function of a statistic, for at least one point. Raises InvalidQuery."""
    if name in _STATISTICS:
        return _STATISTICS[name]
    found = re.fullmatch(r"p(\d{1,2}(?:\.\d{1,10})?|100)", name)
    if found is None:
        raise InvalidQuery(f"Invalid stat {name}")
    share = float(found[1]) / 100
    return lambda points: _percentile(points, share)


_STATISTICS: Mapping[str, Callable[[Sequence[DataPoint]], float]] = {
    "Sum": lambda points: sum(one.total for one in points),
    "SampleCount": lambda points: sum(one.count for one in points),
    "Average": lambda points: sum(p.total for p in points) / (sum(p.count for p in points) or 1),
    "Minimum": lambda points: min(one.low for one in points),
    "Maximum": lambda points: max(one.high for one in points),
}


def _percentile(points: Sequence[DataPoint], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(points, key=lambda one: one.mean)
    counted, sums = 0.0, []
    for point in ordered:
        counted += point.count
        sums.append(counted)
    return ordered[min(bisect_left(sums, share * counted), len(ordered) - 1)].mean


@dataclass
class _Evaluation:
    """The queries of one request, of which expressions may use each other's results."""

    store: Store
    region: str
    queries: Mapping[str, Mapping[str, Any]]
    start: float
    end: float

    def all(self) -> dict[str, Series]:
        try:
            return {name: self._series(name, ()) for name in self.queries}
        except (RecursionError, OverflowError) as error:
            raise InvalidQuery("Error in expression: it is too deep, or too large") from error

    def _series(self, name: str, within: tuple[str, ...]) -> Series:
        query = self.queries.get(name)
        if query is None or name in within:
            raise InvalidQuery(f"Error in expression: undefined or circular id {name}")
        stat = query.get("MetricStat")
        if stat:
            metric = Metric.of(self.region, stat["Metric"])
            span = self.start, self.end
            return self.store.series(metric, stat["Stat"], stat["Period"], *span)
        found = self._value(parsed(query["Expression"]), (*within, name))
        if isinstance(found, dict):
            return found
        return {self.start: found}

    def _value(self, node: ast.expr, within: tuple[str, ...]) -> Series | float:
        match node:
            case ast.Constant(value=int() | float() as value):
                return value + 0.0
            case ast.Name(id=name):
                return self._series(name, within)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _combined(operator.mul, -1.0, self._value(operand, within))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                sides = self._value(left, within), self._value(right, within)
                return _combined(_OPERATORS[type(op)], *sides)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                sides = self._value(left, within), self._value(right, within)
                return _combined(_COMPARISONS[type(op)], *sides)
            case ast.Call(
                func=ast.Name(id="FILL"), args=[of, ast.Constant(value=int() | float() as filling)]
            ):
                return self._filled(self._value(of, within), filling + 0.0)
            case ast.Call(func=ast.Name(id="IF"), args=[condition, chosen, other]):
                chooses = self._value(condition, within)
                return _chosen(chooses, self._value(chosen, within), self._value(other, within))
        raise InvalidQuery(f"Error in expression: the sandbox lacks {ast.unparse(node)}")

    def _filled(self, series: Series | float, filling: float) -> Series | float:
        """The series with ``filling`` in every period of the request that it lacks."""
        if not isinstance(series, dict):
            return series
        periods = [
            float(one["MetricStat"]["Period"])
            for one in self.queries.values()
            if one.get("MetricStat")
        ]
        period = min(periods, default=60.0)
        first = math.ceil(self.start / period)
        all_periods = (index * period for index in range(first, math.ceil(self.end / period)))
        return {**dict.fromkeys(all_periods, filling), **series}


_OPERATORS: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: Mapping[type, Callable[[float, float], float]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
}


def parsed(expression: str) -> ast.expr:
    """The expression of metric math, whose arithmetic is written as Python's. Raises
    InvalidQuery."""
    try:
        return ast.parse(expression.strip()[:_LONGEST_EXPRESSION], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidQuery(f"Error in expression {expression[:80]!r}") from error


def _combined(
    operate: Callable[[float, float], float], left: Series | float, right: Series | float
) -> Series | float:
    """Period by period; a period that one side lacks, or a division by zero, has no value."""
    if not isinstance(left, dict) and not isinstance(right, dict):
        left, right = {0.0: left}, {0.0: right}
        return next(iter(_by_period(operate, left, right).values()), 0.0)
    if not isinstance(left, dict):
        assert isinstance(right, dict)
        left = dict.fromkeys(right, left)
    if not isinstance(right, dict):
        right = dict.fromkeys(left, right)
    return _by_period(operate, left, right)


def _by_period(operate: Callable[[float, float], float], left: Series, right: Series) -> Series:
    found = {}
    for begun in sorted(left.keys() & right.keys()):
        if operate is not operator.truediv or right[begun]:
            found[begun] = operate(left[begun], right[begun]) + 0.0
    return found


def _chosen(
    condition: Series | float, chosen: Series | float, other: Series | float
) -> Series | float:
    """IF: ``chosen`` where the condition is not zero, else ``other``."""
    if not isinstance(condition, dict):
        return chosen if condition else other
    found: Series = {}
    for begun, value in condition.items():
        side = chosen if value else other
        if not isinstance(side, dict):
            found[begun] = side
        elif begun in side:
            found[begun] = side[begun]
    return found
