"""``make aws-smoke`` goes through in the sandbox, and cleans up when it does not.

Its commands run in this process here, but one."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.aws import smoke as aws_smoke
from tests.sandbox.sandboxes import Account, Sandbox
from tests.support import run_in_process

pytestmark = pytest.mark.sandbox


@pytest.fixture
def address(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Account:
    """This process's boto3, and the commands of a smoke, reach the sandbox as AWS."""
    for name, value in sandbox.json("sandbox", "env").items():
        monkeypatch.setenv(name, value)

    def here(
        smoke: aws_smoke.Smoke, home: Path, arguments: Sequence[str]
    ) -> subprocess.CompletedProcess[str]:
        return run_in_process(*arguments, env={**os.environ, "PEAGLE_HOME": str(home)})

    monkeypatch.setattr(aws_smoke.Smoke, "peagle", here)
    return Account(sandbox)


def _inventory(account: Account) -> list[str]:
    return [
        *(endpoint["EndpointName"] for endpoint in account.sagemaker.list_endpoints()["Endpoints"]),
        *(model["ModelName"] for model in account.sagemaker.list_models()["Models"]),
        *(bucket["Name"] for bucket in account.s3.list_buckets()["Buckets"]),
        *(group["logGroupName"] for group in account.logs.describe_log_groups()["logGroups"]),
    ]


def test_the_life_of_a_deployment_goes_through(address: Account, tmp_path: Path) -> None:
    output = tmp_path / "smoke.json"
    code = aws_smoke.main(["--yes", "--output", str(output)])
    seen = json.loads(output.read_text("utf-8"))
    steps = {step["what"]: step for step in seen["steps"]}
    assert code == 0, seen
    assert steps["an update whose proof fails"]["code"] == 3
    assert steps["the revision before serves"]["saw"]["k"] == 3
    assert steps["prove there"]["saw"]["passed"] is True
    assert (seen["failure"], seen["left"]) == (None, [])
    assert _inventory(address) == []
