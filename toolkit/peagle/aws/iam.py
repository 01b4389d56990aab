"""Finds the execution role, and checks it and the image before anything is created."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.ecr import find_image
from peagle.aws.errors import AccessDenied, Missing
from peagle.checks.facts import EcrImage, parse_ecr_image
from peagle.errors import CloudError, Fix, UserError
from peagle.findings import Finding, error, warning
from peagle.render.resources import trust_policy

SERVICE = "sagemaker.amazonaws.com"

_ROLE_ARN = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+")
_ROLE_NAME = re.compile(r"[\w+=,.@-]{1,64}")
_ASSUMED = re.compile(r"arn:aws[\w-]*:sts::\d{12}:assumed-role/(?P<name>[^/]+)/")
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


def find_role(aws: Aws, name_or_arn: str | None, purpose: str = "peagle") -> Role:
    """The role ``name_or_arn``, else that of the credentials if SageMaker may assume it (as in
    SageMaker Studio), else the account's with the best name, of the ``purpose`` if one names it.
    Raises UserError when there is none."""
    if name_or_arn and _ROLE_ARN.fullmatch(name_or_arn):
        return Role(name_or_arn)
    if name_or_arn:
        if not _ROLE_NAME.fullmatch(name_or_arn):
            message = f"{name_or_arn!r} is not a role ARN or a role name"
            raise UserError(message, _LIST_ROLES, "invalid-role")
        try:
            role = aws.call("iam", "get_role", RoleName=name_or_arn)["Role"]
        except Missing as error:
            message = f"there is no role {name_or_arn!r} in account {aws.account}"
            raise UserError(message, _LIST_ROLES, "unknown-role") from error
        return Role(role["Arn"], trusted=trusts_sagemaker(role))
    if assumed := _ASSUMED.match(aws.caller["Arn"]):
        with suppress(CloudError):
            role = aws.call("iam", "get_role", RoleName=assumed["name"])["Role"]
            if trusts_sagemaker(role):
                return Role(role["Arn"], "the role of these credentials", trusted=True)
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
    return Role(min(roles, key=rank)["Arn"], because, trusted=True)


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


def role_findings(aws: Aws, role: Role) -> Iterator[Finding]:
    """Whether the role exists in this account, and SageMaker may assume it."""
    trusted = role.trusted
    if trusted is None:
        try:
            trusted = trusts_sagemaker(aws.call("iam", "get_role", RoleName=role.name)["Role"])
        except Missing:
            message = f"there is no role {role.name!r} in account {aws.account}"
            fix = Fix("choose another --role; this lists them", ("aws", "iam", "list-roles"))
            yield error("role-missing", "role", message, fix)
            return
        except AccessDenied as denied:
            message = f"not known whether SageMaker may assume {role.name!r}: {denied.message}"
            yield warning("role-unknown", "role", message, "check it with other credentials")
            return
    if not trusted:
        policy = json.dumps(trust_policy(aws.account, SERVICE))
        yield error(
            "role-not-trusted", "role", f"SageMaker may not assume the role {role.name!r}",
            Fix(
                f"its trust policy must allow sts:AssumeRole to {SERVICE}; this replaces it",
                ("aws", "iam", "update-assume-role-policy", "--role-name", role.name,
                 "--policy-document", policy),
            ),
        )  # fmt: skip


def presence_findings(aws: Aws, image: str) -> Iterator[Finding]:
    """Whether the image's tag or digest exists in ECR, in this account or in AWS's own."""
    ecr_image = parse_ecr_image(image)
    if ecr_image is None:
        return
    try:
        digest = find_image(aws, ecr_image)
    except CloudError as failed:
        yield warning(
            "image-unknown", "image",
            f"not known whether the image {image} exists: {failed.message}",
            Fix("allow ecr:BatchGetImage to these credentials, or check it", _listing(ecr_image)),
        )  # fmt: skip
        return
    if digest is None:
        yield error(
            "image-missing", "image", f"ECR in {ecr_image.region} has no image {image}",
            Fix("push it, or choose another --image; this lists the tags", _listing(ecr_image)),
        )  # fmt: skip


def _listing(image: EcrImage) -> tuple[str, ...]:
    return (
        "aws", "ecr", "list-images", "--registry-id", image.account, "--repository-name",
        image.repository, "--region", image.region,
    )  # fmt: skip
