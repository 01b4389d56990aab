"""The execution role: the user's choice, the caller's own, or one that SageMaker may assume."""

from __future__ import annotations

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
_LIST_ROLES = Fix("List the roles", ("aws", "iam", "list-roles"))

_CREATE_FIX = (
    "create one: aws iam create-role --role-name peagle-sagemaker --assume-role-policy-document "
    '\'{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":'
    f'"{SERVICE}"}},"Action":"sts:AssumeRole"}}]}}\', then aws iam attach-role-policy '
    "--role-name peagle-sagemaker --policy-arn arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"
)


@dataclass(frozen=True)
class Role:
    """The role's ARN, and why it was chosen ("" when the user named it)."""

    arn: str
    because: str = ""


def find_role(aws: Aws, given: str | None) -> Role:
    """The endpoint's role.

    ``given`` is an ARN or a role's name. Else: the role of the credentials, if SageMaker may assume
    it (as in SageMaker Studio), or a role of the account that SageMaker may assume, preferably one
    with peagle or SageMaker in its name. Raises UserError when there is none.
    """
    if given:
        return _given(aws, given)
    return _own(aws) or _of_account(aws)


def _given(aws: Aws, given: str) -> Role:
    if _ROLE_ARN.fullmatch(given):
        return Role(given)
    if not _ROLE_NAME.fullmatch(given):
        raise UserError(
            f"{given!r} is neither a role's ARN nor its name", _LIST_ROLES, "invalid-role"
        )
    try:
        found = aws.call("iam", "get_role", RoleName=given)["Role"]
    except Missing as error:
        raise UserError(
            f"there is no role {given!r} in account {aws.account}", _LIST_ROLES, "unknown-role"
        ) from error
    if not trusts_sagemaker(found):
        raise UserError(
            f"SageMaker may not assume the role {given!r}",
            f"its trust policy must allow sts:AssumeRole to {SERVICE}",
            "role-not-trusted",
        )
    return Role(found["Arn"])


def _own(aws: Aws) -> Role | None:
    assumed = _ASSUMED.match(aws.caller["Arn"])
    if assumed is None:
        return None
    try:
        found = aws.call("iam", "get_role", RoleName=assumed["name"])["Role"]
    except CloudError:
        return None
    return Role(found["Arn"], "the role of these credentials") if trusts_sagemaker(found) else None


def _of_account(aws: Aws) -> Role:
    try:
        roles = [role for role in aws.items("iam", "list_roles", "Roles") if trusts_sagemaker(role)]
    except AccessDenied as denied:
        raise UserError(
            "no execution role is named, and these credentials may not list roles",
            "name one with --role or PEAGLE_ROLE",
            "no-role",
        ) from denied
    if not roles:
        raise UserError(
            f"SageMaker may assume no role of account {aws.account}; the endpoint needs one",
            _CREATE_FIX,
            "no-role",
        )
    best = min(roles, key=_preference)
    many = f"the best by name of {len(roles)} that SageMaker may assume; --role names another"
    return Role(best["Arn"], many if len(roles) > 1 else "the only one that SageMaker may assume")


def _preference(role: dict[str, Any]) -> tuple[int, str]:
    name = role["RoleName"].lower()
    ranks = [rank for rank, word in enumerate(_PREFERRED) if word in name]
    return (min(ranks, default=len(_PREFERRED)), name)


def trusts_sagemaker(role: dict[str, Any]) -> bool:
    """Whether the role's trust policy lets SageMaker assume it."""
    document = role.get("AssumeRolePolicyDocument") or {}
    statements = document.get("Statement", []) if isinstance(document, dict) else []
    return any(_allows(statement) for statement in _listed(statements))


def _allows(statement: dict[str, Any]) -> bool:
    principal = statement.get("Principal")
    services = _listed(principal.get("Service", [])) if isinstance(principal, dict) else []
    return (
        statement.get("Effect") == "Allow"
        and "sts:AssumeRole" in _listed(statement.get("Action", []))
        and SERVICE in services
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
