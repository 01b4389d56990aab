"""Statistics and metric math of the sandbox's CloudWatch."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.sandbox.metrics import DataPoint, InvalidQuery, Metric, Store

REGION = "us-east-1"
SPAN = (0.0, 300.0)


def stat(name: str, statistic: str = "Sum", query: str = "") -> dict[str, Any]:
    metric = {"Namespace": "N", "MetricName": name, "Dimensions": []}
    return {
        "Id": query or name,
        "MetricStat": {"Metric": metric, "Stat": statistic, "Period": 60},
    }


@pytest.fixture
def store() -> Store:
    store = Store()
    for at, accepted, drafted in ((10, 10, 20), (70, 6, 14), (80, 8, 14)):
        store.add(Metric(REGION, "N", "accepted"), accepted, at)
        store.add(Metric(REGION, "N", "drafted"), drafted, at)
    store.add(Metric(REGION, "N", "drafted"), 7, 130)
    return store


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [("Sum", 14), ("Average", 7), ("Minimum", 6), ("Maximum", 8), ("SampleCount", 2), ("p50", 6),
     ("p90", 8), ("p99.9", 8), ("p100", 8)],
)  # fmt: skip
def test_statistics_are_of_periods_that_begin_at_their_multiples(
    store: Store, statistic: str, expected: float
) -> None:
    found = store.series(Metric(REGION, "N", "accepted"), statistic, 60, *SPAN)
    assert found[60.0] == expected
    assert list(found) == [0.0, 60.0]


def test_a_point_may_hold_many_values() -> None:
    store, metric = Store(), Metric(REGION, "N", "many")
    store.add_point(metric, DataPoint(1, 30, 3, 5, 15))
    store.add(metric, 2, at=2, count=3)
    assert store.series(metric, "Average", 60, *SPAN) == {0.0: 6.0}
    assert store.series(metric, "Maximum", 60, *SPAN) == {0.0: 15}


def test_metrics_differ_by_region_and_dimensions(store: Store) -> None:
    of_one = frozenset({("EndpointName", "a")})
    store.add(Metric(REGION, "N", "accepted", of_one), 99, at=1)
    store.add(Metric("eu-west-1", "N", "accepted"), 98, at=1)
    assert store.series(Metric(REGION, "N", "accepted"), "Sum", 60, *SPAN)[0.0] == 10
    assert store.series(Metric(REGION, "N", "accepted", of_one), "Sum", 60, *SPAN) == {0.0: 99}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 7 * accepted / drafted", {0.0: 4.5, 60.0: 4.5}),
        ("accepted - 10", {0.0: 0.0, 60.0: 4.0}),
        ("-accepted", {0.0: -10.0, 60.0: -14.0}),
        ("drafted / (accepted - 10)", {60.0: 7.0}),
        ("IF(accepted > 10, 1, 0)", {0.0: 0.0, 60.0: 1.0}),
        ("IF(accepted > 10, drafted, accepted)", {0.0: 10.0, 60.0: 28.0}),
        ("FILL(accepted, 0) / drafted", {0.0: 0.5, 60.0: 0.5, 120.0: 0.0}),
    ],
)
def test_metric_math(store: Store, expression: str, expected: dict[float, float]) -> None:
    queries = [stat("accepted"), stat("drafted"), {"Id": "e1", "Expression": expression}]
    assert store.evaluate(REGION, queries, *SPAN)["e1"] == expected


@pytest.mark.parametrize(
    "expression", ["1 +", "missing * 2", "e1 + 1", "open('a')", "ANOMALY_DETECTION_BAND(accepted)"]
)
def test_an_unknown_expression_is_invalid(store: Store, expression: str) -> None:
    queries = [stat("accepted"), {"Id": "e1", "Expression": expression}]
    with pytest.raises(InvalidQuery):
        store.evaluate(REGION, queries, *SPAN)


def test_an_unknown_statistic_is_invalid(store: Store) -> None:
    with pytest.raises(InvalidQuery, match="median"):
        store.series(Metric(REGION, "N", "accepted"), "median", 60, *SPAN)


def test_points_are_kept_for_three_hours() -> None:
    store, metric = Store(), Metric(REGION, "N", "old")
    store.add(metric, 1, at=0)
    store.add(metric, 1, at=3 * 3600 + 1)
    assert len(store.points(metric, 0, 1e9)) == 1
