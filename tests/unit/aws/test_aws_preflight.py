"""What is looked at before anything is created: the role, and what an earlier deploy left."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from peagle.aws.iam import SERVICE, find_role
from peagle.errors import Refused, UserError
from peagle.planning.plan import Capture, Observe
from peagle.render.resources import trust_policy
from tests.support import raises_code
from tests.unit.aws.cloud import ACCOUNT, service_error
from tests.unit.aws.network import refusing
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import World


@pytest.mark.parametrize(("answer", "code"), [
    (service_error("403", "Forbidden", "HeadBucket"), "bucket-denied"),
    ({"BucketRegion": "eu-west-1"}, "bucket-region"),
])  # fmt: skip
def test_a_bucket_of_another_account_or_region_is_refused(
    world: World, head: Path, answer: Any, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def head_bucket(**_: Any) -> Any:
        if isinstance(answer, dict):
            return answer
        raise answer

    monkeypatch.setattr(world.cloud, "_head_bucket", head_bucket)
    with raises_code(code, Refused):
        world.preflight(a_plan(head), bucket="theirs")


def test_captured_data_needs_a_bucket(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Capture(s3_uri="s3://captured/a", percent=100)
    plan = a_plan(observe=Observe(dashboard=False, capture=capture))
    [missing] = world.preflight(plan).findings
    assert (missing.code, missing.level) == ("no-bucket", "error")
    world.cloud.buckets["captured"] = {}
    assert not world.preflight(plan).findings
    monkeypatch.setattr(world.cloud, "_head_bucket", Mock(side_effect=service_error("403", "No")))
    assert not world.preflight(plan).findings  # its owner deletes what is captured
    capture = capture.model_copy(update={"retention_days": 30})
    with raises_code("bucket-denied", Refused):
        world.preflight(a_plan(observe=Observe(dashboard=False, capture=capture)))


@pytest.mark.parametrize("role", ["no such role", "missing", "arn:aws:iam::1:role/x", "a/b"])
def test_a_wrong_role_is_a_user_error(world: World, role: str) -> None:
    with pytest.raises(UserError) as wrong:
        find_role(world.aws, role)
    assert wrong.value.command == ("aws", "iam", "list-roles")


def test_of_several_roles_the_best_name_wins(world: World) -> None:
    world.cloud.roles.clear()
    for name in ("aaa", "AmazonSageMaker-ExecutionRole-1", "Peagle"):
        world.cloud.add_role(name)
    world.cloud.add_role("lambda", {"Statement": []})
    role = find_role(world.aws, None)
    assert role.arn.endswith("/Peagle")
    assert "among 3" in role.because
    assert "--role" in role.because


def test_in_studio_the_role_of_the_credentials_is_used(world: World) -> None:
    world.cloud.add_role("studio-role")
    world.cloud.caller_arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/studio-role/SageMaker"
    assert find_role(world.aws, None).arn.endswith("/studio-role")


def test_a_second_deploy_keeps_the_role_of_the_first(world: World) -> None:
    world.cloud.roles.clear()
    world.cloud.add_role("sagemaker-b")
    world.deploy(a_plan())
    world.cloud.add_role("peagle-a")
    assert world.preflight(a_plan()).change == "nothing"
    assert world.preflight(a_plan(), role="peagle-a").change == "update"


def test_without_a_role_or_the_permission_to_list_them_one_must_be_named(world: World) -> None:
    world.cloud.roles.clear()
    with raises_code("no-role", UserError) as none:
        find_role(world.aws, None)
    command = tuple(none.value.command)
    assert command[:5] == ("aws", "iam", "create-role", "--role-name", "peagle-execution")
    assert json.loads(command[-1]) == trust_policy(ACCOUNT, SERVICE)
    world.cloud.before = refusing("list_roles", "AccessDenied", "not authorized")
    with raises_code("no-role", UserError):
        find_role(world.aws, None)
