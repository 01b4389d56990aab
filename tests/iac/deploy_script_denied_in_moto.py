"""``deploy.py`` against moto where AWS denies calls or an update fails: see
deploy_script_account.py."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from moto.sagemaker.exceptions import AWSValidationException
from moto.sagemaker.responses import SageMakerResponse

from peagle.plans import plan_pair
from tests.iac.deploy_script_account import (
    CAPTURED,
    ENDS,
    OBSERVED,
    deny,
    left,
    loaded,
    run,
    words_with,
)
from tests.unit.rendering.plans import CATALOG

VERSIONS = {"models", "configurations", "objects"}
ENDED = {"schedules", "roles"}


@pytest.mark.parametrize(
    ("operation", "stays", "named"),
    [
        ("DescribeScalableTargets", {"targets"}, "the automatic scaling of"),
        ("DescribeAlarms", {"alarms"}, "the alarms of"),
        ("DescribeInferenceComponent", set(), "inference component"),
        ("DescribeEndpoint", {"endpoints", *VERSIONS, *ENDED}, "endpoint"),
        ("DeleteEndpoint", {"endpoints", *VERSIONS, *ENDED}, "endpoint"),
        ("GetDashboard", {"dashboards"}, "dashboard"),
        ("DescribeLogGroups", {"logs"}, "log group /aws/sagemaker/"),
        ("ListEndpointConfigs", {"configurations"}, "the endpoint configurations of"),
        ("GetBucketLifecycleConfiguration", {"configurations"}, "endpoint configuration"),
        ("ListTags", VERSIONS, "the models of"),
        ("ListObjectsV2", {"models", "objects"}, "model"),
        ("GetSchedule", ENDED, "the scheduled deletion of"),
    ],
)
def test_what_is_denied_is_named_and_the_rest_deleted(
    operation: str, stays: set[str], named: str, account: None, folders: dict[str, Path],
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    captured = {"capture_data": f"s3://{CAPTURED}/prompts/", "capture_retention": 7}
    head = {"drafter": str(folders["drafter"])}
    plan = plan_pair("tiny", {**OBSERVED, **captured, **head}, CATALOG)
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=CAPTURED)
    run(plan, [*words_with(folders), *ENDS], capsys, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["deploy.py", "--delete"])

    with monkeypatch.context() as denied:
        deny(denied, operation)
        assert loaded(plan)["main"]() == 1

    assert left().keys() == stays
    for line in capsys.readouterr().err.splitlines():
        assert re.match(r"error: cannot remove .+, which may still exist: .+ no$", line)
        assert named in line or operation == "ListTags"
        assert operation in line
    run(plan, ["--delete"], capsys, monkeypatch)
    assert left() == {}


def test_an_endpoint_that_sagemaker_refuses_to_delete_keeps_what_it_serves(
    account: None, folders: dict[str, Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It does while there are copies, which this role may not see."""
    plan = plan_pair("tiny", {"drafter": str(folders["drafter"])}, CATALOG)
    run(plan, words_with(folders), capsys, monkeypatch)
    before = left()
    monkeypatch.setattr(sys, "argv", ["deploy.py", "--delete"])
    deny(monkeypatch, "DeleteEndpoint", code="ValidationException")

    assert loaded(plan)["main"]() == 1

    assert left() == before
    printed = capsys.readouterr()
    assert f"error: cannot remove endpoint {plan.name}," in printed.err
    assert (
        f"keep configurations, models, weights and scheduled deletion of {plan.name}" in printed.out
    )


EARLIER = ("DescribeScalableTargets", "DescribeAlarms", "GetDashboard", "ListTags", "GetSchedule")


def test_an_update_warns_of_what_an_earlier_plan_may_have_and_goes_on(
    account: None, folders: dict[str, Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given, head = words_with(folders), {"drafter": str(folders["drafter"])}
    full, plain = (plan_pair("tiny", {**more, **head}, CATALOG) for more in (OBSERVED, {"k": 3}))
    run(full, [*given, *ENDS], capsys, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["deploy.py", *given])

    with monkeypatch.context() as denied:
        deny(denied, *EARLIER)
        assert loaded(plain)["main"]() == 0

    printed = capsys.readouterr()
    assert f"update endpoint {plain.name}" in printed.out
    warned = [line.partition(",")[0] for line in printed.err.splitlines()]
    assert warned == [
        f"warning: cannot remove {what}"
        for what in (
            f"the scheduled deletion of {plain.name}",
            f"the automatic scaling of {plain.name}",
            f"the earlier alarms of {plain.name}",
            f"dashboard {plain.name}-us-east-1",
        )
    ]


@pytest.mark.parametrize("status", ["rolled back", "refused"])
def test_the_earlier_plan_keeps_what_it_has_where_the_update_fails(
    status: str, account: None, folders: dict[str, Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its end too, which meanwhile is later than any update."""
    given, head = words_with(folders), {"drafter": str(folders["drafter"])}
    full, plain = (plan_pair("tiny", {**more, **head}, CATALOG) for more in (OBSERVED, {"k": 3}))
    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S")
    run(full, [*given, "--ends-at", soon], capsys, monkeypatch)
    before, during = left(), list[str]()

    def update(response: SageMakerResponse) -> str:
        during.append(end_of_schedule())
        if status == "refused":
            raise AWSValidationException("no quota")
        return "{}"

    monkeypatch.setattr(SageMakerResponse, "update_endpoint", update)
    monkeypatch.setattr(sys, "argv", ["deploy.py", *given])
    assert loaded(plain)["main"]() == 1

    after = left()
    assert {kind: after[kind] for kind in ("targets", "alarms", "dashboards", *ENDED)} == {
        kind: before[kind] for kind in ("targets", "alarms", "dashboards", *ENDED)
    }
    latest = (datetime.now(UTC) + timedelta(hours=7)).strftime("at(%Y-%m-%dT%H:%M:%S)")
    assert during[0] > latest
    assert end_of_schedule() == f"at({soon})"


def end_of_schedule() -> str:
    scheduler = boto3.client("scheduler", region_name="us-east-1")
    (found,) = scheduler.list_schedules()["Schedules"]
    expression: str = scheduler.get_schedule(Name=found["Name"])["ScheduleExpression"]
    return expression


CHANGES = ("DeregisterScalableTarget", "UpdateEndpoint", "RegisterScalableTarget")


def test_another_instance_type_ends_scaling_for_the_update_only(
    account: None, folders: dict[str, Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """SageMaker refuses another type for a variant that is registered."""
    given = words_with(folders)
    scaled = {"drafter": str(folders["drafter"]), "min_instances": 1, "max_instances": 2}
    first = plan_pair("tiny", scaled, CATALOG)
    types = ("ml.g5.xlarge", "ml.g6.xlarge")
    other = next(one for one in types if one != first.instance_type)
    run(first, given, capsys, monkeypatch)
    for changed, ends in ({"k": 3}, False), ({"instance_type": other}, True):
        called = deny(monkeypatch)
        run(plan_pair("tiny", {**scaled, **changed}, CATALOG), given, capsys, monkeypatch)
        steps = [one for one in called if one in CHANGES]
        assert steps == list(CHANGES if ends else CHANGES[1:])
