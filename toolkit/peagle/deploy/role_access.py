"""What the execution role needs besides weights: alarms of a rollout, captured data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from peagle.aws.client import Aws
from peagle.aws.roles import Role
from peagle.aws.s3 import default_bucket
from peagle.errors import CloudError, Fix
from peagle.findings import Finding, finding, warning
from peagle.planning.plan import Plan
from peagle.render.alarms import rollback_alarm_names
from peagle.s3uri import S3Uri

_KEY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}")


@dataclass(frozen=True)
class _Need:
    """``may_be_allowed``: who else may allow the action, "" where only the role's policies do."""

    action: str
    resource: str
    purpose: str
    may_be_allowed: str = ""


def role_access_findings(aws: Aws, role: Role, plan: Plan) -> Iterator[Finding]:
    """Whether the role's policies let it see the alarms of the plan's rollout and write the data
    that the plan captures.

    IAM simulates them without the policies of bucket and key, which may allow what they do not: a
    permission that these can give is a warning, except on the bucket that this toolkit creates.
    """
    for need in _needs(aws, role, plan):
        try:
            is_allowed = _allows(aws, role, need)
        except CloudError as failed:
            yield warning(
                "role-permission-unknown", "role",
                f"not known whether {role.name!r} has {need.action}: {failed.message}",
                "allow iam:SimulatePrincipalPolicy on the role to these credentials, or check it",
            )  # fmt: skip
            return
        if is_allowed:
            continue
        unless = f"; unless {need.may_be_allowed} does" if need.may_be_allowed else ""
        policy = {"Effect": "Allow", "Action": need.action, "Resource": need.resource}
        document = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
        command = (
            "aws", "iam", "put-role-policy", "--role-name", role.name, "--policy-name",
            f"peagle-{need.action.partition(':')[2]}", "--policy-document", document,
        )  # fmt: skip
        yield finding(
            "warning" if need.may_be_allowed else "error",
            "role-lacks-permission",
            "role",
            f"the policies of the role {role.name!r} do not allow {need.action} on "
            f"{need.resource}{unless}, {need.purpose}",
            Fix("add it; infra/iam/execution-role-policy.json is an example", command),
        )


def _needs(aws: Aws, role: Role, plan: Plan) -> Iterator[_Need]:
    here = f"{aws.region}:{aws.account}"
    for name in rollback_alarm_names(plan):
        alarm = f"arn:{role.partition}:cloudwatch:{here}:alarm:{name}"
        yield _Need("cloudwatch:DescribeAlarms", alarm, "a rollout cannot watch its alarms")
    capture = plan.observe.capture if plan.observe else None
    if capture is None:
        return
    place = S3Uri.parse(capture.s3_uri).folder
    own = place.bucket == default_bucket(aws.account, aws.region)
    yield _Need(
        "s3:PutObject",
        f"arn:{role.partition}:s3:::{place.bucket}/{place.key}{plan.name}/*",
        "no data is captured",
        "" if own else f"the policy of the bucket {place.bucket}",
    )
    key = capture.kms_key or ""
    if _KEY_ID.fullmatch(key):
        key = f"arn:{role.partition}:kms:{here}:key/{key}"
    if ":key/" in key:  # the policy of a role names no alias
        for action in ("kms:GenerateDataKey", "kms:Decrypt"):
            yield _Need(action, key, "no data is captured", "the policy of the key")


def _allows(aws: Aws, role: Role, need: _Need) -> bool:
    answer = aws.call(
        "iam", "simulate_principal_policy",
        PolicySourceArn=role.arn,
        ActionNames=[need.action],
        ResourceArns=[need.resource],
        ContextEntries=[
            {
                "ContextKeyName": "kms:ViaService",
                "ContextKeyValues": [f"s3.{aws.region}.amazonaws.com"],
                "ContextKeyType": "string",
            }
        ],
    )  # fmt: skip
    return all(one["EvalDecision"] == "allowed" for one in answer["EvaluationResults"])
