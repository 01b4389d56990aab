"""EventBridge Scheduler: the one-time schedules that delete an endpoint at its end time, and its
copies before, and the role that they do so with.

They are for one endpoint. The role may delete that endpoint and its component only, and only while
these carry the id of the deployment.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime

from peagle.aws.client import Aws, Clock, send_until_visible
from peagle.aws.errors import AlreadyExists
from peagle.aws.sagemaker import ID_TAG
from peagle.planning.company import Company, role_parameters
from peagle.planning.operation import COPIES_BEFORE_SECONDS
from peagle.render.resources import (
    END_POLICY,
    limit_name,
    role_policy,
    schedule,
    target_arn,
    trust_policy,
)

ASSUMED_AFTER_SECONDS = (2.0, 4.0, 8.0, 15.0, 15.0)
"""Pauses in which the scheduler becomes able to assume a role that was created a moment ago."""

SOONEST_SECONDS = 60
"""The scheduler is exact to the minute."""


def at_expression(moment: float) -> str:
    """The schedule expression of a moment in epoch seconds, in UTC."""
    return f"at({datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%S})"


def ensure_role(
    aws: Aws, endpoint: str, deployment_id: str, company: Company, copies: bool
) -> None:
    """Create the role that may delete the endpoint, with ``copies`` their component too, unless it
    exists; its policy is written again."""
    name = limit_name(aws.region, endpoint)
    with suppress(AlreadyExists):
        aws.call(
            "iam", "create_role",
            RoleName=name,
            AssumeRolePolicyDocument=json.dumps(trust_policy(aws.account)),
            Description=f"EventBridge Scheduler deletes the endpoint {endpoint} at its end time",
            **role_parameters(company, "limits"),
        )  # fmt: skip
    there = f"arn:{aws.partition}:sagemaker:{aws.region}:{aws.account}"
    component = f"{there}:inference-component/{endpoint}" if copies else None
    tag = (ID_TAG, deployment_id)
    policy = json.dumps(role_policy(f"{there}:endpoint/{endpoint}", tag, component))
    aws.call("iam", "put_role_policy", RoleName=name, PolicyName=END_POLICY, PolicyDocument=policy)


def put_schedule(
    aws: Aws, endpoint: str, role: str, ends_at: float, clock: Clock, copies: bool = False
) -> None:
    """Let the scheduler delete the endpoint at ``ends_at`` (epoch seconds), or the ``copies`` on it
    before that; replaces an earlier end time."""
    if copies:
        ends_at = max(ends_at - COPIES_BEFORE_SECONDS, clock.now() + SOONEST_SECONDS)
    planned = schedule(aws.region, endpoint, at_expression(ends_at), copies)
    target = {**planned["Target"], "Arn": target_arn(aws.partition, copies), "RoleArn": role}
    request = {**planned, "ActionAfterCompletion": "DELETE", "Target": target, "State": "ENABLED"}

    def create_or_update() -> None:
        try:
            aws.call("scheduler", "create_schedule", **request)
        except AlreadyExists:
            aws.call("scheduler", "update_schedule", **request)

    send_until_visible(
        create_or_update,
        ASSUMED_AFTER_SECONDS,
        lambda error: "assume the role" in error.message,
        clock,
    )


def delete_role(aws: Aws, name: str) -> None:
    """Delete the role with its policy; ignores what does not exist."""
    aws.delete("iam", "delete_role_policy", RoleName=name, PolicyName=END_POLICY)
    aws.delete("iam", "delete_role", RoleName=name)
