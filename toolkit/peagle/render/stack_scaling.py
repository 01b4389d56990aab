"""The automatic scaling of a stack: target, policy, and the policy that starts the first copy.

CloudFormation creates the target's role. All of it is in the stack where the parameter ``Scaling``
is true.
"""

from __future__ import annotations

from typing import Any

from peagle.planning.operation_model import Scaling
from peagle.planning.plan import Plan
from peagle.render.requests import DEPLOYMENT_TAG, VARIANT
from peagle.render.scaling import (
    POLICY,
    WAKE_POLICY,
    copies_id,
    register_parameters,
    tracking,
    wake_alarm,
    wake_steps,
)
from peagle.render.stack_references import SCALES, either, offered_scaling

_SCALING = "AWS::ApplicationAutoScaling"


def scaling_resources(plan: Plan, tags: list[dict[str, Any]]) -> dict[str, Any]:
    """The resources of the plan's scaling, or of the one that the stack offers; the alarm gets the
    tags of the company and ``tags``."""
    scaling = offered_scaling(plan)
    if scaling is None:
        return {}
    counted = "Copies" if scaling.scales_copies else "Instances"
    resource: Any = {"Fn::Sub": f"endpoint/${{Endpoint.EndpointName}}/variant/{VARIANT}"}
    target = register_parameters(plan.name, VARIANT, scaling) | {
        "ResourceId": copies_id(plan.name) if scaling.scales_copies else resource,
        "MinCapacity": {"Ref": f"Min{counted}"},
        "MaxCapacity": {"Ref": f"Max{counted}"},
    }
    policy = {
        "PolicyName": POLICY,
        "PolicyType": "TargetTrackingScaling",
        "ScalingTargetId": {"Ref": "ScalableTarget"},
        "TargetTrackingScalingPolicyConfiguration": tracking(scaling),
    }
    after = {"DependsOn": "InferenceComponent"} if scaling.scales_copies else {}
    return {
        "ScalableTarget": _scaled("ScalableTarget", target) | after,
        "ScalingPolicy": _scaled("ScalingPolicy", policy),
        **(_wake_up(plan, scaling, tags) if scaling.scales_to_zero else {}),
    }


def retained(plan: Plan) -> dict[str, Any]:
    """An update keeps the number of instances that scaling chose, and nothing else."""
    if plan.copies is not None:
        return {}
    excluded = [{"VariantPropertyType": one} for one in ("DesiredWeight", "DataCaptureConfig")]
    return {
        "RetainAllVariantProperties": either(SCALES, True),
        "ExcludeRetainedVariantProperties": either(SCALES, excluded),
    }


def _scaled(kind: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"Type": f"{_SCALING}::{kind}", "Condition": SCALES, "Properties": properties}


def _wake_up(plan: Plan, scaling: Scaling, tags: list[dict[str, Any]]) -> dict[str, Any]:
    """The policy that starts the first copy, and the alarm that calls it."""
    policy = {
        "PolicyName": WAKE_POLICY,
        "PolicyType": "StepScaling",
        "ScalingTargetId": {"Ref": "ScalableTarget"},
        "StepScalingPolicyConfiguration": wake_steps(scaling),
    }
    own: dict[str, Any] = {"Key": DEPLOYMENT_TAG, "Value": plan.name}
    all_tags = [own, *plan.company.tag_list, *tags]
    return {
        "WakeUpPolicy": _scaled("ScalingPolicy", policy),
        "WakeUpAlarm": {
            "Type": "AWS::CloudWatch::Alarm",
            "Condition": SCALES,
            "Properties": wake_alarm(plan.name, {"Ref": "WakeUpPolicy"}, all_tags),
        },
    }
