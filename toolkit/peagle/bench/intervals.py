"""95 % confidence intervals of a mean and of a ratio of sums, by Student's t."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from peagle.bench.models import Interval

_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5 % quantile of Student's t for 1 to 30 degrees of freedom."""

_NORMAL = 1.960


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile for so many degrees of freedom, within 0.1 %; for 1 or more."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    return _NORMAL + (_T[-1] - _NORMAL) * len(_T) / degrees


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of the values; of one value, the value itself. Raises ValueError for none."""
    if not values:
        raise ValueError("a mean needs a value")
    mean = sum(values) / len(values)
    count = len(values)
    if count == 1:
        return Interval(mean, mean, mean)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    half = t_quantile(count - 1) * sqrt(variance / count)
    return Interval(mean, mean - half, mean + half)


def ratio_interval(parts: Sequence[tuple[float, float]]) -> Interval | None:
    """Sum of the first numbers over sum of the second ones, such as accepted tokens and drafts of
    each group of requests; ``None`` where the second ones sum to 0.

    The groups must be independent of each other. The variance is that of the linearized ratio
    (Cochran, Sampling Techniques, 6.4). With fewer than two groups the bounds are the value.
    """
    whole = sum(weight for _, weight in parts)
    if whole <= 0:
        return None
    ratio = sum(part for part, _ in parts) / whole
    used = [(part, weight) for part, weight in parts if weight > 0]
    if len(used) < 2:
        return Interval(ratio, ratio, ratio)
    squares = sum((part - ratio * weight) ** 2 for part, weight in used)
    count = len(used)
    half = t_quantile(count - 1) * sqrt(squares * count / (count - 1)) / whole
    return Interval(ratio, ratio - half, ratio + half)
