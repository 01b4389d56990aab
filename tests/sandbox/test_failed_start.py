"""``peagle deploy`` of an engine that runs out of memory while it starts, in the sandbox.

SageMaker takes seconds to notice it and here accepts no deletion until then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.sandbox.sandboxes import Account, Sandbox

pytestmark = pytest.mark.sandbox

NAME = "peagle-tiny"
DEPLOY = ("deploy", "tiny", "--instance-type", "ml.g5.xlarge", "--sandbox", "--yes")
FAILING = ("--env", "FAKE_ENGINE=out-of-memory")


@pytest.fixture
def account(sandbox: Sandbox) -> Iterator[Account]:
    yield Account(sandbox)
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")


def _endpoints(account: Account) -> dict[str, str]:
    listed = account.sagemaker.list_endpoints()["Endpoints"]
    return {endpoint["EndpointName"]: endpoint["EndpointStatus"] for endpoint in listed}


def test_a_fatal_line_ends_the_deploy_and_nothing_remains(account: Account) -> None:
    done = account.sandbox.peagle(*DEPLOY, *FAILING, "--json")

    assert done.returncode == 4
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    cause = f"endpoint {NAME} will never serve: torch.OutOfMemoryError: CUDA out of memory"
    assert lines.index(cause) < lines.index(f"Removing | Endpoint {NAME}")
    assert "non-default args" not in done.stderr
    error = json.loads(lines[-1])["error"]
    assert error["code"] == "will-not-serve"
    assert error["message"].startswith(f"{cause}; removed")
    assert _endpoints(account) == {}
    assert account.sagemaker.list_models()["Models"] == []
    assert account.s3.list_buckets()["Buckets"] == []
    assert account.sandbox.json("list", "--sandbox")["deployments"] == []


@pytest.mark.parametrize(
    ("fault", "state", "code"),
    [
        ("update-rollback-failed", "UpdateRollbackFailed", "update-rollback-failed"),
        ("out-of-service", "OutOfService", "endpoint-out-of-service"),
    ],
)
def test_a_state_that_needs_the_user_has_its_code_and_a_deploy_replaces_the_endpoint(
    account: Account, fault: str, state: str, code: str
) -> None:
    sandbox = account.sandbox
    assert sandbox.peagle(*DEPLOY).returncode == 0
    sandbox.json("sandbox", "fault", "add", "UpdateEndpoint", fault, "--times", "once")

    done = sandbox.peagle(*DEPLOY, "--k", "3", "--json")

    assert (done.returncode, done.stdout) == (4, "")
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["code"] == code
    assert error["fix"].startswith("deploying again deletes the endpoint")
    assert _endpoints(account) == {NAME: state}
    again = sandbox.peagle(*DEPLOY, "--k", "3")
    assert again.returncode == 0, again.stderr
    assert _endpoints(account) == {NAME: "InService"}
