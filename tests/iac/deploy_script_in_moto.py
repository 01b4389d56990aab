"""``deploy.py`` against moto: it uploads only what changed, and deletes everything it made.

test_deploy_script.py runs these tests in a process of their own: in the tests' one the sandbox's
SageMaker takes the place of moto's.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.sagemaker.exceptions import AWSValidationException
from moto.sagemaker.models import FakeEndpointConfig
from moto.sagemaker.responses import SageMakerResponse

from peagle.data import data_folder
from peagle.planning import Plan
from peagle.plans import plan_pair
from peagle.render.formats.boto3 import script
from tests.unit.rendering.plans import BUCKET, CATALOG, ROLE

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


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(SageMakerResponse, "update_endpoint", _update_endpoint, raising=False)
    describe = "describe_inference_component"
    monkeypatch.setattr(SageMakerResponse, describe, _no_component, raising=False)
    monkeypatch.setattr(FakeEndpointConfig, "validate_instance_type", lambda *_: None)  # knows few
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
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


def test_it_uploads_what_changed_and_deletes_everything(
    account: None, folders: dict[str, Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def plan_now() -> Plan:
        return plan_pair("tiny", {**OBSERVED, "drafter": str(folders["drafter"])}, CATALOG)

    given = [*words_with(folders), *ENDS]
    plan = plan_now()
    first = run(plan, given, capsys, monkeypatch)
    again = run(plan, given, capsys, monkeypatch)
    assert sum(line.startswith("upload ") for line in first) == len(left()["objects"])
    assert not [line for line in again if re.match(r"upload|create (model|endpoint)|update", line)]

    (folders["drafter"] / "README.md").write_text("changed")
    with pytest.raises(SystemExit):
        run(plan, given, capsys, monkeypatch)
    assert "the folders hold other files" in capsys.readouterr().err
    other = plan_now()
    updated = run(other, given, capsys, monkeypatch)
    assert f"update endpoint {plan.name}" in updated
    made = left()
    assert [len(made[kind]) for kind in ("models", "configurations")] == [2, 2]
    assert set(made) == {
        "objects", "models", "configurations", "endpoints", "targets", "alarms", "dashboards",
        "logs", "schedules", "roles",
    }  # fmt: skip

    boto3.client("s3", region_name="us-east-1").put_object(Bucket=BUCKET, Key="mine", Body=b"x")
    run(other, ["--delete"], capsys, monkeypatch)
    assert left() == {"objects": ["mine"]}
    assert run(other, ["--delete"], capsys, monkeypatch) == []


def test_it_deletes_what_an_earlier_plan_had(
    account: None, folders: dict[str, Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A plan with scaling, alarms, dashboard, schedule and captured data, then one without: its
    script deletes all of it, of this endpoint only."""
    given = words_with(folders)
    head = {"drafter": str(folders["drafter"])}
    captured = {"capture_data": f"s3://{CAPTURED}/prompts/", "capture_retention": 7}
    full = plan_pair("tiny", {**OBSERVED, **captured, **head}, CATALOG)
    plain = plan_pair("tiny", head, CATALOG)
    other = plan_pair("tiny", {**OBSERVED, **head, "name": f"{plain.name}-b"}, CATALOG)
    s3 = boto3.client("s3", region_name="us-east-1")
    s3.create_bucket(Bucket=CAPTURED)
    run(other, [*given, *ENDS], capsys, monkeypatch)
    others = left()
    run(full, [*given, *ENDS], capsys, monkeypatch)
    assert s3.get_bucket_lifecycle_configuration(Bucket=CAPTURED)["Rules"]
    assert left().keys() == others.keys()
    assert all(len(names) > len(others[kind]) for kind, names in left().items())

    run(plain, ["--delete"], capsys, monkeypatch)

    assert left() == others
    with pytest.raises(ClientError, match="NoSuchLifecycleConfiguration"):
        s3.get_bucket_lifecycle_configuration(Bucket=CAPTURED)
    assert run(plain, ["--delete"], capsys, monkeypatch) == []


def test_an_update_ends_what_only_the_earlier_plan_had(
    account: None, folders: dict[str, Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Else the schedule of the earlier plan deletes the endpoint of the present one."""
    given = words_with(folders)
    head = {"drafter": str(folders["drafter"])}
    full, plain = (plan_pair("tiny", {**more, **head}, CATALOG) for more in (OBSERVED, {"k": 3}))
    run(full, [*given, *ENDS], capsys, monkeypatch)
    before = left()

    updated = run(plain, given, capsys, monkeypatch)

    assert f"update endpoint {plain.name}" in updated
    ended = {"targets", "alarms", "dashboards", "schedules", "roles"}
    assert before.keys() - left().keys() == ended
    again = run(plain, given, capsys, monkeypatch)
    assert not [line for line in again if line.startswith(("delete", "deregister"))]


def test_what_may_not_be_looked_at_is_reported_and_the_rest_deleted(
    account: None, folders: dict[str, Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = words_with(folders)
    plan = plan_pair("tiny", {"drafter": str(folders["drafter"])}, CATALOG)
    run(plan, given, capsys, monkeypatch)
    module = loaded(plan)

    def denied(session: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "DescribeAlarms")

    module["delete_alarms"] = denied
    monkeypatch.setattr(sys, "argv", ["deploy.py", "--delete"])

    assert module["main"]() == 1
    assert "may still exist" in capsys.readouterr().err
    assert left() == {}


def test_it_fails_where_s3_keeps_an_object(
    account: None, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plan = plan_pair("tiny", {"drafter": str(folders["drafter"])}, CATALOG)
    module = loaded(plan)
    s3 = boto3.client("s3", region_name="us-east-1")
    prefix = f"{module['UPLOAD_FOLDER']}{plan.name}.0a1b2c3d/"
    s3.put_object(Bucket=BUCKET, Key=f"{prefix}config.json", Body=b"x")
    denied = {"Errors": [{"Key": "k", "Code": "AccessDenied", "Message": "Access Denied"}]}
    monkeypatch.setattr(s3, "delete_objects", lambda **_: denied)

    with pytest.raises(ClientError, match="AccessDenied"):
        module["delete_uploads"](s3, f"s3://{BUCKET}/{prefix}")
