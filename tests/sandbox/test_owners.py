"""Deployments of templates and of other machines, as every machine finds them by their tags."""

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import WaiterError

from tests.sandbox.owners import (
    Machine,
    check_a_foreign_deployment,
    left_of,
    read_tags,
    upload_weights,
)
from tests.sandbox.sandboxes import BUCKET, ROLE, Account

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("room")]
EVERY_SECOND = {"Delay": 1}


@pytest.fixture
def machine(account: Account, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "first", account)


ACCOUNT_VALUES = {"ExecutionRoleArn": ROLE, "ModelBucket": BUCKET}


def change_stack(machine: Machine, change: str, stack: str, template: str, **more: str) -> Any:
    """Create or update a stack, and wait until it is complete; CloudFormation's client."""
    stacks = machine.account.client("cloudformation")
    values = {**ACCOUNT_VALUES, **more}
    parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()]
    call = getattr(stacks, f"{change}_stack")
    call(StackName=stack, TemplateBody=template, Parameters=parameters)
    waiter = stacks.get_waiter(f"stack_{change}_complete")
    waiter.wait(StackName=stack, WaiterConfig=EVERY_SECOND)
    return stacks


def outputs_of(stacks: Any, stack: str) -> dict[str, str]:
    (description,) = stacks.describe_stacks(StackName=stack)["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in description["Outputs"]}


def test_what_a_stack_made(machine: Machine, account: Account, tmp_path: Path) -> None:
    name = "by-stack"
    upload_weights(account, name)
    template = machine.render("cloudformation", name, tmp_path / "stack") / "template.yaml"
    stacks = change_stack(machine, "create", "chat", template.read_text())
    assert read_tags(account, name)["peagle:stack"] == "chat"
    check_a_foreign_deployment(machine, name, "CloudFormation stack chat")
    made = outputs_of(stacks, "chat")
    assert (made["EndpointName"], "DashboardURL" in made) == (name, False)
    assert made["EndpointConfigName"] == account.describe(name)["EndpointConfigName"]
    options = ("--k", "4", "--observe", "--instance-count", "2")
    changed = machine.render("cloudformation", name, tmp_path / "changed", *options)
    text = (changed / "template.yaml").read_text()
    with pytest.raises(WaiterError):  # the endpoint has made its log, as on AWS
        change_stack(machine, "update", "chat", text)
    change_stack(machine, "update", "chat", text, LogExists="true")
    shown = machine.json("status", name)
    assert (shown["k"], shown["instance_count"]) == (4, 2)
    outputs = outputs_of(stacks, "chat")
    assert outputs["DashboardURL"].endswith(f"#dashboards/dashboard/peagle-{name}-us-east-1")
    assert outputs["ModelName"] != made["ModelName"]
    stacks.delete_stack(StackName="chat")
    stacks.get_waiter("stack_delete_complete").wait(StackName="chat", WaiterConfig=EVERY_SECOND)
    assert left_of(account, name) == []
