"""The role that CodeBuild takes while it builds an image: it may do that and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from toolkit.aws import images
from toolkit.aws.errors import Missing
from toolkit.aws.session import Aws

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
        with images.making(aws, "Role", name):
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
