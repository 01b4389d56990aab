"""What is looked at before anything is created: role, quota, price, name, prefix, image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.errors import AccessDenied
from peagle.aws.iam import find_role
from peagle.deploy.preflight import Preflight
from peagle.errors import CloudError, Refused, UserError
from peagle.findings import warning
from tests.support import raises_code
from tests.unit.aws.cloud import ACCOUNT, ROLE, TRUSTS_SAGEMAKER, service_error
from tests.unit.aws.plans import a_plan, another, prefix_of
from tests.unit.aws.test_rollout_alarms import rolled_out
from tests.unit.aws.world import NAME, READING, World


def _codes(found: Preflight) -> dict[str, str]:
    return {finding.code: finding.level for finding in found.findings}


def _role(name: str, trust: Any = TRUSTS_SAGEMAKER) -> dict[str, Any]:
    arn = f"arn:aws:iam::{ACCOUNT}:role/{name}"
    return {"RoleName": name, "Arn": arn, "AssumeRolePolicyDocument": trust}


def test_preflight_changes_nothing(world: World, head: Path) -> None:
    found = world.preflight(a_plan(head))

    assert found.change == "create"
    assert _codes(found) == {}
    assert all(call.startswith(READING) for call in world.cloud.calls)
    assert world.record() is None


@pytest.mark.parametrize(("quota", "code"), [(0, "quota-zero"), (1, "quota-too-small")])
def test_a_quota_below_the_need_is_an_error(world: World, quota: int, code: str) -> None:
    world.cloud.quotas = {"ml.g5.xlarge for endpoint usage": quota}

    found = world.preflight(a_plan(instance_count=2))

    assert _codes(found) == {code: "error"}
    assert "'ml.g5.xlarge for endpoint usage'" in found.findings[0].message
    assert "Service Quotas" in found.findings[0].fix


def test_an_unknown_quota_is_a_warning(world: World) -> None:
    world.cloud.quotas = {}

    assert _codes(world.preflight(a_plan())) == {"quota-unknown": "warning"}


def test_a_quota_that_other_endpoints_use_up_is_an_error(world: World) -> None:
    world.cloud.quotas = {"ml.g5.xlarge for endpoint usage": 2}
    world.deploy(a_plan(instance_count=2))

    found = world.preflight(a_plan(name="another"))

    assert _codes(found) == {"quota-in-use": "error"}
    expected = "2 are in use by peagle-pair, so 0 of the 1 needed are available"
    assert expected in found.findings[0].message


def test_instances_of_an_interrupted_deploy_are_not_counted_against_it(world: World) -> None:
    world.cloud.quotas = {"ml.g5.xlarge for endpoint usage": 1}
    world.cloud.next_scripts = [[("Failed", "no capacity")]]
    with pytest.raises(CloudError):
        world.deploy(a_plan())
    world.cloud.endpoints[NAME].script = [("Creating", None)]

    assert _codes(world.preflight(a_plan())) == {}


def test_an_update_beyond_the_quota_is_refused_as_aws_would(world: World) -> None:
    world.cloud.quotas = {"ml.g5.xlarge for endpoint usage": 1}
    world.deploy(a_plan())

    (found,) = world.preflight(another(a_plan())).findings
    assert (found.code, found.level) == ("quota-tight", "error")
    assert found.message == (
        "the update needs 1 more meanwhile; the quota 'ml.g5.xlarge for endpoint usage' is 1, and "
        "1 is in use by peagle-pair"
    )
    assert "--rollout" not in found.fix  # one instance has no smaller steps
    assert _codes(world.preflight(a_plan())) == {}


@pytest.mark.parametrize(
    ("quota", "fits"),
    [
        (6, "--rollout rolling and rollout_step: 2"),
        (5, "--rollout rolling and rollout_step: 1"),
        (4, ""),
    ],
)
def test_a_rollout_that_fits_the_quota_is_named(world: World, quota: int, fits: str) -> None:
    world.cloud.quotas = {"ml.g5.xlarge for endpoint usage": 8}
    world.deploy(a_plan(instance_count=4, price_per_hour_usd=5.632))
    world.cloud.quotas = {"ml.g5.xlarge for endpoint usage": quota}
    plan = rolled_out(another(a_plan(instance_count=4, price_per_hour_usd=5.632)))
    assert plan.rollout is not None
    whole = plan.rollout.model_copy(update={"extra_instances": 4})

    (found,) = world.preflight(plan.model_copy(update={"rollout": whole})).findings

    assert (found.code, found.level) == ("quota-tight", "error")
    assert "needs 4 more meanwhile" in found.message
    assert fits in found.fix
    assert bool(fits) is ("--rollout" in found.fix)
    assert "request an increase" in found.fix


def test_an_unknown_price_is_looked_up(world: World) -> None:
    world.cloud.price = 2.5

    found = world.preflight(a_plan(price_per_hour_usd=None, price_date=None, instance_count=2))

    assert found.desired.plan.price_per_hour_usd == 5.0
    assert found.desired.plan.price_date is not None
    assert _codes(found) == {}


def test_an_unknown_price_is_a_warning(world: World) -> None:
    found = world.preflight(a_plan(price_per_hour_usd=None, price_date=None))

    assert _codes(found) == {"price-unknown": "warning"}


def test_the_price_of_another_region_is_replaced_or_remains_a_warning(world: World) -> None:
    plan = a_plan(findings=(warning("price-of-another-region", "price", "of us-east-1", "look"),))

    assert _codes(world.preflight(plan)) == {"price-of-another-region": "warning"}
    world.cloud.price = 2.0
    found = world.preflight(plan)
    assert _codes(found) == {}
    assert found.desired.plan.price_per_hour_usd == 2.0


def test_the_name_of_a_foreign_endpoint_is_an_error(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.tags[world.cloud.endpoints[NAME].arn] = {"peagle:id": "another-owner"}

    assert _codes(world.preflight(another(a_plan())))["name-in-use"] == "error"


@pytest.fixture
def other_machine(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Goes on on a machine without records."""
    return lambda: monkeypatch.setenv("PEAGLE_HOME", str(tmp_path / "another"))


