"""The parameters of a CloudFormation template: without any, its stack is the plan."""

import json
from functools import cache
from typing import Any

import pytest

from peagle.planning import Options, Plan, make_plan
from peagle.planning.operation import ends_after
from peagle.render.alarms import alarms, metric_filters
from peagle.render.dashboard import dashboard_text
from peagle.render.formats.cloudformation import template
from peagle.render.resources import limit_name
from tests.iac.stack import stack_of
from tests.unit.rendering.plans import CATALOG, SHAPES, limited, plan_of

TOPIC = "arn:aws:sns:us-east-1:123456789012:on-call"
CONFIG = "the configuration"
ENDS = "2031-01-31T20:00:00"
END: dict[str, str] = {"EndsAt": ENDS}


@cache
def rich() -> Plan:
    """A plan with everything, and a name without the prefix of policies."""
    options = Options(
        pair="gpt-oss-20b", name="chat", min_instances=4, max_instances=6, rollout="canary",
        observe=True, alarm_topic=TOPIC, ttl=8 * 3600,
    )  # fmt: skip
    return make_plan(options, CATALOG)


def of_type(stack: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The properties of the resources of a type, with the name of the configuration filled in."""
    reference = json.dumps({"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]})
    filled = json.loads(json.dumps(stack).replace(reference, json.dumps(CONFIG)))
    return [each["Properties"] for each in filled.values() if each["Type"] == f"AWS::{kind}"]


@pytest.mark.parametrize("shape", [*SHAPES, "rich"])
def test_a_stack_without_parameters_is_observed_as_the_plan_says(shape: str) -> None:
    """``from_cloudformation`` compares endpoint and scaling."""
    plan = rich() if shape == "rich" else plan_of(shape)
    if any(mount.channel for mount in plan.mounts):
        return
    stack = stack_of(template(plan), **(END if ends_after(plan) else {}))
    planned, made = (
        {alarm["AlarmName"]: {**alarm, "AlarmDescription": ""} for alarm in each}
        for each in (alarms(plan, CONFIG), of_type(stack, "CloudWatch::Alarm"))
    )
    assert made == planned  # but for what the owner of a stack can do
    counted = {item["FilterName"] for item in of_type(stack, "Logs::MetricFilter")}
    assert counted == {metric_filter["filterName"] for metric_filter in metric_filters(plan)}
    shown = [dashboard["DashboardBody"] for dashboard in of_type(stack, "CloudWatch::Dashboard")]
    observe = plan.observe
    assert shown == ([dashboard_text(plan)] if observe and observe.dashboard else [])
    kept = [group["RetentionInDays"] for group in of_type(stack, "Logs::LogGroup")]
    assert kept == ([observe.log_retention_days] if observe and observe.log_retention_days else [])
    assert not any("KmsKeyId" in group for group in of_type(stack, "Logs::LogGroup"))


def test_the_names_are_within_the_limits_of_aws() -> None:
    longest = rich().model_copy(update={"name": "x" * 63})
    stack = stack_of(template(longest), **END)
    (schedule,) = of_type(stack, "Scheduler::Schedule")
    assert schedule["Name"].startswith("peagle-ends-")
    assert len(schedule["Name"]) <= 60, "with the end of the schedule of copies"
    for alarm in of_type(stack, "CloudWatch::Alarm"):
        assert len(alarm["AlarmName"]) <= 255
        assert len(alarm["AlarmDescription"]) <= 1024


def test_the_schedule_has_the_name_of_the_plan() -> None:
    (planned,) = of_type(stack_of(template(limited()), **END), "Scheduler::Schedule")
    assert planned["Name"] == limit_name("us-east-1", limited().name)


def test_a_stack_has_the_topic_and_the_key_of_the_account() -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    topic = f"{TOPIC}-of-staging"
    stack = stack_of(template(rich()), AlarmTopicArn=topic, LogKmsKeyArn=key, **END)
    (log,) = of_type(stack, "Logs::LogGroup")
    assert log["KmsKeyId"] == key
    made = of_type(stack, "CloudWatch::Alarm")
    assert all(alarm["AlarmActions"] == alarm["OKActions"] == [topic] for alarm in made)
    (endpoint,) = of_type(stack, "SageMaker::Endpoint")
    undoing = endpoint["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]
    assert {name["AlarmName"]["Ref"] for name in undoing} <= {
        alarm for alarm in stack if "Alarm" in alarm
    }
