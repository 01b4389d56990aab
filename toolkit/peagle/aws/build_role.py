"""The role that CodeBuild assumes to build an image, with the permissions for that only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from peagle.aws import image_records as images
from peagle.aws.client import Aws
from peagle.aws.errors import Missing

_POLICY = "build-one-image"
_SERVICE = "codebuild.amazonaws.com"

LOG_GROUPS = "/aws/codebuild/"
"""Prefix of CodeBuild's log groups; each project has its own."""


@dataclass(frozen=True)
class BuildScope:
    """What the role may use: it pushes to ``repository``, reads below ``prefix`` of ``bucket``, and
    writes the log of ``project``."""

    repository: str
    bucket: str
    prefix: str
    project: str


def ensure_role(aws: Aws, name: str, scope: BuildScope) -> str:
    """The role's ARN; creates the role if needed, and writes its policy again."""
    try:
        found = aws.call("iam", "get_role", RoleName=name)
    except Missing:
        with images.recorded(aws, "Role", name):
            found = aws.call(
                "iam", "create_role",
                RoleName=name,
                AssumeRolePolicyDocument=json.dumps(_trust(aws)),
                Description="CodeBuild builds images of peagle-toolkit with this role",
                Tags=[{"Key": "peagle:toolkit", "Value": "images"}],
            )  # fmt: skip
    document = json.dumps(policy(aws, scope))
    aws.call("iam", "put_role_policy", RoleName=name, PolicyName=_POLICY, PolicyDocument=document)
    return str(found["Role"]["Arn"])


def policy(aws: Aws, scope: BuildScope) -> dict[str, Any]:
    """The role's permissions.

    Pulling is allowed from every account's registry: AWS keeps the runtimes' images in accounts
    of its own, one per region. GetAuthorizationToken has no resource.
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
    """Only projects of this account may assume the role."""
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
