"""What CloudWatch refuses in the body of a dashboard."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peagle.request_validation.dashboard import dashboard_problems

METRIC: dict[str, Any] = {
    "type": "metric",
    "x": 0,
    "width": 12,
    "height": 6,
    "properties": {"region": "us-east-1", "metrics": [["N", "M", "D", "V"]], "period": 60},
}


def with_properties(**changes: Any) -> dict[str, Any]:
    return {**METRIC, "properties": {**METRIC["properties"], **changes}}


@pytest.mark.parametrize(
    ("widget", "problem"),
    [
        ({**METRIC, "type": "graph"}, "/type: should be one of metric, log, text, alarm"),
        ({**METRIC, "x": 18}, "/width: reaches beyond column 24"),
        ({**METRIC, "height": 0}, "/height: should be a whole number from 1 to 1000"),
        ({**METRIC, "properties": []}, "/properties: should be an object"),
        (with_properties(region=""), "/properties/region: is missing"),
        (with_properties(view="graph"), "/properties/view: should be one of"),
        (with_properties(metrics=[]), "/properties/metrics: is missing"),
        (with_properties(metrics=[["N"]]), "/properties/metrics/0: should be a namespace"),
        (with_properties(metrics=[["N", {"expression": "a"}]]), "an expression has no metric"),
        (with_properties(period=45), "/properties/period: should be"),
        ({"type": "log", "properties": {"region": "r"}}, "/properties/query: is missing"),
    ],
)
def test_an_invalid_widget_is_named(widget: dict[str, Any], problem: str) -> None:
    (found,) = dashboard_problems(json.dumps({"widgets": [METRIC, widget]}))
    assert found.startswith("/widgets/1")
    assert problem in found


def test_a_body_has_limits() -> None:
    assert dashboard_problems(json.dumps({"widgets": [METRIC]})) == []
    assert "501 widgets" in dashboard_problems(json.dumps({"widgets": [METRIC] * 501}))[0]
    many = with_properties(metrics=[["N", "M"]] * 400)
    assert "2800 metrics" in dashboard_problems(json.dumps({"widgets": [many] * 7}))[0]
    assert dashboard_problems("[")
    assert dashboard_problems("[]")
