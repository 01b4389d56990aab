"""The policies in infra/iam allow what the toolkit does, and nothing can be left out of them."""

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peagle.aws.iam import DEFAULT_ROLE, SERVICE
from peagle.render.resources import trust_policy
from tests.golden import assert_golden
from tests.unit.aws.cloud import ACCOUNT
from tests.unit.policies.accesses import Call, condition_keys, resource_forms
from tests.unit.policies.evaluation import POLICIES, Access, denied, is_allowed, listed, statements
from tests.unit.policies.forbidden import FORBIDDEN, ROLES, to
from tests.unit.policies.runs import Runs, all_runs

pytestmark = pytest.mark.thorough

ROOT = POLICIES.parents[1]

COMMANDS = {
    "image-policy": {"image", "destroy --images"},
    "execution-role-policy": {"SageMaker"},
    "execution-role-vpc-policy": {"SageMaker in a VPC"},
    "scaling-policy": {"scaling"},
    "limit-policy": {"deploy with an end", "drift of an end"},
    "training-policy": {"train"},
    "training-role-policy": {"SageMaker trains"},
}
"""Policy -> the runs that it is for; the deploy policy is for all others."""

READING = {"plan --online", "drift", "drift of an end", "drift with scaling"}
"""The runs that the policy to read is for, beside the others."""

WITH_SCALING = ("deploy with scaling", "drift with scaling", "scale")
"""Runs that need the deploy policy and the scaling policy."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with pytest.MonkeyPatch.context() as patch:
        yield all_runs(tmp_path_factory.mktemp("runs"), patch)


def needed(runs: Runs, policy: str) -> list[Access]:
    """What the runs need that the policy is for."""
    others = set().union(*COMMANDS.values())
    commands = COMMANDS.get(policy, set(runs) - others) - set(WITH_SCALING)
    if policy == "read-policy":
        commands = READING
    needs = {access.text: access for command in sorted(commands) for access in runs[command]}
    if policy in ("deploy-policy", "scaling-policy"):
        lacking = denied(allowed_in("deploy-policy"), both(runs))
        mine = [item for item in both(runs) if (item in lacking) is (policy == "scaling-policy")]
        needs |= {access.text: access for access in mine}
    return list(needs.values())


def both(runs: Runs) -> list[Access]:
    """What the runs need for which a user has both policies."""
    return [access for command in WITH_SCALING for access in runs[command]]


def allowed_in(policy: str) -> list[dict[str, Any]]:
    """The statements of the policy, for the accounts of the tests."""
    return statements(policy, ACCOUNT)


@pytest.mark.parametrize("policy", sorted(FORBIDDEN))
def test_a_policy_allows_what_its_commands_do(runs: Runs, policy: str) -> None:
    assert [access.text for access in denied(allowed_in(policy), needed(runs, policy))] == []


@pytest.mark.parametrize("policy", sorted(FORBIDDEN))
def test_a_policy_allows_nothing_else(policy: str) -> None:
    granted = statements(policy, ACCOUNT)
    assert denied(granted, FORBIDDEN[policy]) == FORBIDDEN[policy]


@pytest.mark.parametrize("policy", sorted(FORBIDDEN))
def test_aws_knows_the_actions_with_these_resources_and_conditions(policy: str) -> None:
    """An action that is not authorized on a resource, or without a condition's key in its request,
    is never allowed by a statement that has them."""
    for statement in statements(policy, ACCOUNT):
        for action in listed(statement["Action"]):
            if action == "sagemaker:CallWithBearerToken":  # newer than the reference
                continue
            for key in (key for each in statement.get("Condition", {}).values() for key in each):
                name = key.partition("/")[0]
                assert {key, f"{name}/${{TagKey}}"} & condition_keys(action), f"{action} {key}"
            resources = listed(statement["Resource"])
            assert "*" in resources or any(fits(each, action) for each in resources), action
        for resource in set(listed(statement["Resource"])) - {"*"}:
            assert any(fits(resource, action) for action in listed(statement["Action"])), resource


def fits(resource: str, action: str) -> bool:
    """Whether the action is authorized on a resource that the pattern matches. The wildcard at the
    end also stands for a log's streams."""
    forms = [re.sub(r"\$\{\w+\}", "[^:]*?", form) for form in resource_forms(action).values()]
    patterns = (resource, f"{resource}:log-stream:*")
    return any(re.fullmatch(form, pattern) for form in forms for pattern in patterns)


@pytest.mark.parametrize("policy", sorted(FORBIDDEN))
@pytest.mark.parametrize("partition", ["aws-us-gov", "aws-cn"])
def test_no_resource_is_of_one_partition_only(policy: str, partition: str) -> None:
    for statement in statements(policy, ACCOUNT, partition):
        for resource in listed(statement["Resource"]):
            assert resource == "*" or resource.startswith(f"arn:{partition}:")


@pytest.mark.parametrize("policy", sorted(FORBIDDEN))
def test_a_policy_is_short_enough_for_iam(policy: str) -> None:
    document = json.dumps(statements(policy, ACCOUNT), separators=(",", ":"))
    assert len(document) < 6000  # 6,144 characters with the frame


def test_sagemaker_assumes_the_role_for_this_account_only() -> None:
    (statement,) = statements("execution-role-trust", ACCOUNT)
    assert [statement] == trust_policy(ACCOUNT, SERVICE)["Statement"]
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": ACCOUNT}}


def test_the_role_that_the_readme_creates_may_be_passed() -> None:
    access = Access("iam:PassRole", f"{ROLES}/{DEFAULT_ROLE}", to("sagemaker"))
    assert is_allowed(statements("deploy-policy", ACCOUNT), access)
    assert f"--role-name {DEFAULT_ROLE} " in (POLICIES.parent / "README.md").read_text()


def test_what_each_command_needs_is_as_recorded(runs: Runs) -> None:
    """``tests/golden/accesses.json``: what a command may call changes only where it is seen."""
    name = re.compile(r"(?<=[a-z0-9]/).*")
    seen = {
        command: sorted(
            {f"{access.action} {name.sub('*', access.resource, count=1)}" for access in required}
        )
        for command, required in runs.items()
    }
    assert_golden("accesses.json", f"{json.dumps(seen, indent=1, sort_keys=True)}\n".encode())


def called(where: Callable[[str], bool]) -> set[str]:
    """The action of every call with literal names, in the selected files of the toolkit. A method
    ``call`` with one name is that of a bucket."""
    operations = set()
    for path in (ROOT / "toolkit" / "peagle").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text())) if where(path.name) else ()
        for node in nodes:
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            names = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
            if node.func.attr == "call" and len(names) == 1 and len(node.args) == 1:
                names.insert(0, "s3")
            if node.func.attr in ("call", "items") and len(names) == 2:
                service, operation = map(str, names)
                operations.add(Call(service, operation, {}, "", "").action)
    return operations


def test_every_call_of_the_toolkit_is_in_a_run(runs: Runs) -> None:
    calls = called(lambda name: name != "refresh.py")
    assert len(calls) > 40
    assert calls - {access.action for accesses in runs.values() for access in accesses} == set()
