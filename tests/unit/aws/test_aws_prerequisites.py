"""Before anything is created: the role, what it may read, and the image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.iam import find_role, trust_policy, trusts_sagemaker
from peagle.deploy.preflight import Preflight
from peagle.findings import Finding
from peagle.planning.operation_model import Capture, Observe
from peagle.planning.plan import Plan, Weights
from tests.unit.aws.cloud import ACCOUNT, ROLE, service_error
from tests.unit.aws.network import denied
from tests.unit.aws.plans import a_plan, another, prefix_of
from tests.unit.aws.test_rollout_alarms import rolled_out
from tests.unit.aws.world import World

FOR_MACHINES = {
    "Statement": {
        "Effect": "Allow",
        "Action": ["sts:AssumeRole"],
        "Principal": {"Service": "ec2.amazonaws.com"},
    }
}
MINE = f"peagle-sagemaker-us-east-1-{ACCOUNT}"


def one(found: Preflight, code: str) -> Finding:
    (finding,) = (finding for finding in found.findings if finding.level != "note")
    assert finding.code == code
    return finding


def deny(world: World, *operations: str) -> None:
    world.cloud.before = denied(*operations)


def in_s3(plan: Plan) -> Plan:
    """The plan with its target in a bucket of the user's own."""
    uri = "s3://theirs/models/a/"
    weights = Weights(kind="s3", location=uri, s3_uri=uri, engine_path="/opt/ml/model")
    target = plan.target.model_copy(update={"weights": weights})
    mounts = (plan.mounts or ()) + tuple(
        type(mount)(channel=None, s3_uri=uri) for mount in a_plan(Path()).mounts
    )
    return plan.model_copy(update={"target": target, "mounts": mounts})


def test_a_missing_role_is_an_error(world: World) -> None:
    arn = f"arn:aws:iam::{ACCOUNT}:role/of/nobody"

    found = one(world.preflight(a_plan(), role=arn), "role-missing")

    assert found.level == "error"
    assert "'nobody'" in found.message
    assert found.command == ("aws", "iam", "list-roles")


def test_a_role_of_another_account_is_an_error(world: World) -> None:
    found = world.preflight(a_plan(), role="arn:aws:iam::999999999999:role/theirs")

    assert one(found, "role-of-another-account").level == "error"
    assert not {"get_role", "simulate_principal_policy"} & set(world.cloud.calls)


@pytest.mark.parametrize("given", [ROLE, "peagle-execution"])
def test_a_role_that_sagemaker_may_not_assume_is_an_error_with_its_remedy(
    world: World, given: str
) -> None:
    world.cloud.roles[0]["AssumeRolePolicyDocument"] = FOR_MACHINES

    found = one(world.preflight(a_plan(), role=given), "role-not-trusted")

    assert found.level == "error"
    assert found.command is not None
    document = json.loads(found.command[-1])
    assert document == trust_policy(ACCOUNT)
    assert trusts_sagemaker({"Arn": ROLE, "AssumeRolePolicyDocument": document})


@pytest.mark.parametrize(
    ("action", "trusted"), [("sts:*", True), ("*", True), ("sts:TagSession", False)]
)
def test_a_trust_policy_may_name_more_than_one_action(action: str, trusted: bool) -> None:
    document = trust_policy(ACCOUNT)
    document["Statement"][0]["Action"] = action

    assert trusts_sagemaker({"Arn": ROLE, "AssumeRolePolicyDocument": document}) is trusted


@pytest.mark.parametrize(
    ("accounts", "trusted"), [("999999999999", False), (["999999999999", ACCOUNT], True)]
)
def test_a_trust_policy_may_be_for_other_accounts_only(accounts: Any, trusted: bool) -> None:
    role = {"Arn": ROLE, "AssumeRolePolicyDocument": trust_policy(accounts)}

    assert trusts_sagemaker(role) is trusted


def test_a_role_that_may_not_be_looked_at_is_not_known(world: World) -> None:
    deny(world, "get_role")

    found = one(world.preflight(a_plan(), role=ROLE), "role-unknown")

    assert found.level == "warning"
    assert "not known" in found.message


def test_a_role_found_in_the_account_is_not_looked_at_again(world: World) -> None:
    assert world.preflight(a_plan()).findings == ()
    assert "get_role" not in world.cloud.calls


