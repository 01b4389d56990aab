"""AWS's clients work with the sandbox, each with the variables of ``peagle sandbox env`` alone.

boto3 is that of the tests; the others have environments of their own below ``.venv/clients``, which
are made once. Terraform is in test_owners_terraform.py, CloudFormation in test_sandbox_stacks.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.sandboxes import IMAGE, INSTANCE_TYPE, ROLE, Sandbox

pytestmark = pytest.mark.sandbox
ENVIRONMENTS = Path(__file__).parents[2] / ".venv" / "clients"


def in_shell(sandbox: Sandbox, *command: str, folder: Path) -> str:
    """What a command prints in a shell that has no AWS variables but those of ``env``."""
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    variables |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    script = f'{sandbox.peagle("sandbox", "env").stdout}\nexec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *command],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(requirement: str) -> Path:
    """The programs of an environment with this package of Python."""
    folder = ENVIRONMENTS / requirement
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = (folder / "bin" / "pip", "--disable-pip-version-check", "install", "--quiet")
        subprocess.run([*pip, requirement], check=True)
        (folder / "complete").touch()
    return folder / "bin"


def test_boto3_needs_only_the_variables(sandbox: Sandbox, tmp_path: Path, live: str) -> None:
    code = (
        "import boto3; print(*[e['EndpointName'] for e in"
        " boto3.client('sagemaker').list_endpoints()['Endpoints']])"
    )
    assert in_shell(sandbox, sys.executable, "-c", code, folder=tmp_path).split() == [live]


@pytest.mark.exhaustive
def test_the_aws_cli(sandbox: Sandbox, tmp_path: Path, live: str) -> None:
    program = installed("awscli==1.45.11") / "aws"

    def aws(*arguments: str) -> str:
        return in_shell(sandbox, str(program), *arguments, folder=tmp_path)

    name = ("--endpoint-name", live)
    described = json.loads(aws("sagemaker", "describe-endpoint", *name, "--output", "json"))
    assert described["EndpointStatus"] == "InService"
    (tmp_path / "question.json").write_text('{"a": 1}')
    body = ("--body", "fileb://question.json", "answer.json")
    aws("sagemaker-runtime", "invoke-endpoint", *name, *body)
    assert json.loads((tmp_path / "answer.json").read_text())["body"] == '{"a": 1}'
    (tmp_path / "weights").write_text("w")
    aws("s3", "cp", "weights", "s3://models/cli/weights")
    assert "weights" in aws("s3", "ls", "s3://models/cli/")
    group = f"/aws/sagemaker/Endpoints/{live}"
    assert "fake: INFO starting" in aws("logs", "filter-log-events", "--log-group-name", group)


PROGRAM = """
import json, sys
from sagemaker.core.resources import Endpoint, EndpointConfig, Model
from sagemaker.core.shapes import ContainerDefinition, ProductionVariant
from sagemaker.core.shapes import ModelDataSource, S3ModelDataSource

image, role, instance_type = sys.argv[1:]
weights = S3ModelDataSource(s3_uri="s3://models/tiny/", s3_data_type="S3Prefix",
                            compression_type="None")
container = ContainerDefinition(
    image=image, model_data_source=ModelDataSource(s3_data_source=weights))
model = Model.create(model_name="by-sdk-3", execution_role_arn=role, primary_container=container)
variant = ProductionVariant(variant_name="v", model_name="by-sdk-3", initial_instance_count=1,
                            instance_type=instance_type)
config = EndpointConfig.create(endpoint_config_name="by-sdk-3", production_variants=[variant])
endpoint = Endpoint.create(endpoint_name="by-sdk-3", endpoint_config_name="by-sdk-3")
endpoint.wait_for_status("InService", poll=1)
response = endpoint.invoke(body=json.dumps({"a": 2}), content_type="application/json")
open("answer.json", "wb").write(response.body.read())
endpoint.delete()
endpoint.wait_for_delete(poll=1)
config.delete()
model.delete()
"""


@pytest.mark.exhaustive
@pytest.mark.usefixtures("account")
def test_the_sagemaker_sdk(sandbox: Sandbox, tmp_path: Path) -> None:
    python = installed("sagemaker-core==2.27.0") / "python"
    arguments = (IMAGE, ROLE, INSTANCE_TYPE)
    in_shell(sandbox, str(python), "-c", PROGRAM, *arguments, folder=tmp_path)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert json.loads(answer["body"]) == {"a": 2}
