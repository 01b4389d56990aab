"""The schedule that deletes the endpoint, and its role, as parts of templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peagle.planning.company import role_settings
from peagle.planning.plan import Plan
from peagle.render.limit import (
    END_POLICY,
    copies_limit_name,
    copies_schedule,
    limit_name,
    role_policy,
    schedule,
    target_arn,
    trust_policy,
)
from peagle.render.requests import DEPLOYMENT_TAG
from peagle.render.stack_references import schedule_name

ENDS_AT = "When the endpoint is deleted, in UTC, such as 2030-01-31T20:00:00"
"""Description of the parameter."""

COPIES_END_AT = "When the copies on the endpoint are deleted: ten minutes earlier"
"""The same for copies: a template computes no times."""

_ARN = "arn:${AWS::Partition}:sagemaker:${AWS::Region}:${AWS::AccountId}"


def cloudformation_end(plan: Plan, name: str, tags: Sequence[Any]) -> dict[str, Any]:
    """The resources of a stack of the endpoint ``name``, which may be a placeholder, with these
    tags; the parameters are ``EndsAt``, and with copies ``CopiesEndAt``."""
    arn = f"{_ARN}:endpoint/{name}"
    component = {"Fn::Sub": f"{_ARN}:inference-component/{name}"} if plan.copies else None
    policy = role_policy({"Fn::Sub": arn}, (DEPLOYMENT_TAG, name), component)
    known = schedule_name(limit_name(plan.region, plan.name))
    made = {"Schedule": _scheduled(schedule(plan.region, name, ""), known, "EndsAt")}
    if plan.copies:
        known = schedule_name(copies_limit_name(plan.region, plan.name), "-ic")
        planned = copies_schedule(plan.region, name, "")
        made["CopiesSchedule"] = _scheduled(planned, known, "CopiesEndAt", copies=True)
    return {
        "SchedulerRole": {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "AssumeRolePolicyDocument": trust_policy({"Ref": "AWS::AccountId"}),
                "Policies": [{"PolicyName": END_POLICY, "PolicyDocument": policy}],
                **role_settings(plan.company),
                "Tags": list(tags),
            },
        },
        **made,
    }


def _scheduled(
    planned: dict[str, Any], name: dict[str, Any], parameter: str, copies: bool = False
) -> dict[str, Any]:
    """The schedule at the time in a parameter, as a resource of a stack."""
    target = {
        **planned["Target"],
        "Arn": {"Fn::Sub": target_arn("${AWS::Partition}", copies)},
        "RoleArn": {"Fn::GetAtt": ["SchedulerRole", "Arn"]},
    }
    at = {"Fn::Sub": f"at(${{{parameter}}})"}
    own = {"Name": name, "ScheduleExpression": at, "Target": target}
    return {"Type": "AWS::Scheduler::Schedule", "Properties": planned | own}
