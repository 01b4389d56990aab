"""Finds the execution role."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.errors import CloudError, Fix, UserError
from peagle.render.resources import trust_policy

SERVICE = "sagemaker.amazonaws.com"

_ROLE_ARN = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+")
_ASSUMED = re.compile(r"arn:aws[\w-]*:sts::\d{12}:assumed-role/(?P<name>[^/]+)/")
_LIST_ROLES = Fix("list the roles", ("aws", "iam", "list-roles"))

DEFAULT_ROLE = "peagle-execution"
"""The role that infra/README.md creates; the policies there let a role be passed whose name begins
with ``peagle-``."""


@dataclass(frozen=True)
class Role:
    """The role's ARN, and why it was chosen ("" when the user named it)."""

    arn: str
    because: str = ""

    @property
    def name(self) -> str:
        return self.arn.rpartition("/")[2]


def find_role(aws: Aws, name_or_arn: str | None, purpose: str = "peagle") -> Role:
    """The role ``name_or_arn``, else that of the credentials if SageMaker may assume it (as in
    SageMaker Studio), else the account's with the best name, of the ``purpose`` if one names it.
    Raises UserError when there is none."""
    if name_or_arn and _ROLE_ARN.fullmatch(name_or_arn):
        return Role(name_or_arn)
    if name_or_arn:
        try:
            role = aws.call("iam", "get_role", RoleName=name_or_arn)["Role"]
        except Missing as error:
            message = f"there is no role {name_or_arn!r} in account {aws.account}"
            raise UserError(message, _LIST_ROLES, "unknown-role") from error
        return Role(role["Arn"])
    if assumed := _ASSUMED.match(aws.caller["Arn"]):
        with suppress(CloudError):
            role = aws.call("iam", "get_role", RoleName=assumed["name"])["Role"]
            if trusts_sagemaker(role):
                return Role(role["Arn"], "the role of these credentials")
    try:
        roles = [role for role in aws.items("iam", "list_roles", "Roles") if trusts_sagemaker(role)]
    except AccessDenied as denied:
        message = "no execution role is specified, and these credentials may not list roles"
        raise UserError(message, "pass --role or set PEAGLE_ROLE", "no-role") from denied
    if not roles:
        policy = json.dumps(trust_policy(aws.account, SERVICE))
        raise UserError(
            f"SageMaker may assume no role of account {aws.account}; the endpoint needs one",
            Fix(
                "create one with this command, then give it the policy AmazonSageMakerFullAccess "
                "or infra/iam/execution-role-policy.json",
                ("aws", "iam", "create-role", "--role-name", DEFAULT_ROLE,
                 "--assume-role-policy-document", policy),
            ),
            "no-role",
        )  # fmt: skip

    def rank(role: dict[str, Any]) -> tuple[int, str]:
        name = role["RoleName"].lower()
        words = (purpose, "peagle", "sagemaker", "")
        return next(place for place, word in enumerate(words) if word in name), name

    because = f"the best name match among {len(roles)} that SageMaker may assume; --role changes it"
    if len(roles) == 1:
        because = "the only one that SageMaker may assume"
    return Role(min(roles, key=rank)["Arn"], because)


def trusts_sagemaker(role: dict[str, Any]) -> bool:
    """Whether the trust policy of a role, as IAM describes it, lets SageMaker assume it. Its
    conditions are not looked at."""
    document = role.get("AssumeRolePolicyDocument") or {}
    for statement in _as_list(document.get("Statement", [])):
        principal = statement.get("Principal")
        services = _as_list(principal.get("Service", [])) if isinstance(principal, dict) else []
        if statement.get("Effect") == "Allow" and SERVICE in services:
            return True
    return False


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
