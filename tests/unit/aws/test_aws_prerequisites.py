"""Before anything is created: the role, what it may read, and the image."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peagle.aws.iam import SERVICE, find_role, trusts_sagemaker
from peagle.deploy.preflight import Preflight
from peagle.findings import Finding
from peagle.render.resources import trust_policy
from tests.unit.aws.cloud import ACCOUNT, ROLE
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import World

FOR_MACHINES = {
    "Statement": {
        "Effect": "Allow",
        "Action": ["sts:AssumeRole"],
        "Principal": {"Service": "ec2.amazonaws.com"},
    }
}


def one(found: Preflight, code: str) -> Finding:
    (finding,) = (finding for finding in found.findings if finding.level != "note")
    assert finding.code == code
    return finding


@pytest.mark.parametrize("given", [ROLE, "peagle-execution"])
def test_a_role_that_sagemaker_may_not_assume_is_an_error_with_its_remedy(
    world: World, given: str
) -> None:
    world.cloud.roles[0]["AssumeRolePolicyDocument"] = FOR_MACHINES

    found = one(world.preflight(a_plan(), role=given), "role-not-trusted")

    assert found.level == "error"
    assert found.command is not None
    document = json.loads(found.command[-1])
    assert document == trust_policy(ACCOUNT, SERVICE)
    assert trusts_sagemaker({"Arn": ROLE, "AssumeRolePolicyDocument": document})


@pytest.mark.parametrize(
    ("action", "trusted"), [("sts:*", True), ("*", True), ("sts:TagSession", False)]
)
def test_a_trust_policy_may_name_more_than_one_action(action: str, trusted: bool) -> None:
    document = trust_policy(ACCOUNT, SERVICE)
    document["Statement"][0]["Action"] = action

    assert trusts_sagemaker({"Arn": ROLE, "AssumeRolePolicyDocument": document}) is trusted


@pytest.mark.parametrize(
    ("accounts", "trusted"), [("999999999999", False), (["999999999999", ACCOUNT], True)]
)
def test_a_trust_policy_may_be_for_other_accounts_only(accounts: Any, trusted: bool) -> None:
    role = {"Arn": ROLE, "AssumeRolePolicyDocument": trust_policy(accounts, SERVICE)}

    assert trusts_sagemaker(role) is trusted


def test_the_role_of_an_earlier_deploy_is_checked_before_an_update(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.roles.clear()

    assert world.preflight(a_plan()).findings == ()  # nothing to change
    assert one(world.preflight(another(a_plan())), "role-missing").level == "error"


def test_a_role_of_the_name_that_the_policies_allow_is_proposed(world: World) -> None:
    world.cloud.roles.clear()

    with pytest.raises(Exception, match="may assume no role") as none:
        find_role(world.aws, None)

    command = none.value.command  # type: ignore[attr-defined]
    assert command[:5] == ("aws", "iam", "create-role", "--role-name", "peagle-execution")
    assert json.loads(command[-1]) == trust_policy(ACCOUNT, SERVICE)
