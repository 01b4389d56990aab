"""What a plan lets you watch, and the dashboard that it creates."""

import json
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.planning import Options, Plan, make_plan
from peagle.planning.operation import alarm_kinds
from peagle.planning.plan import Observe
from peagle.render.dashboard import dashboard_body, dashboard_name
from peagle.render.requests import plan_arguments
from peagle.workload import Slo

CATALOG = load_catalog()
TOPIC = "arn:aws:sns:us-east-1:123456789012:on-call"
SUBJECTS = (
    "Requests per minute", "Time to first token", "Inter-token latency", "KV cache",
    "Acceptance length", "USD per hour", "USD per million",
)  # fmt: skip


def plan_with(**options: Any) -> Plan:
    return make_plan(Options(**{"pair": "tiny", **options}), CATALOG)


def test_observe_limits_the_log_and_says_why() -> None:
    plan = plan_with(observe=True)
    assert plan.observe == Observe(
        dashboard=True, log_retention_days=30, alarms=("errors", "acceptance", "load")
    )
    assert any(reason.what == "log retention" for reason in plan.reasons)
    assert plan_with(log_retention=90).observe == Observe(dashboard=False, log_retention_days=90)
    kept = [plan_with(log_retention=days).observe for days in (8, 4000)]
    assert [observe.log_retention_days for observe in kept if observe] == [14, 3653]


@pytest.mark.thorough
def test_the_alarms_are_those_that_the_plan_has_a_limit_for() -> None:
    plain, with_slo = plan_with(observe=True), plan_with(observe=True, slo=Slo(ttft=2))
    codes = {finding.code for finding in plain.findings}
    assert "no-alarm-topic" in codes
    assert alarm_kinds(with_slo) == ("ttft", "errors", "acceptance", "load")
    assert alarm_kinds(plan_with(observe=True, speculation=False)) == ("errors", "load")
    assert "--slo" in plan_arguments(with_slo)
    notified = plan_with(observe=True, slo=Slo(ttft=2), alarm_topic=TOPIC)
    assert "no-alarm-topic" not in {finding.code for finding in notified.findings}


def queries(plan: Plan) -> dict[str, str]:
    widgets = dashboard_body(plan)["widgets"]
    return {
        widget["properties"]["title"]: widget["properties"]["query"]
        for widget in widgets
        if widget["type"] == "log"
    }


def test_the_dashboard_is_valid_and_has_every_subject() -> None:
    plan = plan_with(observe=True)
    body = dashboard_body(plan)
    assert all(0 <= widget["x"] < widget["x"] + widget["width"] <= 24 for widget in body["widgets"])
    titles = [widget["properties"].get("title", "") for widget in body["widgets"]]
    for subject in SUBJECTS:
        assert any(title.startswith(subject) for title in titles), subject
    assert dashboard_name(plan.name, plan.region) == f"peagle-tiny-{plan.region}"


@pytest.mark.thorough
def test_queries_use_the_numbers_of_the_plan() -> None:
    plan = plan_with(observe=True, instance_count=2, instance_type="ml.g5.xlarge")
    assert plan.speculation
    assert plan.price_per_hour_usd
    texts = queries(plan)
    length = next(query for title, query in texts.items() if title.startswith("Acceptance"))
    assert f"1 + {plan.speculation.k} * sum(accepted) / sum(drafted)" in length
    each = f"{plan.price_per_hour_usd / 2:g}"
    per_token = texts["USD per million output tokens, each instance at work"]
    assert f"count_distinct(@logStream) * {each} * 0.0833333 * 1000000" in per_token
    assert "/ (sum(tokens) * 10)" in per_token
    assert all('| filter @logStream like "AllTraffic/"' in text for text in texts.values())
    hourly = json.dumps(dashboard_body(plan))
    assert f'"{each} * requests / each"' in hourly
    assert '"InvocationsPerInstance"' in hourly
    assert all(text.startswith("SOURCE '/aws/sagemaker/Endpoints/") for text in texts.values())
