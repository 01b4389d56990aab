"""The IAM role with which CodeBuild builds images."""

from __future__ import annotations

import json
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.aws.image_records import record_resource
from peagle.aws.roles import trust_policy
from peagle.planning.company import NO_COMPANY, Company, role_parameters

_SERVICE = "codebuild.amazonaws.com"


def build_log_group(project: str) -> str:
    """The log group of a CodeBuild project."""
    return f"/aws/codebuild/{project}"


def ensure_build_role(
    aws: Aws,
    name: str,
    repository: str,
    context: str,
    project: str,
    company: Company = NO_COMPANY,
) -> str:
    """The ARN of CodeBuild's role, which is created if needed; its policy is written again.

    The role may push to ``repository``, read below ``context`` (``bucket/prefix``) and write the
    log of ``project``. It has the boundary and the tags of ``company``.
    """
    boundary = company.permissions_boundary
    try:
        found = aws.call("iam", "get_role", RoleName=name)
        known = (found["Role"].get("PermissionsBoundary") or {}).get("PermissionsBoundaryArn")
        if boundary and boundary != known:
            aws.call("iam", "put_role_permissions_boundary", RoleName=name,
                     PermissionsBoundary=boundary)  # fmt: skip
    except Missing:
        record_resource(aws, "Role", name)
        found = aws.call(
            "iam", "create_role",
            RoleName=name,
            AssumeRolePolicyDocument=json.dumps(trust_policy(aws.account, _SERVICE)),
            Description="CodeBuild builds images of peagle-toolkit with this role",
            **role_parameters(company, "images"),
        )  # fmt: skip
    statements = _build_permissions(aws, repository, context, project)
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    aws.call("iam", "put_role_policy", RoleName=name, PolicyName="build-one-image",
             PolicyDocument=policy)  # fmt: skip
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
    return {"Effect": "Allow", "Action": actions, "Resource": list(resources)}
