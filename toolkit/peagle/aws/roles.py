"""The execution role of an endpoint: which one is used, and whether SageMaker may assume it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.errors import CloudError, Fix, UserError

SERVICE = "sagemaker.amazonaws.com"

_ROLE_ARN = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+")
_ROLE_NAME = re.compile(r"[\w+=,.@-]{1,64}")
_ASSUMED = re.compile(r"arn:aws[\w-]*:sts::\d{12}:assumed-role/(?P<name>[^/]+)/")
_PREFERRED = ("peagle", "sagemaker")
_LIST_ROLES = Fix("list the roles", ("aws", "iam", "list-roles"))

DEFAULT_ROLE = "peagle-execution"
"""The role that infra/README.md creates; the policies there let a role be passed whose name begins
with ``peagle-``."""


@dataclass(frozen=True)
class Role:
    """The role's ARN, and why it was chosen ("" when the user named it).

    ``trusted``: whether SageMaker may assume it, where that is known already.
    """

    arn: str
    because: str = ""
    trusted: bool | None = None

    @property
    def name(self) -> str:
        return self.arn.rpartition("/")[2]

    @property
    def partition(self) -> str:
        return self.arn.split(":")[1]

    @property
    def account(self) -> str:
        return self.arn.split(":")[4]


def find_role(aws: Aws, given: str | None) -> Role:
    """The endpoint's role.

    ``given`` is an ARN or a role's name, which is used as it is. Else: the role of the
    credentials, if SageMaker may assume it (as in SageMaker Studio), or a role of the account that
    SageMaker may assume, preferably one with peagle or SageMaker in its name. Raises UserError when
    there is none.
    """
    if given:
        return Role(given) if _ROLE_ARN.fullmatch(given) else _by_name(aws, given)
    if assumed := _ASSUMED.match(aws.caller["Arn"]):
        try:
            found = aws.call("iam", "get_role", RoleName=assumed["name"])["Role"]
        except CloudError:
            found = {}
        if trusts_sagemaker(found):
            return Role(found["Arn"], "the role of these credentials", trusted=True)
    return _of_account(aws)


def _by_name(aws: Aws, name: str) -> Role:
    if not _ROLE_NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a role ARN or a role name", _LIST_ROLES, "invalid-role")
    try:
        found = aws.call("iam", "get_role", RoleName=name)["Role"]
    except Missing as error:
        raise UserError(
            f"there is no role {name!r} in account {aws.account}", _LIST_ROLES, "unknown-role"
        ) from error
    return Role(found["Arn"], trusted=trusts_sagemaker(found))


def _of_account(aws: Aws) -> Role:
    try:
        roles = [role for role in aws.items("iam", "list_roles", "Roles") if trusts_sagemaker(role)]
    except AccessDenied as denied:
        raise UserError(
            "no execution role is specified, and these credentials are not allowed to list roles",
            "pass --role or set PEAGLE_ROLE",
            "no-role",
        ) from denied
    if not roles:
        raise UserError(
            f"SageMaker may assume no role of account {aws.account}; the endpoint needs one",
            _creation(aws),
            "no-role",
        )
    best = min(roles, key=_preference)
    several = (
        f"the best name match among {len(roles)} that SageMaker may assume; --role selects another"
    )
    because = several if len(roles) > 1 else "the only one that SageMaker may assume"
    return Role(best["Arn"], because, trusted=True)


def _creation(aws: Aws) -> Fix:
    return Fix(
        "create one with this command, then give it the policy AmazonSageMakerFullAccess or "
        "infra/iam/execution-role-policy.json",
        (
            "aws", "iam", "create-role", "--role-name", DEFAULT_ROLE,
            "--assume-role-policy-document", json.dumps(trust_policy(aws.account)),
        ),
    )  # fmt: skip


def trust_policy(account: str, service: str = SERVICE) -> dict[str, Any]:
    """The trust policy of a role: the service may assume it, for this account only."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": service},
                "Action": "sts:AssumeRole",
                "Condition": {"StringEquals": {"aws:SourceAccount": account}},
            }
        ],
    }


def _preference(role: dict[str, Any]) -> tuple[int, str]:
    name = role["RoleName"].lower()
    ranks = [rank for rank, word in enumerate(_PREFERRED) if word in name]
    return (min(ranks, default=len(_PREFERRED)), name)


def trusts_sagemaker(role: dict[str, Any]) -> bool:
    """Whether the trust policy of a role, as IAM describes it, lets SageMaker assume it for the
    role's own account."""
    document = role.get("AssumeRolePolicyDocument") or {}
    try:
        account = role["Arn"].split(":")[4] if role else ""
        return any(_allows(one, account) for one in _as_list(document.get("Statement", [])))
    except (AttributeError, TypeError, LookupError):  # a document that IAM itself would reject
        return False


def _allows(statement: dict[str, Any], account: str) -> bool:
    principal = statement.get("Principal")
    services = _as_list(principal.get("Service", [])) if isinstance(principal, dict) else []
    equal = (statement.get("Condition") or {}).get("StringEquals") or {}
    return (
        statement.get("Effect") == "Allow"
        and not {"sts:AssumeRole", "sts:*", "*"}.isdisjoint(_as_list(statement.get("Action", [])))
        and SERVICE in services
        and account in _as_list(equal.get("aws:SourceAccount", account))
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
