"""CloudFormation in the sandbox, in process: types of values, and schedules of a stack."""

import json
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.scheduler.models import scheduler_backends

from peagle.request_validation import service_model
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.stacks import ScheduleResource, with_types

REGION = "us-east-1"
INPUT = service_model("sagemaker").operation_model("CreateEndpointConfig").input_shape


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("InitialInstanceCount", "2", 2),
    ("InitialInstanceCount", 2, 2),
    ("InitialInstanceCount", "two", "two"),
    ("InitialVariantWeight", "0.5", 0.5),
    ("EnableSSMAccess", "true", True),
    ("EnableSSMAccess", "false", False),
    ("EnableSSMAccess", "yes", "yes"),
    ("VariantName", 1, "1"),
    ("VariantName", True, "true"),
    ("Unknown", "1", "1"),
])  # fmt: skip
def test_a_value_of_a_template_gets_the_type_that_the_service_expects(
    key: str, value: object, expected: object
) -> None:
    (variant,) = with_types(INPUT, {"ProductionVariants": [{key: value}]})["ProductionVariants"]
    assert (variant[key], type(variant[key])) == (expected, type(expected))


def document(expression: str) -> dict[str, Any]:
    role = f"arn:aws:iam::{ACCOUNT}:role/scheduler"
    target = {"Arn": "arn:aws:scheduler:::aws-sdk:sagemaker:deleteEndpoint", "RoleArn": role}
    properties = {"Name": "end", "ScheduleExpression": expression, "Target": target}
    return {"Properties": {**properties, "FlexibleTimeWindow": {"Mode": "OFF"}}}


def test_a_schedule_of_a_stack_is_created_replaced_and_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with mock_aws():
        trust = {"Principal": {"Service": "scheduler.amazonaws.com"}, "Action": "sts:AssumeRole"}
        boto3.client("iam", region_name=REGION).create_role(
            RoleName="scheduler", AssumeRolePolicyDocument=json.dumps({"Statement": [trust]})
        )
        place = (ACCOUNT, REGION)
        first: Any = ScheduleResource.create_from_cloudformation_json(
            "made", document("at(2030-01-01T00:00:00)"), *place
        )
        assert (first.name, first.physical_resource_id, first.state) == ("end", "end", "ENABLED")
        later = document("at(2031-01-01T00:00:00)")
        second: Any = ScheduleResource.update_from_cloudformation_json(first, "made", later, *place)
        kept = scheduler_backends[ACCOUNT][REGION].schedule_groups["default"].schedules
        assert kept["end"].schedule_expression == "at(2031-01-01T00:00:00)"
        assert second.is_created()
        for _ in range(2):  # also where someone else has deleted it
            ScheduleResource.delete_from_cloudformation_json("end", later, *place)
        assert kept == {}
