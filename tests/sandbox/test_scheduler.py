"""The end time of a deployment in the sandbox: EventBridge Scheduler deletes the endpoint, and
``peagle reap`` what remains."""

import json
import time
from typing import Any

import pytest

from peagle.aws.client import Clock
from tests.sandbox.sandboxes import Account, Sandbox, until

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
