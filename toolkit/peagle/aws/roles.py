"""IAM roles: the execution role of an endpoint, and the role with which CodeBuild builds images."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.image_records import record_resource
from peagle.errors import CloudError, Fix, UserError

SERVICE = "sagemaker.amazonaws.com"

_ROLE_ARN = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+")
_ROLE_NAME = re.compile(r"[\w+=,.@-]{1,64}")
_ASSUMED = re.compile(r"arn:aws[\w-]*:sts::\d{12}:assumed-role/(?P<name>[^/]+)/")
_PREFERRED = ("peagle", "sagemaker")
_LIST_ROLES = Fix("list the roles", ("aws", "iam", "list-roles"))

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
        return Role(given) if _ROLE_ARN.fullmatch(given) else _by_name(aws, given)
    if assumed := _ASSUMED.match(aws.caller["Arn"]):
        try:
            found = aws.call("iam", "get_role", RoleName=assumed["name"])["Role"]
        except CloudError:
            found = {}
        if trusts_sagemaker(found):
            return Role(found["Arn"], "the role of these credentials")
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
    if not trusts_sagemaker(found):
        raise UserError(
            f"SageMaker may not assume the role {name!r}",
            f"its trust policy must allow sts:AssumeRole to {SERVICE}",
            "role-not-trusted",
        )
    return Role(found["Arn"])


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
            _CREATE_FIX,
            "no-role",
        )
    best = min(roles, key=_preference)
    several = (
        f"the best name match among {len(roles)} that SageMaker may assume; --role selects another"
    )
    return Role(
        best["Arn"], several if len(roles) > 1 else "the only one that SageMaker may assume"
    )


def _preference(role: dict[str, Any]) -> tuple[int, str]:
    name = role["RoleName"].lower()
    ranks = [rank for rank, word in enumerate(_PREFERRED) if word in name]
    return (min(ranks, default=len(_PREFERRED)), name)


def trusts_sagemaker(role: dict[str, Any]) -> bool:
    """Whether the role's trust policy lets SageMaker assume it."""
    document = role.get("AssumeRolePolicyDocument") or {}
    statements = document.get("Statement", []) if isinstance(document, dict) else []
    return any(_allows(statement) for statement in _as_list(statements))


def _allows(statement: dict[str, Any]) -> bool:
    principal = statement.get("Principal")
    services = _as_list(principal.get("Service", [])) if isinstance(principal, dict) else []
    return (
        statement.get("Effect") == "Allow"
        and "sts:AssumeRole" in _as_list(statement.get("Action", []))
        and SERVICE in services
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def build_log_group(project: str) -> str:
    """The log group of a CodeBuild project."""
    return f"/aws/codebuild/{project}"


def ensure_build_role(aws: Aws, name: str, repository: str, context: str, project: str) -> str:
    """The ARN of CodeBuild's role, which is created if needed; its policy is written again.

    The role may push to ``repository``, read below ``context`` (``bucket/prefix``) and write the
    log of ``project``.
    """
    try:
        found = aws.call("iam", "get_role", RoleName=name)
    except Missing:
        record_resource(aws, "Role", name)
        only_this_account = {
            **_allow(["sts:AssumeRole"]),
            "Principal": {"Service": "codebuild.amazonaws.com"},
            "Condition": {"StringEquals": {"aws:SourceAccount": aws.account}},
        }
        found = aws.call(
            "iam", "create_role",
            RoleName=name,
            AssumeRolePolicyDocument=_document(only_this_account),
            Description="CodeBuild builds images of peagle-toolkit with this role",
            Tags=[{"Key": "peagle:toolkit", "Value": "images"}],
        )  # fmt: skip
    permissions = _build_permissions(aws, repository, context, project)
    aws.call("iam", "put_role_policy", RoleName=name, PolicyName="build-one-image",
             PolicyDocument=_document(*permissions))  # fmt: skip
    return str(found["Role"]["Arn"])


def _build_permissions(
    aws: Aws, repository: str, context: str, project: str
) -> list[dict[str, Any]]:
    """Pulling is allowed from every account's registry: AWS keeps the runtimes' images in accounts
    of its own, one per region. GetAuthorizationToken has no resource."""
    arn = f"arn:{str(aws.caller['Arn']).split(':')[1]}"
    here = f"{aws.region}:{aws.account}"
    log = f"{arn}:logs:{here}:log-group:{build_log_group(project)}"
    return [
        _allow(["ecr:GetAuthorizationToken"], "*"),
        _allow(
            ["ecr:BatchCheckLayerAvailability", "ecr:GetDownloadUrlForLayer", "ecr:BatchGetImage"],
            f"{arn}:ecr:{aws.region}:*:repository/*",
        ),
        _allow(
            ["ecr:InitiateLayerUpload", "ecr:UploadLayerPart", "ecr:CompleteLayerUpload",
             "ecr:PutImage"],
            f"{arn}:ecr:{here}:repository/{repository}",
        ),
        _allow(
            ["s3:GetObject", "s3:GetObjectVersion"], f"{arn}:s3:::{context}*"
        ),
        _allow(
            ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"], log, f"{log}:*"
        ),
    ]  # fmt: skip


def _allow(actions: list[str], *resources: str) -> dict[str, Any]:
    allowed = {"Effect": "Allow", "Action": actions}
    return {**allowed, "Resource": list(resources)} if resources else allowed


def _document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})
