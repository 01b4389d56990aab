"""``deploy.py`` against moto: it uploads only what changed, and deletes everything it made.

test_deploy_script.py runs these tests in a process of their own: in the tests' one the sandbox's
SageMaker takes the place of moto's.
"""

from __future__ import annotations

import re
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from peagle.planning import Plan
from peagle.plans import plan_pair
from tests.iac.deploy_script_account import (
    CAPTURED,
    ENDS,
    OBSERVED,
    left,
    loaded,
    run,
    words_with,
)
from tests.unit.rendering.plans import BUCKET, CATALOG


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
