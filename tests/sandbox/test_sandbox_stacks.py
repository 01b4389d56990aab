"""CloudFormation in the sandbox: stacks are created, updated and deleted; a failure is reported."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, WaiterError

from tests.sandbox.sandboxes import IMAGE, INSTANCE_TYPE, ROLE, Account, folder_on_s3

pytestmark = pytest.mark.sandbox
EVERY_SECOND = {"Delay": 1}
STACK = "my-stack"


@pytest.fixture
def stacks(account: Account) -> Iterator[Any]:
    """CloudFormation; afterwards no stack and nothing of SageMaker is left."""
    client = account.client("cloudformation")
    yield client
    client.delete_stack(StackName=STACK)
    wait(client, "delete")
    for listing, key in (
        ("list_endpoints", "Endpoints"),
        ("list_endpoint_configs", "EndpointConfigs"),
        ("list_models", "Models"),
    ):
        assert getattr(account.sagemaker, listing)()[key] == []


def wait(stacks: Any, word: str) -> None:
    waiter = stacks.get_waiter(f"stack_{word}_complete")
    waiter.wait(StackName=STACK, WaiterConfig=EVERY_SECOND)


def template(environment: dict[str, Any] | None = None, **more: dict[str, Any]) -> str:
    """A stack with an endpoint; ``more`` are further resources."""
    variant = {
        "VariantName": "v",
        "ModelName": {"Fn::GetAtt": ["Model", "ModelName"]},
        "InitialInstanceCount": "1",
        "InitialVariantWeight": 1,
        "InstanceType": INSTANCE_TYPE,
    }
    container = {
        "Image": IMAGE,
        "Environment": environment or {},
        "ModelDataSource": {"S3DataSource": folder_on_s3("tiny/")},
    }
    properties: dict[str, dict[str, Any]] = {
        "Endpoint": {
            "EndpointConfigName": {"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]},
            "Tags": [{"Key": "mine", "Value": "yes"}],
        },
        "EndpointConfig": {"ProductionVariants": [variant]},
        "Model": {"ExecutionRoleArn": {"Ref": "Role"}, "PrimaryContainer": container},
    }
    resources = {
        name: {"Type": f"AWS::SageMaker::{name}", "Properties": value}
        for name, value in properties.items()
    }
    url = "https://example.org/${Endpoint.EndpointName}"
    return json.dumps(
        {
            "Parameters": {"Role": {"Type": "String", "Default": ROLE}},
            "Resources": resources | more,
            "Outputs": {
                "Name": {"Value": {"Fn::GetAtt": ["Endpoint", "EndpointName"]}},
                "Url": {"Value": {"Fn::Sub": url}},
            },
        }
    )


def described(stacks: Any) -> Any:
    return stacks.describe_stacks(StackName=STACK)["Stacks"][0]


def outputs(stacks: Any) -> dict[str, str]:
    return {each["OutputKey"]: each["OutputValue"] for each in described(stacks).get("Outputs", [])}


def test_a_stack_is_created_updated_and_deleted(account: Account, stacks: Any) -> None:
    tags = [{"Key": "team", "Value": "x"}]
    stacks.create_stack(StackName=STACK, TemplateBody=template(), Tags=tags)
    wait(stacks, "create")
    (endpoint,) = account.sagemaker.list_endpoints()["Endpoints"]
    name = endpoint["EndpointName"]
    assert endpoint["EndpointStatus"] == "InService"
    assert re.fullmatch(rf"{STACK}-Endpoint-[A-Za-z0-9]{{12}}", name)
    assert outputs(stacks) == {"Name": name, "Url": f"https://example.org/{name}"}
    resources = stacks.describe_stack_resources(StackName=STACK)["StackResources"]
    ids = {resource["LogicalResourceId"]: resource["PhysicalResourceId"] for resource in resources}
    assert ids["Endpoint"] == endpoint["EndpointArn"]
    assert set(ids) == {"Model", "EndpointConfig", "Endpoint"}
    listed = account.sagemaker.list_tags(ResourceArn=endpoint["EndpointArn"])["Tags"]
    values = {tag["Key"]: tag["Value"] for tag in listed}
    assert (values["mine"], values["team"]) == ("yes", "x")
    assert values["aws:cloudformation:stack-name"] == STACK
    assert values["aws:cloudformation:logical-id"] == "Endpoint"
    old = account.describe(name)["EndpointConfigName"]
    stacks.update_stack(StackName=STACK, TemplateBody=template({"SM_VLLM_SEED": 7}))
    wait(stacks, "update")
    assert outputs(stacks)["Name"] == name
    assert account.describe(name)["EndpointConfigName"] != old
    assert "--seed" in account.invoke(name, {})["argv"]
    assert len(account.sagemaker.list_endpoint_configs()["EndpointConfigs"]) == 1
    assert len(account.sagemaker.list_models()["Models"]) == 1
    with pytest.raises(ClientError, match="No updates are to be performed"):
        stacks.update_stack(
            StackName=STACK,
            TemplateBody=template({"SM_VLLM_SEED": 7}),
            Parameters=[{"ParameterKey": "Role", "ParameterValue": ROLE}],
        )


def test_resources_that_are_not_kept_are_named(account: Account, stacks: Any) -> None:
    alarm = {"Type": "AWS::CloudWatch::Alarm", "Properties": {"AlarmName": "a"}}
    stacks.create_stack(StackName=STACK, TemplateBody=template(Alarm=alarm))
    wait(stacks, "create")
    assert "AWS::CloudWatch::Alarm" in described(stacks)["StackStatusReason"]
    assert account.client("cloudwatch").describe_alarms()["MetricAlarms"] == []


@pytest.mark.parametrize(("environment", "role", "reason"), [
    ({"VLLM_FAKE_ENGINE": "crash"}, ROLE, "the head does not belong to this target"),
    ({}, f"{ROLE}-none", "Could not assume role"),
    ({"a b": "c"}, ROLE, "validation error"),
])  # fmt: skip
def test_a_creation_that_fails_says_why(
    account: Account, stacks: Any, environment: dict[str, str], role: str, reason: str
) -> None:
    stacks.create_stack(
        StackName=STACK,
        TemplateBody=template(environment),
        Parameters=[{"ParameterKey": "Role", "ParameterValue": role}],
    )
    with pytest.raises(WaiterError, match="CREATE_FAILED"):
        wait(stacks, "create")
    assert reason in described(stacks)["StackStatusReason"]
    events = stacks.describe_stack_events(StackName=STACK)["StackEvents"]
    assert any(reason in event.get("ResourceStatusReason", "") for event in events)


def test_an_update_that_fails_says_why_and_can_be_repeated(account: Account, stacks: Any) -> None:
    stacks.create_stack(StackName=STACK, TemplateBody=template())
    wait(stacks, "create")
    name = outputs(stacks)["Name"]
    stacks.update_stack(StackName=STACK, TemplateBody=template({"VLLM_FAKE_ENGINE": "crash"}))
    with pytest.raises(WaiterError, match="UPDATE_FAILED"):
        wait(stacks, "update")
    assert "the head does not belong to this target" in described(stacks)["StackStatusReason"]
    assert account.invoke(name, {})["path"] == "/invocations"
    stacks.update_stack(StackName=STACK, TemplateBody=template({"SM_VLLM_SEED": "7"}))
    wait(stacks, "update")
    assert "--seed" in account.invoke(name, {})["argv"]


def test_a_change_set_creates_and_updates_as_deploy_does(account: Account, stacks: Any) -> None:
    for kind, environment in (("CREATE", {}), ("UPDATE", {"SM_VLLM_SEED": "7"})):
        name = {"StackName": STACK, "ChangeSetName": f"of-{kind.lower()}"}
        stacks.create_change_set(**name, TemplateBody=template(environment), ChangeSetType=kind)
        stacks.execute_change_set(**name)
        wait(stacks, kind.lower())
    assert "--seed" in account.invoke(outputs(stacks)["Name"], {})["argv"]
    name = {"StackName": STACK, "ChangeSetName": "of-nothing"}
    role = [{"ParameterKey": "Role", "UsePreviousValue": True}]
    body = template({"SM_VLLM_SEED": "7"})
    stacks.create_change_set(**name, TemplateBody=body, Parameters=role, ChangeSetType="UPDATE")
    change_set = stacks.describe_change_set(**name)
    assert (change_set["Status"], "didn't contain changes" in change_set["StatusReason"]) == (
        "FAILED",
        True,
    )


def test_a_stack_in_progress_is_not_updated_but_deleted(account: Account, stacks: Any) -> None:
    body = template({"VLLM_FAKE_ENGINE": "never-healthy"})
    stacks.create_stack(StackName=STACK, TemplateBody=body)
    assert described(stacks)["StackStatus"] == "CREATE_IN_PROGRESS"
    assert outputs(stacks) == {}
    with pytest.raises(ClientError, match="CREATE_IN_PROGRESS state and can not be updated"):
        stacks.update_stack(StackName=STACK, TemplateBody=template({"SM_VLLM_SEED": "7"}))
