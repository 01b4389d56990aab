"""AWS clients work with the sandbox: plain boto3, the AWS CLI and curl; Terraform does in
test_owners_terraform.py, CloudFormation in test_sandbox_stacks.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.sandboxes import Sandbox

pytestmark = pytest.mark.sandbox


def in_shell(
    sandbox: Sandbox, *command: str, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell that has no AWS variables but those of ``peagle sandbox env``."""
    variables |= {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    variables |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    script = f'{sandbox.peagle("sandbox", "env").stdout}\nexec "$@"'
    return subprocess.run(
        ["sh", "-c", script, "sh", *command],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_boto3_needs_only_the_variables(sandbox: Sandbox, tmp_path: Path, live: str) -> None:
    code = (
        "import boto3; print(*[e['EndpointName'] for e in"
        " boto3.client('sagemaker').list_endpoints()['Endpoints']])"
    )
    shown = in_shell(sandbox, sys.executable, "-c", code, folder=tmp_path)
    assert shown.stdout.split() == [live], shown.stderr


@pytest.mark.skipif(not shutil.which("aws"), reason="the AWS CLI is not on this machine")
def test_the_aws_cli_works(sandbox: Sandbox, tmp_path: Path, live: str) -> None:
    def aws(*arguments: str) -> str:
        done = in_shell(sandbox, "aws", *arguments, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    name = ("--endpoint-name", live)
    described = json.loads(aws("sagemaker", "describe-endpoint", *name, "--output", "json"))
    assert described["EndpointStatus"] == "InService"
    (tmp_path / "question.json").write_text('{"a": 1}')
    aws(
        "sagemaker-runtime",
        "invoke-endpoint",
        *name,
        "--body",
        "fileb://question.json",
        "answer.json",
    )
    assert json.loads((tmp_path / "answer.json").read_text())["body"] == '{"a": 1}'
    (tmp_path / "weights").write_text("w")
    aws("s3", "cp", "weights", "s3://models/cli/weights")
    assert "weights" in aws("s3", "ls", "s3://models/cli/")
    group = f"/aws/sagemaker/Endpoints/{live}"
    assert "fake: INFO starting" in aws("logs", "filter-log-events", "--log-group-name", group)


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not on this machine")
def test_curl_signs_its_requests(sandbox: Sandbox, tmp_path: Path, live: str) -> None:
    key = sandbox.address.key
    shown = in_shell(
        sandbox, "curl", "-sS", "--aws-sigv4", "aws:amz:us-east-1:sagemaker",
        "--user", f"{key.id}:{key.secret}", "-H", "X-Amz-Target: SageMaker.ListEndpoints",
        "-H", "Content-Type: application/x-amz-json-1.1", "-d", "{}", sandbox.address.url,
        folder=tmp_path,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    (endpoint,) = json.loads(shown.stdout)["Endpoints"]
    assert endpoint["EndpointName"] == live
