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
from tests.iac.formats import from_stack
from tests.iac.stack import stack_of, values_of
from tests.unit.rendering.plans import CATALOG, SHAPES, limited, plan_of, to_zero

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


def test_another_name_is_that_of_everything() -> None:
    """As of a plan with that name; only schedules, whose names are hashed, differ."""
    for plan in (rich(), plan_of("uploaded"), to_zero()):
        choices = END if ends_after(plan) else {}
        for name in ("peagle-other", "other", f"peagle-{'x' * 56}"):
            renamed = stack_of(template(plan), EndpointName=name, **choices)
            planned = stack_of(template(plan.model_copy(update={"name": name})), **choices)
            for stack in (renamed, planned):
                stack.get("Schedule", {"Properties": {}})["Properties"].pop("Name", None)
            assert renamed == planned


def test_the_names_are_within_the_limits_of_aws() -> None:
    longest = {"EndpointName": "x" * 63, **END}
    stack = stack_of(template(rich()), **longest)
    (schedule,) = of_type(stack, "Scheduler::Schedule")
    assert schedule["Name"].startswith("peagle-ends-")
    assert len(schedule["Name"]) <= 60, "with the end of the schedule of copies"
    for alarm in of_type(stack, "CloudWatch::Alarm"):
        assert len(alarm["AlarmName"]) <= 255
        assert len(alarm["AlarmDescription"]) <= 1024
    (planned,) = of_type(stack_of(template(limited()), **END), "Scheduler::Schedule")
    assert planned["Name"] == limit_name("us-east-1", limited().name)


@pytest.mark.parametrize("name", ["a_b", "-a", "a-", "", "x" * 64])
def test_a_name_that_sagemaker_rejects_is_no_value_of_the_parameter(name: str) -> None:
    with pytest.raises(AssertionError, match="EndpointName"):
        values_of(template(rich()), {"EndpointName": name})


def test_a_stack_has_what_its_plan_has_within_the_bounds_of_the_account() -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    topic = f"{TOPIC}-of-staging"
    values = {"MinInstances": 5, "MaxInstances": 9, "AlarmTopicArn": topic, "LogKmsKeyArn": key}
    stack = stack_of(template(rich()), InitialInstanceCount=5, **values, **END)
    scaling = from_stack(stack).scaling
    assert (scaling["MinCapacity"], scaling["MaxCapacity"]) == (5, 9)
    (log,) = of_type(stack, "Logs::LogGroup")
    assert log["KmsKeyId"] == key
    made = of_type(stack, "CloudWatch::Alarm")
    assert all(alarm["AlarmActions"] == alarm["OKActions"] == [topic] for alarm in made)
    (endpoint,) = of_type(stack, "SageMaker::Endpoint")
    undoing = endpoint["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]
    assert {name["AlarmName"]["Ref"] for name in undoing} <= {
        alarm for alarm in stack if "Alarm" in alarm
    }


def test_a_stack_of_copies_counts_copies_and_instances() -> None:
    choices = {"Copies": 3, "MinInstances": 1, "MaxInstances": 4, "MinCopies": 1, "MaxCopies": 9}
    stack = stack_of(template(to_zero()), **choices)
    (component,) = of_type(stack, "SageMaker::InferenceComponent")
    assert component["RuntimeConfig"] == {"CopyCount": 3}
    (config,) = of_type(stack, "SageMaker::EndpointConfig")
    managed = config["ProductionVariants"][0]["ManagedInstanceScaling"]
    assert (managed["MinInstanceCount"], managed["MaxInstanceCount"]) == (1, 4)
    (target,) = of_type(stack, "ApplicationAutoScaling::ScalableTarget")
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 9)


def test_a_rollout_in_steps_keeps_the_instances_that_it_needs() -> None:
    parameters = template(plan_of("rolled-out"))["Parameters"]
    assert parameters["InitialInstanceCount"]["MinValue"] == 4
    assert template(plan_of("from-hub"))["Parameters"]["InitialInstanceCount"]["MinValue"] == 1
