"""Confidence intervals against values computed by hand, and their coverage."""

from __future__ import annotations

import random

import pytest

from peagle.bench.result import Interval, ratio_interval, t_quantile


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.706), (30, 2.042), (60, 2.000), (10**6, 1.96)]
)
def test_quantiles_of_students_t(degrees: int, value: float) -> None:
    assert t_quantile(degrees) == pytest.approx(value, abs=2e-3)


def test_the_interval_of_a_mean() -> None:
    found = ratio_interval([(9.0, 1.0), (10.0, 1.0), (11.0, 1.0)])

    assert found
    assert found.value == 10.0
    assert (found.low, found.high) == pytest.approx((10 - 2.4842, 10 + 2.4842), abs=1e-3)


def test_a_ratio_without_groups_has_no_width() -> None:
    assert ratio_interval([]) is None
    assert ratio_interval([(0, 0)]) is None
    assert ratio_interval([(6, 4), (0, 0)]) == Interval(1.5, 1.5, 1.5)


@pytest.mark.thorough
def test_the_interval_of_a_ratio_covers_it_in_95_of_100_trials() -> None:
    draw = random.Random(1)
    covered = 0
    for _ in range(1000):
        groups = []
        for _ in range(12):
            drafts = draw.randint(20, 80)
            rate = min(max(draw.gauss(0.5, 0.1), 0), 1)  # each text has its own
            groups.append((sum(draw.random() < rate for _ in range(drafts)), drafts))
        found = ratio_interval(groups)
        assert found is not None
        covered += found.low <= 0.5 <= found.high
    assert 0.93 <= covered / 1000 <= 0.975
