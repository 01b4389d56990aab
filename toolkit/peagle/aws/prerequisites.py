"""What SageMaker needs from other services before it can serve a plan: role, weights, image.

SageMaker reports a missing one only after the model has been created, some of them after minutes of
a starting instance. Reads only. What these credentials may not look at is reported as not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.roles import SERVICE, Role, trust_policy, trusts_sagemaker
from peagle.aws.s3 import default_bucket
from peagle.checks.facts import EcrImage, parse_ecr_image
from peagle.errors import CloudError, Fix
from peagle.findings import Finding, error, warning
from peagle.s3uri import S3Uri


def role_findings(aws: Aws, role: Role) -> Iterator[Finding]:
    """Whether the role exists in this account, and SageMaker may assume it."""
    if role.account != aws.account:
        message = f"{role.arn} is a role of account {role.account}, not of {aws.account}"
        yield error(
            "role-of-another-account", "role", message,
            "SageMaker assumes roles of the endpoint's account only; choose another --role",
        )  # fmt: skip
        return
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
            message = (
                f"not known whether the role {role.name!r} exists and SageMaker may assume it: "
                f"{denied.message}"
            )
            look = Fix("check it with other credentials", _command("get-role", role))
            yield warning("role-unknown", "role", message, look)
            return
    if not trusted:
        policy = json.dumps(trust_policy(aws.account))
        yield error(
            "role-not-trusted", "role", f"SageMaker may not assume the role {role.name!r}",
            Fix(
                f"its trust policy must allow sts:AssumeRole to {SERVICE}; this replaces it",
                (*_command("update-assume-role-policy", role), "--policy-document", policy),
            ),
        )  # fmt: skip


def _command(operation: str, role: Role) -> tuple[str, ...]:
    return ("aws", "iam", operation, "--role-name", role.name)


def access_findings(aws: Aws, role: Role, folders: Iterable[S3Uri]) -> Iterator[Finding]:
    """Whether the role's policies let it list and read these prefixes in S3.

    IAM simulates them without the policy of the bucket, which may allow what they do not: except
    for the bucket that this toolkit creates, which has none, a missing permission is a warning.
    """
    for folder in folders:
        try:
            lacking = tuple(_lacking(aws, role, folder))
        except CloudError as failed:
            message = f"not known whether {role.name!r} may read {folder}: {failed.message}"
            yield warning(
                "role-access-unknown", "role", message,
                "allow iam:SimulatePrincipalPolicy on the role to these credentials, or check it",
            )  # fmt: skip
            return
        if not lacking:
            continue
        message = f"the policies of the role {role.name!r} do not allow {' and '.join(lacking)}"
        fix = Fix(
            "add them to its policies; infra/iam/execution-role-policy.json is an example",
            (
                *_command("put-role-policy", role), "--policy-name",
                f"read-{folder.bucket}",
                "--policy-document", json.dumps(_reading(role, folder)),
            ),
        )  # fmt: skip
        if folder.bucket == default_bucket(aws.account, aws.region):
            yield error("role-cannot-read-weights", "role", message, fix)
        else:
            message += f"; unless the policy of the bucket {folder.bucket} does, no weights arrive"
            yield warning("role-cannot-read-weights", "role", message, fix)


def _lacking(aws: Aws, role: Role, folder: S3Uri) -> Iterator[str]:
    """What the role may not do, such as ``s3:GetObject on ARN``."""
    bucket = f"arn:{role.partition}:s3:::{folder.bucket}"
    needs = {"s3:GetObject": f"{bucket}/{folder.key}config.json", "s3:ListBucket": bucket}
    for action, resource in needs.items():
        answer = aws.call(
            "iam", "simulate_principal_policy",
            PolicySourceArn=role.arn,
            ActionNames=[action],
            ResourceArns=[resource],
            ContextEntries=[
                {
                    "ContextKeyName": "s3:prefix",
                    "ContextKeyValues": [folder.key],
                    "ContextKeyType": "string",
                }
            ],
        )  # fmt: skip
        if any(one["EvalDecision"] != "allowed" for one in answer["EvaluationResults"]):
            yield f"{action} on {resource}"


def _reading(role: Role, folder: S3Uri) -> dict[str, Any]:
    bucket = f"arn:{role.partition}:s3:::{folder.bucket}"
    allowed = {"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"]}
    resources = [bucket, f"{bucket}/{folder.key}*"]
    return {"Version": "2012-10-17", "Statement": [{**allowed, "Resource": resources}]}


def presence_findings(aws: Aws, image: str) -> Iterator[Finding]:
    """Whether the image's tag or digest exists in ECR, in this account or in AWS's own.

    An image outside ECR is another finding's matter (``image-not-in-ecr``).
    """
    named = parse_ecr_image(image)
    if named is None:
        return
    try:
        exists = _exists(aws, named)
    except CloudError as failed:
        yield warning(
            "image-unknown", "image",
            f"not known whether the image {image} exists: {failed.message}",
            Fix("allow ecr:BatchGetImage to these credentials, or check it", _listing(named)),
        )  # fmt: skip
        return
    if not exists:
        yield error(
            "image-missing", "image", f"ECR in {named.region} has no image {image}",
            Fix("push it, or choose another --image; this lists the tags", _listing(named)),
        )  # fmt: skip


def _exists(aws: Aws, image: EcrImage) -> bool:
    by_tag = {"imageTag": image.tag or "latest"}
    try:
        found = aws.in_region(image.region).call(
            "ecr", "batch_get_image",
            registryId=image.account,
            repositoryName=image.repository,
            imageIds=[{"imageDigest": image.digest} if image.digest else by_tag],
        )  # fmt: skip
    except Missing:
        return False
    return bool(found.get("images"))


def _listing(image: EcrImage) -> tuple[str, ...]:
    return (
        "aws", "ecr", "list-images", "--registry-id", image.account, "--repository-name",
        image.repository, "--region", image.region,
    )  # fmt: skip