def test_the_role_of_an_earlier_deploy_is_checked_before_an_update(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.roles.clear()

    assert world.preflight(a_plan()).findings == ()  # nothing to change
    assert one(world.preflight(another(a_plan())), "role-missing").level == "error"


@pytest.mark.parametrize("action", ["s3:GetObject", "s3:ListBucket"])
def test_a_role_that_may_not_read_what_deploy_uploads_is_an_error(
    world: World, head: Path, action: str
) -> None:
    world.cloud.not_allowed = {action}

    found = one(world.preflight(a_plan(head)), "role-cannot-read-weights")

    assert found.level == "error"
    assert f"{action} on arn:aws:s3:::{MINE}" in found.message
    assert found.command is not None
    (statement,) = json.loads(found.command[-1])["Statement"]
    assert f"arn:aws:s3:::{MINE}/{prefix_of(head)}drafter/*" in statement["Resource"]


def test_the_policy_of_a_bucket_may_allow_what_the_roles_policies_do_not(world: World) -> None:
    world.cloud.put("theirs", "models/a/config.json", b'{"architectures": []}')
    world.cloud.put("theirs", "models/a/model.safetensors")
    world.cloud.not_allowed = {"s3:GetObject"}

    found = one(world.preflight(in_s3(a_plan())), "role-cannot-read-weights")

    assert found.level == "warning"
    assert "policy of the bucket theirs" in found.message


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAction", "Throttling"])
def test_what_may_not_be_simulated_is_not_known(world: World, head: Path, code: str) -> None:
    def hook(operation: str) -> None:
        if operation == "simulate_principal_policy":
            raise service_error(code, "no", "SimulatePrincipalPolicy")

    world.cloud.before = hook

    found = one(world.preflight(a_plan(head)), "role-access-unknown")

    assert found.level == "warning"
    assert found.message.startswith("not known whether 'peagle-execution' may read s3://")
    assert "iam:SimulatePrincipalPolicy" in found.fix


REGISTRY = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/peagle"
DIGEST = f"sha256:{28:064}"


def with_image(image: str) -> Plan:
    plan = a_plan()
    return plan.model_copy(update={"runtime": plan.runtime.model_copy(update={"image": image})})


@pytest.mark.parametrize("name", [":0.28.0", f":0.28.0@{DIGEST}", f"@{DIGEST}"])
def test_an_image_that_exists_passes(world: World, name: str) -> None:
    assert world.preflight(with_image(f"{REGISTRY}{name}")).findings == ()


@pytest.mark.parametrize("name", [":0.27.0", "", f":0.28.0@sha256:{1:064}"])
def test_a_missing_tag_or_digest_is_an_error(world: World, name: str) -> None:
    found = one(world.preflight(with_image(f"{REGISTRY}{name}")), "image-missing")

    assert found.level == "error"
    assert f"{REGISTRY}{name}" in found.message
    assert found.command is not None
    assert "list-images" in found.command


def test_an_image_that_may_not_be_looked_at_is_not_known(world: World) -> None:
    deny(world, "batch_get_image")

    found = one(world.preflight(a_plan()), "image-unknown")

    assert found.level == "warning"
    assert "not known whether the image" in found.message


def test_the_images_of_aws_are_looked_up_in_its_registry(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def answer(**parameters: Any) -> Any:
        asked.append(parameters)
        return {"images": [], "failures": [{"failureCode": "ImageNotFound"}]}

    monkeypatch.setattr(world.cloud, "_batch_get_image", answer)
    stock = "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:9.9.9"

    one(world.preflight(with_image(stock)), "image-missing")

    assert asked == [
        {
            "registryId": "763104351884",
            "repositoryName": "vllm",
            "imageIds": [{"imageTag": "9.9.9"}],
        }
    ]


def test_a_role_of_the_name_that_the_policies_allow_is_proposed(world: World) -> None:
    world.cloud.roles.clear()

    with pytest.raises(Exception, match="may assume no role") as none:
        find_role(world.aws, None)

    command = none.value.command  # type: ignore[attr-defined]
    assert command[:5] == ("aws", "iam", "create-role", "--role-name", "peagle-execution")
    assert json.loads(command[-1]) == trust_policy(ACCOUNT)


@pytest.mark.parametrize(
    ("action", "level"),
    [
        ("cloudwatch:DescribeAlarms", "error"),
        ("s3:PutObject", "warning"),
        ("kms:GenerateDataKey", "warning"),
        ("kms:Decrypt", "warning"),
    ],
)
def test_a_role_without_the_permissions_of_rollouts_and_captured_data(
    world: World, action: str, level: str
) -> None:
    key = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/1"
    capture = Capture(s3_uri="s3://theirs/captured/", percent=10, kms_key=key)
    plan = rolled_out(a_plan(), "errors")
    plan = plan.model_copy(update={"observe": Observe(dashboard=False, capture=capture)})
    assert "role-lacks-permission" not in {one.code for one in world.preflight(plan).findings}
    world.cloud.not_allowed = {action}

    found = one(world.preflight(plan), "role-lacks-permission")

    assert found.level == level
    assert action in found.message
    assert found.command is not None
    (statement,) = json.loads(found.command[-1])["Statement"]
    assert statement["Action"] == action
    assert world.preflight(a_plan()).findings == ()


def test_captured_data_goes_below_the_folder_of_the_deployment(world: World) -> None:
    capture = Capture(s3_uri=f"s3://{MINE}/captured", percent=10)
    plan = a_plan().model_copy(update={"observe": Observe(dashboard=False, capture=capture)})
    world.cloud.not_allowed = {"s3:PutObject"}

    found = one(world.preflight(plan), "role-lacks-permission")

    assert found.level == "error"
    assert f"arn:aws:s3:::{MINE}/captured/{plan.name}/*" in found.message