def test_another_machine_finds_the_same_plan_in_service(
    world: World, other_machine: Callable[[], None]
) -> None:
    world.deploy(a_plan())
    other_machine()

    assert world.preflight(a_plan()).change == "nothing"


def test_another_machine_updates_the_endpoint(
    world: World, other_machine: Callable[[], None]
) -> None:
    world.deploy(a_plan())
    other_machine()

    assert world.preflight(another(a_plan())).change == "update"
    record = world.deploy(another(a_plan()))

    assert [resource.type for resource in record.resources].count("Endpoint") == 1
    assert record.serving is not None
    assert world.cloud.endpoints[NAME].config == record.serving.name


@pytest.mark.thorough
def test_a_record_follows_an_update_of_another_machine(
    world: World, own_home: Path, other_machine: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy(a_plan())
    other_machine()
    world.deploy(another(a_plan()))
    monkeypatch.setenv("PEAGLE_HOME", str(own_home))

    assert world.preflight(another(a_plan())).change == "nothing"
    assert world.preflight(a_plan()).change == "update"


def test_without_the_permission_to_find_it_an_endpoint_is_not_changed(
    world: World, other_machine: Callable[[], None]
) -> None:
    world.deploy(a_plan())
    other_machine()

    def deny(operation: str) -> None:
        if operation == "get_resources":
            raise service_error("AccessDeniedException", "no", "GetResources")

    world.cloud.before = deny

    with pytest.raises(AccessDenied):
        world.preflight(a_plan())


def test_other_files_below_the_prefix_are_an_error(world: World, head: Path) -> None:
    bucket = f"peagle-sagemaker-us-east-1-{ACCOUNT}"
    world.cloud.buckets[bucket] = {f"{prefix_of(head)}drafter/other.bin": {}}

    found = world.preflight(a_plan(head))

    assert _codes(found) == {"prefix-in-use": "error"}
    assert "other.bin" in found.findings[0].message


def test_warm_starts_beside_the_uploaded_folders_are_not_foreign_files(
    world: World, head: Path
) -> None:
    bucket, folder = f"peagle-sagemaker-us-east-1-{ACCOUNT}", f"{prefix_of(head)}warm"
    world.cloud.buckets[bucket] = {f"{folder}/{'0a' * 16}.{end}": {} for end in ("json", "tar.gz")}

    assert _codes(world.preflight(a_plan(head))) == {}


def test_a_missing_folder_of_weights_is_a_user_error(world: World, tmp_path: Path) -> None:
    with raises_code("no-such-folder", UserError):
        world.preflight(a_plan(tmp_path / "nothing"))


def test_an_empty_folder_of_weights_is_a_user_error(world: World, tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("")

    with raises_code("empty-folder", UserError):
        world.preflight(a_plan(tmp_path))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (service_error("403", "Forbidden", "HeadBucket"), "bucket-denied"),
        (service_error("PermanentRedirect", "301", "HeadBucket"), "bucket-region"),
        ({"BucketRegion": "eu-west-1"}, "bucket-region"),
    ],
)
def test_a_bucket_of_another_account_or_region_is_refused(
    world: World, head: Path, answer: Any, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def head_bucket(**_: Any) -> Any:
        if isinstance(answer, dict):
            return answer
        raise answer

    monkeypatch.setattr(world.cloud, "_head_bucket", head_bucket)

    with raises_code(code, Refused) as refused:
        world.preflight(a_plan(head), bucket="theirs")

    assert "--bucket" in refused.value.fix


def test_a_given_role_arn_is_used_unchecked(world: World) -> None:
    assert find_role(world.aws, ROLE).arn == ROLE
    assert find_role(world.aws, "peagle-execution").arn == ROLE


@pytest.mark.parametrize("given", ["no such role", "missing", "arn:aws:iam::1:role/x", "a/b"])
def test_a_wrong_role_is_a_user_error(world: World, given: str) -> None:
    with pytest.raises(UserError) as wrong:
        find_role(world.aws, given)

    assert wrong.value.command == ("aws", "iam", "list-roles")


def test_of_several_roles_the_best_name_wins(world: World) -> None:
    world.cloud.roles = [
        _role("aaa"),
        _role("AmazonSageMaker-ExecutionRole-1"),
        _role("Peagle"),
        _role("lambda", {"Statement": []}),
    ]

    found = find_role(world.aws, None)

    assert found.arn.endswith("/Peagle")
    assert "among 3" in found.because
    assert "--role" in found.because


def test_in_studio_the_role_of_the_credentials_is_used(world: World) -> None:
    world.cloud.roles = [_role("peagle"), _role("studio-role")]
    world.cloud.caller_arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/studio-role/SageMaker"

    assert find_role(world.aws, None).arn.endswith("/studio-role")


def test_without_permission_to_list_roles_one_must_be_named(world: World) -> None:
    def deny(operation: str) -> None:
        if operation == "list_roles":
            raise service_error("AccessDenied", "not authorized", "ListRoles")

    world.cloud.before = deny

    with pytest.raises(UserError) as asked:
        find_role(world.aws, None)

    assert "PEAGLE_ROLE" in asked.value.fix


def test_a_second_deploy_keeps_the_role_of_the_first(world: World) -> None:
    world.cloud.roles = [_role("sagemaker-b")]
    world.deploy(a_plan())
    world.cloud.roles.append(_role("peagle-a"))

    assert world.preflight(a_plan()).change == "nothing"
    assert world.preflight(a_plan(), role="peagle-a").change == "update"


def test_expired_credentials_end_the_preflight(world: World) -> None:
    def expire(operation: str) -> None:
        raise service_error("ExpiredTokenException", "The security token has expired", "X")

    world.cloud.before = expire

    with raises_code("ExpiredTokenException", CloudError) as expired:
        world.preflight(a_plan())

    assert expired.value.exit_code == 4
