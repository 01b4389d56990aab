"""The end of a deployment, a schedule that deletes it and its role: as requests.

Schedule and role have the same name, and are for one endpoint. SageMaker deletes no endpoint with
inference components: with copies, a second schedule deletes their component first.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

ENDS_TAG = "peagle:ends"
"""Tag of an endpoint and its configuration: when the scheduler deletes the endpoint."""

BUDGET_TAG = "peagle:budget"
"""Tag of the same resources: the USD that the end is computed from, if there is a budget."""

EXTRA_TAG = "peagle:budget-extra"
"""Tag of the endpoint: what extra instances have cost, in USD."""

EARLIER_EXTRA_TAG = "peagle:budget-besides"
"""Its name in earlier versions; only read."""

LATEST_TAG = "peagle:ends-latest"
"""Tag of the endpoint: its end where a budget pays for no extra instances."""

END_TAGS = (ENDS_TAG, BUDGET_TAG, EXTRA_TAG, EARLIER_EXTRA_TAG, LATEST_TAG)
"""All tags about the end."""

SCHEDULER = "scheduler.amazonaws.com"

END_POLICY = "delete-one-endpoint"
"""The name of the role's policy."""

_NAME_PART = 38


def limit_name(region: str, endpoint: str) -> str:
    """The name of the schedule and of its role; roles are global, so it depends on the region."""
    digest = hashlib.sha256(f"{region}/{endpoint}".encode()).hexdigest()[:8]
    return f"peagle-ends-{endpoint[:_NAME_PART].rstrip('-')}-{digest}"


def copies_limit_name(region: str, endpoint: str) -> str:
    """The name of the schedule that deletes the copies on the endpoint."""
    return f"{limit_name(region, endpoint)}-ic"


def schedule(region: str, endpoint: str, expression: str) -> dict[str, Any]:
    """CreateSchedule without the target's ARN and role."""
    described = f"peagle: the end of the endpoint {endpoint}"
    given = {"EndpointName": endpoint}
    return _schedule(limit_name(region, endpoint), described, expression, given)


def copies_schedule(region: str, endpoint: str, expression: str) -> dict[str, Any]:
    """The same for the copies on the endpoint, whose component has its name."""
    described = f"peagle: the end of the copies on the endpoint {endpoint}"
    given = {"InferenceComponentName": endpoint}
    return _schedule(copies_limit_name(region, endpoint), described, expression, given)


RETRY_POLICY = {"MaximumEventAgeInSeconds": 86_400, "MaximumRetryAttempts": 185}
"""The longest that EventBridge Scheduler accepts: it repeats a call that failed, with exponential
backoff, until either is reached. Its documentation does not say which of a target's errors it
repeats, so ``peagle reap`` is the second net."""


def _schedule(
    name: str, description: str, expression: str, given: dict[str, str]
) -> dict[str, Any]:
    return {
        "Name": name,
        "Description": description,
        "ScheduleExpression": expression,
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {
            "Input": json.dumps(given),
            "RetryPolicy": RETRY_POLICY,
        },
    }


def target_arn(partition: str, copies: bool = False) -> str:
    """The universal target that deletes the endpoint, or the component of its ``copies``."""
    operation = "deleteInferenceComponent" if copies else "deleteEndpoint"
    return f"arn:{partition}:scheduler:::aws-sdk:sagemaker:{operation}"


def trust_policy(account: Any) -> dict[str, Any]:
    """The trust policy of the role: EventBridge Scheduler may assume it, for this account only."""
    return _document(
        {
            "Effect": "Allow",
            "Principal": {"Service": SCHEDULER},
            "Action": "sts:AssumeRole",
            "Condition": {"StringEquals": {"aws:SourceAccount": account}},
        }
    )


def role_policy(
    endpoint_arn: Any, tag: tuple[str, str], copies_arn: Any | None = None
) -> dict[str, Any]:
    """What the role may do: delete this endpoint, and the component of its copies, while they carry
    the tag. SageMaker removes the scaling target of an endpoint in the name of the caller."""
    key, value = tag
    owned = {"StringEquals": {f"aws:ResourceTag/{key}": value}}
    of_copies = {
        "Effect": "Allow",
        "Action": "sagemaker:DeleteInferenceComponent",
        "Resource": copies_arn,
        "Condition": owned,
    }
    return _document(
        {
            "Effect": "Allow",
            "Action": "sagemaker:DeleteEndpoint",
            "Resource": endpoint_arn,
            "Condition": owned,
        },
        *([of_copies] if copies_arn else []),
        {
            "Effect": "Allow",
            "Action": "application-autoscaling:DeregisterScalableTarget",
            "Resource": "*",
            "Condition": {
                "StringEquals": {"application-autoscaling:service-namespace": "sagemaker"}
            },
        },
    )


def _document(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}
