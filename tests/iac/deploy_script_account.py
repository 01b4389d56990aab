"""An account of moto, and what a rendered ``deploy.py`` finds and leaves in it.

A plugin of the pytest that test_deploy_script.py starts for ``deploy_script_*_in_moto.py``.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.sagemaker.exceptions import AWSValidationException
from moto.sagemaker.models import FakeEndpointConfig
from moto.sagemaker.responses import SageMakerResponse

from peagle.data import data_folder
from peagle.planning import Plan
from peagle.render.formats.boto3 import script
from tests.unit.rendering.plans import BUCKET, ROLE

CAPTURED = "captured-prompts"
ENDS = ("--ends-at", "2040-01-01T00:00:00")
OBSERVED = {"observe": True, "log_retention": 7, "ttl": 3600, "min_instances": 1,
            "max_instances": 2}  # fmt: skip


def _update_endpoint(response: SageMakerResponse) -> str:
    """moto has none; as AWS, it moves the endpoint to another configuration."""
    name = response._get_param("EndpointName")
    endpoint = response.sagemaker_backend.endpoints[name]
    endpoint.endpoint_config_name = response._get_param("EndpointConfigName")
    return json.dumps({"EndpointArn": endpoint.arn})


def _no_component(_: SageMakerResponse) -> str:
    """moto has none; AWS answers so about one that does not exist."""
    raise AWSValidationException("Could not find inference component")


def _shared_clients() -> Callable[..., Any]:
    """``boto3.Session.client`` that makes one client of each service and region in a test: the
    script makes one wherever it needs it, which was a third of these tests' time."""
    make, made = boto3.Session.client, dict[tuple[str, str | None], Any]()

    def client(
        session: boto3.Session, service: str, region_name: str | None = None, **options: Any
    ) -> Any:
        if options:
            return make(session, service, region_name, **options)
        key = service, region_name or session.region_name
        if key not in made:
            made[key] = make(session, service, key[1])
        return made[key]

    return client


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(SageMakerResponse, "update_endpoint", _update_endpoint, raising=False)
    describe = "describe_inference_component"
    monkeypatch.setattr(SageMakerResponse, describe, _no_component, raising=False)
    monkeypatch.setattr(FakeEndpointConfig, "validate_instance_type", lambda *_: None)  # knows few
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        monkeypatch.setattr(boto3.Session, "client", _shared_clients())
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=BUCKET)
        yield


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A target and a head of the user's own."""
    tiny = data_folder("model_catalog") / "peagle" / "tiny"
    for part, source in {"target": "target", "drafter": "p-eagle"}.items():
        shutil.copytree(tiny / source, tmp_path / part)
    return {part: tmp_path / part for part in ("target", "drafter")}


def words_with(folders: dict[str, Path]) -> list[str]:
    """The script's arguments for these folders."""
    named = (word for part, path in folders.items() for word in (f"--{part}", str(path)))
    return ["--role", ROLE, "--bucket", BUCKET, *named]


def loaded(plan: Plan) -> dict[str, Any]:
    """The script's functions and constants, in this process."""
    module: dict[str, Any] = {"__name__": "deploy"}
    exec(compile(script(plan), "deploy.py", "exec"), module)
    return module


def run(
    plan: Plan, words: list[str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:  # fmt: skip
    """What the script prints, in this process."""
    monkeypatch.setattr(sys, "argv", ["deploy.py", *words])
    module = loaded(plan)
    capsys.readouterr()
    code = module["main"]()
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, ""), printed.err[:300]
    return printed.out.splitlines()


def left() -> dict[str, list[str]]:
    """The names of everything in the account that the script can make."""

    def client(service: str) -> Any:
        return boto3.client(service, region_name="us-east-1")

    sagemaker, cloudwatch = client("sagemaker"), client("cloudwatch")
    objects = client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", [])
    targets = client("application-autoscaling").describe_scalable_targets(
        ServiceNamespace="sagemaker"
    )
    found = {
        "objects": [one["Key"] for one in objects],
        "models": [one["ModelName"] for one in sagemaker.list_models()["Models"]],
        "configurations": [
            one["EndpointConfigName"]
            for one in sagemaker.list_endpoint_configs()["EndpointConfigs"]
        ],
        "endpoints": [one["EndpointName"] for one in sagemaker.list_endpoints()["Endpoints"]],
        "targets": [one["ResourceId"] for one in targets["ScalableTargets"]],
        "alarms": [one["AlarmName"] for one in cloudwatch.describe_alarms()["MetricAlarms"]],
        "dashboards": [
            one["DashboardName"] for one in cloudwatch.list_dashboards()["DashboardEntries"]
        ],
        "logs": [one["logGroupName"] for one in client("logs").describe_log_groups()["logGroups"]],
        "schedules": [one["Name"] for one in client("scheduler").list_schedules()["Schedules"]],
        "roles": [one["RoleName"] for one in client("iam").list_roles()["Roles"]],
    }
    return {kind: names for kind, names in found.items() if names}


def deny(
    monkeypatch: pytest.MonkeyPatch, *operations: str, code: str = "AccessDeniedException"
) -> list[str]:
    """AWS denies these operations from now on; the list gets the names of all that are called."""
    called: list[str] = []
    make = BaseClient._make_api_call

    def call(client: Any, operation: str, given: dict[str, Any]) -> Any:
        called.append(operation)
        if operation in operations:
            denied = {"Error": {"Code": code, "Message": "no"}}
            raise ClientError(denied, operation)
        return make(client, operation, given)

    monkeypatch.setattr(BaseClient, "_make_api_call", call)
    return called
