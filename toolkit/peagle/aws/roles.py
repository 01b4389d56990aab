"""The execution role: the one that was given, our own, or one that SageMaker may take.

The role that CodeBuild takes while it builds an image: it may do that and nothing else.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from peagle.aws import image_records as images
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.errors import CloudError, UserError

SERVICE = "sagemaker.amazonaws.com"

_ROLE_ARN = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+")
_ROLE_NAME = re.compile(r"[\w+=,.@-]{1,64}")
_ASSUMED = re.compile(r"arn:aws[\w-]*:sts::\d{12}:assumed-role/(?P<name>[^/]+)/")
_PREFERRED = ("peagle", "sagemaker")

_CREATE_FIX = (
    "create one: aws iam create-role --role-name peagle-sagemaker --assume-role-policy-document "
    '\'{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":'
    f'"{SERVICE}"}},"Action":"sts:AssumeRole"}}]}}\', then aws iam attach-role-policy '
    "--role-name peagle-sagemaker --policy-arn arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"
)


@dataclass(frozen=True)
class Role:
    """The role's ARN, and how it came to be chosen ("" when the user named it)."""

    arn: str
    because: str = ""


def find_role(aws: Aws, given: str | None) -> Role:
    """The role that the endpoint will have.

    ``given`` is an ARN or a role's name. Else: the role we act as, if SageMaker may take it (so
    it is in SageMaker Studio), or a role of the account that SageMaker may take, by preference
    one with peagle or SageMaker in its name. Raises UserError when there is none.
    """
    if given:
        return _given(aws, given)
    return _own(aws) or _of_account(aws)


def _given(aws: Aws, given: str) -> Role:
    if _ROLE_ARN.fullmatch(given):
        return Role(given)
    if not _ROLE_NAME.fullmatch(given):
        raise UserError(
            f"{given!r} is neither a role's ARN nor its name", "see `aws iam list-roles`"
        )
    try:
        found = aws.call("iam", "get_role", RoleName=given)["Role"]
    except Missing as error:
        raise UserError(
            f"there is no role {given!r} in account {aws.account}", "see `aws iam list-roles`"
        ) from error
    if not trusts_sagemaker(found):
        raise UserError(
            f"SageMaker may not take the role {given!r}",
            f"its trust policy must allow sts:AssumeRole to {SERVICE}",
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
    return Role(found["Arn"], "the role you act as") if trusts_sagemaker(found) else None


def _of_account(aws: Aws) -> Role:
    try:
        roles = [role for role in aws.items("iam", "list_roles", "Roles") if trusts_sagemaker(role)]
    except AccessDenied as denied:
        raise UserError(
            "no execution role is named, and these credentials may not look for one",
            "name it with --role or PEAGLE_ROLE",
        ) from denied
    if not roles:
        raise UserError(
            f"no role in account {aws.account} can be taken by SageMaker; the endpoint needs one",
            _CREATE_FIX,
        )
    best = min(roles, key=_preference)
    many = f"the best by name of {len(roles)} that SageMaker may take; --role names another"
    return Role(best["Arn"], many if len(roles) > 1 else "the only one that SageMaker may take")


def _preference(role: dict[str, Any]) -> tuple[int, str]:
    name = role["RoleName"].lower()
    ranks = [rank for rank, word in enumerate(_PREFERRED) if word in name]
    return (min(ranks, default=len(_PREFERRED)), name)


def trusts_sagemaker(role: dict[str, Any]) -> bool:
    """Whether the role's trust policy lets SageMaker take it."""
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


_POLICY = "build-one-image"
_SERVICE = "codebuild.amazonaws.com"

LOG_GROUPS = "/aws/codebuild/"
"""Below it CodeBuild writes the log of each project, in a group of the project's name."""


@dataclass(frozen=True)
class Scope:
    """What a role is for: it pushes to ``repository``, reads below ``prefix`` of ``bucket``, and
    writes the log of ``project``."""

    repository: str
    bucket: str
    prefix: str
    project: str


def ensure_role(aws: Aws, name: str, scope: Scope) -> str:
    """The role's ARN; it is made if it is not there, and its policy is written again."""
    try:
        found = aws.call("iam", "get_role", RoleName=name)
    except Missing:
        with images.recorded(aws, "Role", name):
            found = aws.call(
                "iam", "create_role",
                RoleName=name,
                AssumeRolePolicyDocument=json.dumps(_trust(aws)),
                Description="CodeBuild builds images of peagle-toolkit with it",
                Tags=[{"Key": "peagle:toolkit", "Value": "images"}],
            )  # fmt: skip
    document = json.dumps(policy(aws, scope))
    aws.call("iam", "put_role_policy", RoleName=name, PolicyName=_POLICY, PolicyDocument=document)
    return str(found["Role"]["Arn"])


def policy(aws: Aws, scope: Scope) -> dict[str, Any]:
    """What the role may do.

    Pulling is allowed from every account's registry: AWS keeps the runtimes' images in accounts
    of its own, one for each region. GetAuthorizationToken knows no resource.
    """
    partition = str(aws.caller["Arn"]).split(":")[1]
    here = f"{aws.region}:{aws.account}"
    logs = f"arn:{partition}:logs:{here}:log-group:{LOG_GROUPS}{scope.project}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            _allow(["ecr:GetAuthorizationToken"], "*"),
            _allow(
                ["ecr:BatchCheckLayerAvailability", "ecr:GetDownloadUrlForLayer",
                 "ecr:BatchGetImage"],
                f"arn:{partition}:ecr:{aws.region}:*:repository/*",
            ),
            _allow(
                ["ecr:InitiateLayerUpload", "ecr:UploadLayerPart", "ecr:CompleteLayerUpload",
                 "ecr:PutImage"],
                f"arn:{partition}:ecr:{here}:repository/{scope.repository}",
            ),
            _allow(
                ["s3:GetObject", "s3:GetObjectVersion"],
                f"arn:{partition}:s3:::{scope.bucket}/{scope.prefix}*",
            ),
            _allow(
                ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"],
                [logs, f"{logs}:*"],
            ),
        ],
    }  # fmt: skip


def _allow(actions: list[str], resource: str | list[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resource}


def _trust(aws: Aws) -> dict[str, Any]:
    """Only for projects of this account: nobody else's CodeBuild may act for us."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": _SERVICE},
                "Action": "sts:AssumeRole",
                "Condition": {"StringEquals": {"aws:SourceAccount": aws.account}},
            }
        ],
    }
