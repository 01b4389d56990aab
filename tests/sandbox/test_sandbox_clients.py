"""AWS clients work with the sandbox: plain boto3, the AWS CLI, Terraform,"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.sandboxes import (
    IMAGE,
    INSTANCE_TYPE,
    ROLE,
    Account,
    Sandbox,
    folder_on_s3,
)

pytestmark = pytest.mark.sandbox

PROVIDER = "registry.terraform.io/hashicorp/aws"
MIRROR_PLACES = ("/opt/*", "/usr/share/terraform/*", "/usr/local/share/terraform/*")


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


def provider_mirror() -> Path | None:
    """A local folder with Terraform's AWS provider, for use without a network."""
    for pattern in MIRROR_PLACES:
        for folder in sorted(Path("/").glob(pattern[1:])):
            if (folder / PROVIDER).is_dir():
                return folder
    return None


def terraform_document(model: str) -> dict[str, Any]:
    variant = {
        "variant_name": "AllTraffic",
        "model_name": "${aws_sagemaker_model.m.name}",
        "initial_instance_count": 1,
        "instance_type": INSTANCE_TYPE,
        "container_startup_health_check_timeout_in_seconds": "${var.timeout}",
    }
    source = {"s3_uri": model, "s3_data_type": "S3Prefix", "compression_type": "None"}
    container = {"image": IMAGE, "model_data_source": [{"s3_data_source": [source]}]}
    batch = {"maximum_batch_size": [{"type": "INSTANCE_COUNT", "value": 1}]}
    rolling = {"rolling_update_policy": [{**batch, "wait_interval_in_seconds": 0}]}
    return {
        "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws"}}},
        "variable": {"timeout": {"default": 600}},
        "resource": {
            "aws_sagemaker_model": {
                "m": {
                    "name": "terraformed",
                    "execution_role_arn": ROLE,
                    "primary_container": [container],
                    "tags": {"a": "b"},
                }
            },
            "aws_sagemaker_endpoint_configuration": {
                "c": {
                    "name_prefix": "terraformed-",
                    "production_variants": [variant],
                    "lifecycle": {"create_before_destroy": True},
                }
            },
            "aws_sagemaker_endpoint": {
                "e": {
                    "name": "terraformed",
                    "endpoint_config_name": "${aws_sagemaker_endpoint_configuration.c.name}",
                    "deployment_config": [rolling],
                    "tags": {"a": "b"},
                }
            },
            "aws_appautoscaling_target": {
                "t": {
                    "min_capacity": 1,
                    "max_capacity": 2,
                    "service_namespace": "sagemaker",
                    "scalable_dimension": "sagemaker:variant:DesiredInstanceCount",
                    "resource_id": "endpoint/${aws_sagemaker_endpoint.e.name}/variant/AllTraffic",
                }
            },
        },
    }


@pytest.mark.skipif(
    not (shutil.which("terraform") and provider_mirror()),
    reason="Terraform or an offline mirror of its AWS provider is not on this machine",
)
def test_terraform_applies_plans_no_change_updates_and_destroys(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    document = terraform_document(folder_on_s3("tiny/")["S3Uri"])
    (tmp_path / "main.tf.json").write_text(json.dumps(document))
    settings = tmp_path / "settings.tfrc"
    mirror = json.dumps(str(provider_mirror()))
    settings.write_text(f"provider_installation {{ filesystem_mirror {{ path = {mirror} }} }}")

    def terraform(*arguments: str) -> subprocess.CompletedProcess[str]:
        return in_shell(
            sandbox,
            "terraform",
            *arguments,
            "-no-color",
            folder=tmp_path,
            TF_CLI_CONFIG_FILE=str(settings),
            TF_IN_AUTOMATION="1",
        )

    def succeeds(*arguments: str) -> None:
        done = terraform(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    succeeds("init")
    succeeds("apply", "-auto-approve")
    first = account.describe("terraformed")
    assert first["EndpointStatus"] == "InService"
    succeeds("plan", "-detailed-exitcode")  # 2 would mean that something changes
    succeeds("apply", "-auto-approve", "-var", "timeout=900")
    second = account.describe("terraformed")
    assert second["EndpointStatus"] == "InService"
    assert second["EndpointConfigName"] != first["EndpointConfigName"]
    succeeds("destroy", "-auto-approve")
    account.wait_until_deleted("terraformed")  # the provider does not wait for the engine's end
    for listing, key in (("list_endpoints", "Endpoints"), ("list_models", "Models")):
        left = getattr(account.sagemaker, listing)()[key]
        assert [one for one in left if "terraformed" in json.dumps(one, default=str)] == []
