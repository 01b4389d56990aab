"""A plan's automatic scaling as requests to Application Auto Scaling, and as options of `plan`.

Instances are those of an endpoint's variant. With copies, the target is the inference component of
the endpoint's name, and SageMaker's own ManagedInstanceScaling lets the instances follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peagle.planning.operation_model import Scaling
from peagle.planning.plan import Plan
from peagle.planning.runtime import own_name

SERVICE_NAMESPACE = "sagemaker"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"
COPY_DIMENSION = "sagemaker:inference-component:DesiredCopyCount"
METRIC = "SageMakerVariantConcurrentRequestsPerModelHighResolution"
COPY_METRIC = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
"""Requests at a time per instance or copy, those that wait in its engine included, every 10
seconds."""

POLICY = "peagle-concurrency"
"""Name of the scaling policy."""

WAKE_POLICY = "peagle-wake-up"
"""Name of the policy that starts the first copy."""

NO_CAPACITY = "NoCapacityInvocationFailures"
"""The metric of requests to an inference component without a copy."""

_ALARM_PERIOD_SECONDS = 30
"""The shortest period at which SageMaker's documentation lets this alarm look."""


def target_id(endpoint: str, variant: str) -> str:
    """What Application Auto Scaling calls the variant of an endpoint (ResourceId)."""
    return f"endpoint/{endpoint}/variant/{variant}"


def copies_id(component: str) -> str:
    """What Application Auto Scaling calls an inference component (ResourceId)."""
    return f"inference-component/{component}"


def target_parameters(endpoint: str, variant: str, copies: bool = False) -> dict[str, str]:
    """The parameters that name a scalable target in every call. ``copies``: the component of
    the endpoint's name."""
    return {
        "ServiceNamespace": SERVICE_NAMESPACE,
        "ResourceId": copies_id(endpoint) if copies else target_id(endpoint, variant),
        "ScalableDimension": COPY_DIMENSION if copies else DIMENSION,
    }


def register_parameters(endpoint: str, variant: str, scaling: Scaling) -> dict[str, Any]:
    """RegisterScalableTarget."""
    return {
        **target_parameters(endpoint, variant, scaling.scales_copies),
        "MinCapacity": scaling.minimum,
        "MaxCapacity": scaling.maximum,
    }


def policy_parameters(endpoint: str, variant: str, scaling: Scaling) -> dict[str, Any]:
    """PutScalingPolicy."""
    return {
        **target_parameters(endpoint, variant, scaling.scales_copies),
        "PolicyName": POLICY,
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": tracking(scaling),
    }


def tracking(scaling: Scaling) -> dict[str, Any]:
    """TargetTrackingScalingPolicyConfiguration, which CloudFormation names alike."""
    metric = COPY_METRIC if scaling.scales_copies else METRIC
    return {
        "TargetValue": scaling.target_concurrency,
        "PredefinedMetricSpecification": {"PredefinedMetricType": metric},
        "ScaleInCooldown": scaling.scale_in_cooldown_seconds,
        "ScaleOutCooldown": scaling.scale_out_cooldown_seconds,
    }


def wake_policy_parameters(endpoint: str, variant: str, scaling: Scaling) -> dict[str, Any]:
    """PutScalingPolicy of the policy that starts a copy where none runs: target tracking has no
    load to follow there."""
    return {
        **target_parameters(endpoint, variant, copies=True),
        "PolicyName": WAKE_POLICY,
        "PolicyType": "StepScaling",
        "StepScalingPolicyConfiguration": wake_steps(scaling),
    }


def wake_steps(scaling: Scaling) -> dict[str, Any]:
    """StepScalingPolicyConfiguration, which CloudFormation names alike."""
    return {
        "AdjustmentType": "ChangeInCapacity",
        "MetricAggregationType": "Maximum",
        "Cooldown": scaling.scale_out_cooldown_seconds,
        "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
    }


def wake_alarm_name(endpoint: str) -> str:
    """Such as ``peagle-tiny-wake-up``; policies allow names that begin so."""
    return f"{own_name(endpoint)}-wake-up"


def wake_alarm(
    endpoint: str, policy_arn: Any, tags: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """PutMetricAlarm: the first request that finds no copy calls the policy. ``policy_arn`` may be
    a template's reference."""
    return {
        "AlarmName": wake_alarm_name(endpoint),
        "AlarmDescription": f"A request found no copy of {endpoint}, and one is started",
        "Namespace": "AWS/SageMaker",
        "MetricName": NO_CAPACITY,
        "Dimensions": [{"Name": "InferenceComponentName", "Value": endpoint}],
        "Statistic": "Maximum",
        "Period": _ALARM_PERIOD_SECONDS,
        "EvaluationPeriods": 1,
        "DatapointsToAlarm": 1,
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "missing",
        "AlarmActions": [policy_arn],
        "Tags": list(tags),
    }


def scaling_arguments(scaling: Scaling | None) -> list[str]:
    """The options of `peagle plan` that scale alike."""
    if scaling is None:
        return []
    least = ["--min-instances", str(scaling.min_instances)]
    return [
        *(["--scale-to-zero"] if scaling.scales_to_zero else least),
        *("--max-instances", str(scaling.max_instances)),
        *("--target-concurrency", f"{scaling.target_concurrency:g}"),
    ]


def scaling_requests(plan: Plan, variant: str) -> dict[str, Any]:
    """The requests by their operation; empty without scaling. With a scale to zero, also those of
    the policy that wakes, and of its alarm, which lacks the policy's ARN."""
    scaling = plan.scaling
    if scaling is None:
        return {}
    found = {
        "register_scalable_target": register_parameters(plan.name, variant, scaling),
        "put_scaling_policy": policy_parameters(plan.name, variant, scaling),
    }
    if scaling.scales_to_zero:
        found["wake_up_policy"] = wake_policy_parameters(plan.name, variant, scaling)
        found["wake_up_alarm"] = wake_alarm(plan.name, POLICY_ARN, plan.company.tag_list)
    return found


POLICY_ARN = "${ScalingPolicyArn}"
"""Placeholder for the ARN of the policy that wakes, which is known once it exists."""
