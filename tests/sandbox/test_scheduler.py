"""The end time of a deployment in the sandbox: EventBridge Scheduler deletes the endpoint, and
``peagle reap`` what remains."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Clock
from tests.sandbox.owners import Machine, upload_weights
from tests.sandbox.sandboxes import BUCKET, ROLE, Account, Sandbox, until

pytestmark = pytest.mark.sandbox
NAME = "peagle-tiny"
DEPLOY = ("deploy", "tiny", "--instance-type", "ml.g5.xlarge", "--sandbox", "--yes", "--json")
HOUR = 3600.0


@pytest.fixture(scope="module")
def account(sandbox: Sandbox) -> Account:
    return Account(sandbox)


def document(sandbox: Sandbox, *words: str) -> Any:
    done = sandbox.peagle(*words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def schedules(account: Account) -> list[str]:
    scheduler = account.client("scheduler")
    return [schedule["Name"] for schedule in scheduler.list_schedules()["Schedules"]]


def endpoints(account: Account) -> list[str]:
    return [each["EndpointName"] for each in account.sagemaker.list_endpoints()["Endpoints"]]


def test_an_endpoint_ends_by_itself_and_its_remains_are_reaped(
    sandbox: Sandbox, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = document(sandbox, *DEPLOY, "--ttl", "1h")
    assert 0 < deployed["seconds_left"] <= HOUR
    (name,) = schedules(account)
    assert document(sandbox, "reap", "--sandbox", "--dry-run", "--json")["ended"] == []
    assert sandbox.advance_clock(0.9 * HOUR) == []
    assert endpoints(account) == [NAME]
    assert sandbox.advance_clock(0.2 * HOUR) == [name]
    until(lambda: endpoints(account), lambda names: names == [], 20)
    assert schedules(account) == []
    monkeypatch.setattr(Clock, "now", lambda clock: time.time() + 2 * HOUR)
    assert document(sandbox, "status", NAME, "--sandbox", "--json")["state"] == "Ended"
    (reaped,) = document(sandbox, "reap", "--sandbox", "--yes", "--json")["reaped"]
    assert reaped["name"] == NAME
    assert document(sandbox, "list", "--sandbox", "--json")["deployments"] == []
    assert account.sagemaker.list_models()["Models"] == []
    roles = account.client("iam").list_roles()["Roles"]
    assert [role["RoleName"] for role in roles if "ends" in role["RoleName"]] == []


ENDS = "2031-01-31T20:00:00"


@pytest.fixture
def machine(account: Account, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "home", account)


def check_the_end(machine: Machine, name: str) -> None:
    """The end that a template has set."""
    assert machine.row(name)["ends_at"] == f"{ENDS}Z"
    (scheduled,) = schedules(machine.account)
    schedule = machine.account.client("scheduler").get_schedule(Name=scheduled)
    assert schedule["ScheduleExpression"] == f"at({ENDS})"
    assert json.loads(schedule["Target"]["Input"]) == {"EndpointName": name}


def test_a_stack_ends_by_itself(machine: Machine, tmp_path: Path) -> None:
    name, account = "by-stack", machine.account
    upload_weights(account, name)
    folder = machine.render("cloudformation", name, tmp_path / "stack", "--ttl", "8h")
    stacks = account.client("cloudformation")
    values = {"ExecutionRoleArn": ROLE, "ModelBucket": BUCKET, "EndsAt": ENDS}
    stacks.create_stack(
        StackName=name,
        TemplateBody=(folder / "template.yaml").read_text(),
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in values.items()],
        Capabilities=["CAPABILITY_IAM"],
    )
    wait = {"Delay": 1}
    stacks.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig=wait)
    check_the_end(machine, name)
    account.sandbox.advance_clock(6 * 366 * 24 * HOUR)
    until(lambda: endpoints(account), lambda names: names == [], 20)
    assert machine.row(name)["owner"] == f"CloudFormation stack {name}"  # which removes the rest
    stacks.delete_stack(StackName=name)
    stacks.get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig=wait)
    assert schedules(account) == []
