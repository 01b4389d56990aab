"""CloudFormation in the sandbox: stacks wait, update, roll back and delete as on AWS."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, WaiterError

from tests.sandbox.sandboxes import (
    IMAGE,
    INSTANCE_TYPE,
    ROLE,
    Account,
    folder_on_s3,
    until,
)

pytestmark = pytest.mark.sandbox

EVERY_SECOND = {"Delay": 1}
STACK = "my-stack"


@pytest.fixture
def stacks(account: Account) -> Iterator[Any]:
    """CloudFormation; afterwards no stack and nothing of SageMaker is left."""
    client = account.client("cloudformation")
    yield client
    delete(client)
    for listing, key in (
        ("list_endpoints", "Endpoints"),
        ("list_endpoint_configs", "EndpointConfigs"),
        ("list_models", "Models"),
    ):
        assert getattr(account.sagemaker, listing)()[key] == []


def delete(client: Any) -> None:
    client.delete_stack(StackName=STACK)
    client.get_waiter("stack_delete_complete").wait(StackName=STACK, WaiterConfig=EVERY_SECOND)


def template(environment: dict[str, Any] | None = None, **more: dict[str, Any]) -> str:
    """A stack with an endpoint; ``more`` are further properties of its resources."""
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
        name: {"Type": f"AWS::SageMaker::{name}", "Properties": value | more.get(name, {})}
        for name, value in properties.items()
    }
    url = "https://example.org/${Endpoint.EndpointName}"
    return json.dumps(
        {
            "Parameters": {"Role": {"Type": "String", "Default": ROLE}},
            "Resources": resources,
            "Outputs": {
                "Name": {"Value": {"Fn::GetAtt": ["Endpoint", "EndpointName"]}},
                "Url": {"Value": {"Fn::Sub": url}},
            },
        }
    )


def create(stacks: Any, body: str, **more: Any) -> dict[str, str]:
    """Create the stack and wait; its outputs."""
    stacks.create_stack(StackName=STACK, TemplateBody=body, **more)
    stacks.get_waiter("stack_create_complete").wait(StackName=STACK, WaiterConfig=EVERY_SECOND)
    return outputs(stacks)


def described(stacks: Any) -> Any:
    return stacks.describe_stacks(StackName=STACK)["Stacks"][0]


def outputs(stacks: Any) -> dict[str, str]:
    return {one["OutputKey"]: one["OutputValue"] for one in described(stacks).get("Outputs", [])}


def reasons(stacks: Any) -> str:
    events = stacks.describe_stack_events(StackName=STACK)["StackEvents"]
    return "\n".join(event.get("ResourceStatusReason", "") for event in events)


def test_a_stack_is_complete_when_its_endpoint_serves(account: Account, stacks: Any) -> None:
    stacks.create_stack(
        StackName=STACK, TemplateBody=template(), Tags=[{"Key": "team", "Value": "x"}]
    )
    until(lambda: account.sagemaker.list_endpoints()["Endpoints"], lambda found: len(found) == 1)
    assert described(stacks)["StackStatus"] == "CREATE_IN_PROGRESS"
    assert outputs(stacks) == {}
    stacks.get_waiter("stack_create_complete").wait(StackName=STACK, WaiterConfig=EVERY_SECOND)
    (endpoint,) = account.sagemaker.list_endpoints()["Endpoints"]
    name = endpoint["EndpointName"]
    assert endpoint["EndpointStatus"] == "InService"
    assert re.fullmatch(rf"{STACK}-Endpoint-[A-Za-z0-9]{{12}}", name)
    assert outputs(stacks) == {"Name": name, "Url": f"https://example.org/{name}"}
    resources = stacks.describe_stack_resources(StackName=STACK)["StackResources"]
    ids = {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in resources}
    assert ids["Endpoint"] == endpoint["EndpointArn"]
    assert set(ids) == {"Model", "EndpointConfig", "Endpoint"}
    tags = account.sagemaker.list_tags(ResourceArn=endpoint["EndpointArn"])["Tags"]
    found = {tag["Key"]: tag["Value"] for tag in tags}
    assert (found["mine"], found["team"]) == ("yes", "x")
    assert found["aws:cloudformation:stack-name"] == STACK
    assert found["aws:cloudformation:logical-id"] == "Endpoint"
    assert account.invoke(name, {})["path"] == "/invocations"


def test_given_names_are_used(account: Account, stacks: Any) -> None:
    names = {"Model": "m", "EndpointConfig": "c", "Endpoint": "e"}
    given = {kind: {f"{kind}Name": name} for kind, name in names.items()}
    assert create(stacks, template(**given))["Name"] == "e"
    assert account.describe("e")["EndpointConfigName"] == "c"
    stacks.update_stack(StackName=STACK, TemplateBody=template({"SM_VLLM_SEED": "7"}, **given))
    with pytest.raises(WaiterError, match="UPDATE_ROLLBACK_COMPLETE"):
        stacks.get_waiter("stack_update_complete").wait(StackName=STACK, WaiterConfig=EVERY_SECOND)
    assert "cannot update a stack when a custom-named resource requires replacing. Rename m" in (
        reasons(stacks)
    )


def test_an_update_replaces_the_configuration_and_updates_the_endpoint(
    account: Account, stacks: Any
) -> None:
    name = create(stacks, template())["Name"]
    old = account.describe(name)["EndpointConfigName"]
    stacks.update_stack(StackName=STACK, TemplateBody=template({"SM_VLLM_SEED": 7}))
    until(lambda: account.describe(name)["EndpointStatus"], lambda status: status == "Updating")
    assert outputs(stacks)["Name"] == name
    stacks.get_waiter("stack_update_complete").wait(StackName=STACK, WaiterConfig=EVERY_SECOND)
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


def test_an_update_that_fails_rolls_back(account: Account, stacks: Any) -> None:
    name = create(stacks, template())["Name"]
    old = account.describe(name)["EndpointConfigName"]
    stacks.update_stack(StackName=STACK, TemplateBody=template({"FAKE_ENGINE": "crash"}))
    with pytest.raises(WaiterError, match="UPDATE_ROLLBACK_COMPLETE"):
        stacks.get_waiter("stack_update_complete").wait(StackName=STACK, WaiterConfig=EVERY_SECOND)
    assert "the head does not belong to this target" in reasons(stacks)
    assert account.describe(name)["EndpointConfigName"] == old
    assert account.invoke(name, {})["path"] == "/invocations"
    assert len(account.sagemaker.list_models()["Models"]) == 1
    stacks.update_stack(StackName=STACK, TemplateBody=template({"SM_VLLM_SEED": "7"}))
    stacks.get_waiter("stack_update_complete").wait(StackName=STACK, WaiterConfig=EVERY_SECOND)


@pytest.mark.parametrize(
    ("body", "role", "reason"),
    [
        (template({"FAKE_ENGINE": "crash"}), ROLE, "the head does not belong to this target"),
        (template(), f"{ROLE}-none", "Could not assume role"),
        (template(EndpointConfig={"EndpointConfigName": "a_b"}), ROLE, "validation error"),
    ],
)
def test_a_creation_that_fails_deletes_what_it_created(
    account: Account, stacks: Any, body: str, role: str, reason: str
) -> None:
    with pytest.raises(WaiterError, match="ROLLBACK_COMPLETE"):
        create(stacks, body, Parameters=[{"ParameterKey": "Role", "ParameterValue": role}])
    assert reason in reasons(stacks)
    assert described(stacks)["StackStatus"] == "ROLLBACK_COMPLETE"
    assert account.sagemaker.list_endpoints()["Endpoints"] == []
    assert account.sagemaker.list_models()["Models"] == []
    with pytest.raises(ClientError, match="ROLLBACK_COMPLETE state and can not be updated"):
        stacks.update_stack(StackName=STACK, TemplateBody=template())


def test_a_change_set_creates_and_updates_as_deploy_does(account: Account, stacks: Any) -> None:
    for kind, waiter, environment in (
        ("CREATE", "stack_create_complete", {}),
        ("UPDATE", "stack_update_complete", {"SM_VLLM_SEED": "7"}),
    ):
        name = {"StackName": STACK, "ChangeSetName": f"of-{kind.lower()}"}
        stacks.create_change_set(**name, TemplateBody=template(environment), ChangeSetType=kind)
        stacks.execute_change_set(**name)
        assert described(stacks)["StackStatus"] == f"{kind}_IN_PROGRESS"
        stacks.get_waiter(waiter).wait(StackName=STACK, WaiterConfig=EVERY_SECOND)
    assert "--seed" in account.invoke(outputs(stacks)["Name"], {})["argv"]
    name = {"StackName": STACK, "ChangeSetName": "of-nothing"}
    role = [{"ParameterKey": "Role", "UsePreviousValue": True}]
    body = template({"SM_VLLM_SEED": "7"})
    stacks.create_change_set(**name, TemplateBody=body, Parameters=role, ChangeSetType="UPDATE")
    found = stacks.describe_change_set(**name)
    assert (found["Status"], "didn't contain changes" in found["StatusReason"]) == ("FAILED", True)


def test_a_stack_in_progress_is_not_updated_but_deleted(account: Account, stacks: Any) -> None:
    stacks.create_stack(StackName=STACK, TemplateBody=template())
    with pytest.raises(ClientError, match="CREATE_IN_PROGRESS state and can not be updated"):
        stacks.update_stack(StackName=STACK, TemplateBody=template({"SM_VLLM_SEED": "7"}))
    delete(stacks)
    with pytest.raises(ClientError, match="does not exist"):
        described(stacks)
