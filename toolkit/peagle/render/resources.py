"""What a deployment has beside its endpoint, as requests: scaling, rollout, end, capture rule.

Scaling changes the instances of an endpoint's variant, or with copies the inference component of
the endpoint's name; SageMaker's own ManagedInstanceScaling then lets the instances follow.

The end is a schedule that deletes the endpoint, and the schedule's role, both of the same name.
SageMaker deletes no endpoint with inference components: with copies, a second schedule deletes
their component first.

How long captured requests and answers are kept is a rule of their bucket's lifecycle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from peagle.planning.operation import adapt_rollout, longest_seconds
from peagle.planning.plan import PROVISIONING_SECONDS, Plan, Scaling
from peagle.planning.runtime import prefixed_name
from peagle.render.alarms import METRIC_NAMESPACE, rollback_alarm_names
from peagle.s3uri import S3Uri

SERVICE_NAMESPACE = "sagemaker"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"
COPY_DIMENSION = "sagemaker:inference-component:DesiredCopyCount"
METRIC = "SageMakerVariantConcurrentRequestsPerModelHighResolution"
COPY_METRIC = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
"""Requests at a time per instance or copy, those that wait in its engine included, every 10
seconds."""

POLICY, WAKE_POLICY = "peagle-concurrency", "peagle-wake-up"


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
    metric = COPY_METRIC if scaling.scales_copies else METRIC
    return {
        **target_parameters(endpoint, variant, scaling.scales_copies),
        "PolicyName": POLICY,
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": {
            "TargetValue": scaling.target_concurrency,
            "PredefinedMetricSpecification": {"PredefinedMetricType": metric},
            "ScaleInCooldown": scaling.scale_in_cooldown_seconds,
            "ScaleOutCooldown": scaling.scale_out_cooldown_seconds,
        },
    }


def wake_policy_parameters(endpoint: str, variant: str, scaling: Scaling) -> dict[str, Any]:
    """PutScalingPolicy of the policy that starts a copy where none runs: target tracking has no
    load to follow there."""
    return {
        **target_parameters(endpoint, variant, copies=True),
        "PolicyName": WAKE_POLICY,
        "PolicyType": "StepScaling",
        "StepScalingPolicyConfiguration": {
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Maximum",
            "Cooldown": scaling.scale_out_cooldown_seconds,
            "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
        },
    }


def wake_alarm_name(endpoint: str) -> str:
    """Such as ``peagle-tiny-wake-up``; policies allow names that begin so."""
    return f"{prefixed_name(endpoint)}-wake-up"


def wake_alarm(
    endpoint: str, policy_arn: Any, tags: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """PutMetricAlarm: the first request that finds no copy calls the policy. ``policy_arn`` may be
    a template's reference."""
    return {
        "AlarmName": wake_alarm_name(endpoint),
        "AlarmDescription": f"A request found no copy of {endpoint}, and one is started",
        "Namespace": METRIC_NAMESPACE,
        "MetricName": "NoCapacityInvocationFailures",
        "Dimensions": [{"Name": "InferenceComponentName", "Value": endpoint}],
        "Statistic": "Maximum",
        # The shortest at which SageMaker's documentation lets this alarm look.
        "Period": 30,
        "EvaluationPeriods": 1,
        "DatapointsToAlarm": 1,
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "missing",
        "AlarmActions": [policy_arn],
        "Tags": list(tags),
    }


_SIZES = {"instances": "INSTANCE_COUNT", "copies": "COPY_COUNT"}


def deployment_config(plan: Plan, count: int = 0) -> dict[str, Any] | None:
    """The DeploymentConfig of an update of ``count`` instances, or copies of a plan with copies:
    how its rollout replaces them; ``None`` where the plan has no rollout, and for a single copy. 0
    is for a template, which does not know how many run: the fewest that may, or the planned copies.
    """
    if plan.rollout is None:
        return None
    fewest = plan.scaling.min_instances if plan.scaling else plan.instance_count
    count = count or (plan.engines if plan.copies else fewest)
    rollout = adapt_rollout(plan.rollout, count, plan.copies is not None)
    if rollout is None:
        return None
    step, wait = rollout.step, rollout.baking_seconds
    size = {"Type": _SIZES[step.unit], "Value": step.value} if step else None
    if rollout.kind == "rolling":
        policy = "RollingUpdatePolicy"
        settings: dict[str, Any] = {"MaximumBatchSize": size, "WaitIntervalInSeconds": wait}
    else:
        policy, kind = "BlueGreenUpdatePolicy", rollout.kind.replace("-", "_").upper()
        # All at once, the only wait is the one before the earlier instances end.
        traffic: dict[str, Any] = {"Type": kind, "WaitIntervalInSeconds": wait if step else 0}
        if step:
            traffic["CanarySize" if kind == "CANARY" else "LinearStepSize"] = size
        settings = {"TrafficRoutingConfiguration": traffic, "TerminationWaitInSeconds": wait}
    start = plan.startup_timeout_seconds + plan.download_timeout_seconds + PROVISIONING_SECONDS
    least, most = 600, 28_800  # seconds that SageMaker accepts
    timeout = min(most, max(least, round(longest_seconds(rollout, count, start))))
    alarms = [{"AlarmName": name} for name in rollback_alarm_names(plan)]
    return {
        policy: {**settings, "MaximumExecutionTimeoutInSeconds": timeout},
        "AutoRollbackConfiguration": {"Alarms": alarms},
    }


ENDS_TAG = "peagle:ends"
"""Tag of an endpoint and its configuration: when the scheduler deletes the endpoint."""

BUDGET_TAG = "peagle:budget"
"""Tag of the same resources: the USD that the end is computed from, if there is a budget."""

END_TAGS = (ENDS_TAG, BUDGET_TAG)

END_POLICY = "delete-one-endpoint"


def limit_name(region: str, endpoint: str) -> str:
    """The name of the schedule and of its role; roles are global, so it depends on the region."""
    digest = hashlib.sha256(f"{region}/{endpoint}".encode()).hexdigest()[:8]
    return f"peagle-ends-{endpoint[:38].rstrip('-')}-{digest}"


def copies_limit_name(region: str, endpoint: str) -> str:
    """The name of the schedule that deletes the copies on the endpoint."""
    return f"{limit_name(region, endpoint)}-ic"


_RETRY_POLICY = {"MaximumEventAgeInSeconds": 86_400, "MaximumRetryAttempts": 185}
"""The longest that EventBridge Scheduler accepts: it repeats a call that failed, with exponential
backoff, until either is reached. Its documentation does not say which of a target's errors it
repeats, so ``peagle reap`` is the second net."""


def schedule(region: str, endpoint: str, expression: str, copies: bool = False) -> dict[str, Any]:
    """CreateSchedule without the target's ARN and role: of the endpoint, or of the ``copies`` on
    it, whose component has its name."""
    name = copies_limit_name(region, endpoint) if copies else limit_name(region, endpoint)
    what = f"the copies on the endpoint {endpoint}" if copies else f"the endpoint {endpoint}"
    request = {"InferenceComponentName" if copies else "EndpointName": endpoint}
    return {
        "Name": name,
        "Description": f"peagle: the end of {what}",
        "ScheduleExpression": expression,
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {"Input": json.dumps(request), "RetryPolicy": _RETRY_POLICY},
    }


def target_arn(partition: str, copies: bool = False) -> str:
    """The universal target that deletes the endpoint, or the component of its ``copies``."""
    operation = "deleteInferenceComponent" if copies else "deleteEndpoint"
    return f"arn:{partition}:scheduler:::aws-sdk:sagemaker:{operation}"


def trust_policy(account: Any, service: str = "scheduler.amazonaws.com") -> dict[str, Any]:
    """The trust policy of a role: the service may assume it, for this account only."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": account}},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def role_policy(
    endpoint_arn: Any, tag: tuple[str, str], copies_arn: Any | None = None
) -> dict[str, Any]:
    """What the role may do: delete this endpoint, and the component of its copies, while they carry
    the tag. SageMaker removes the scaling target of an endpoint in the name of the caller."""
    key, value = tag
    owned = {f"aws:ResourceTag/{key}": value}
    of_sagemaker = {"application-autoscaling:service-namespace": "sagemaker"}
    allowed = [
        ("sagemaker:DeleteEndpoint", endpoint_arn, owned),
        *([("sagemaker:DeleteInferenceComponent", copies_arn, owned)] if copies_arn else []),
        ("application-autoscaling:DeregisterScalableTarget", "*", of_sagemaker),
    ]
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": action,
                "Resource": resource,
                "Condition": {"StringEquals": condition},
            }
            for action, resource, condition in allowed
        ],
    }


def rule_id(endpoint: str, region: str, prefix: S3Uri) -> str:
    """Such as ``peagle-capture-tiny-us-east-1-1a2b3c4d``: the name of our rule among the bucket's,
    one for each prefix, so that what was captured elsewhere in the bucket is deleted too."""
    digest = hashlib.sha256(prefix.key.encode()).hexdigest()[:8]
    return f"{f'peagle-capture-{endpoint}-{region}'[:246]}-{digest}"  # of at most 255 characters


def captured_prefix(destination: str, endpoint: str) -> S3Uri:
    """Where SageMaker puts what it captures of the endpoint: a folder of its name below the
    destination."""
    folder = S3Uri.parse(destination).folder
    return S3Uri(folder.bucket, f"{folder.key}{endpoint}/")


def capture_rule(plan: Plan) -> tuple[S3Uri, dict[str, Any]] | None:
    """The prefix of the captured data and the rule that deletes it; ``None`` where the plan leaves
    that to the bucket. In a bucket with versions, deleted ones go a day later."""
    capture = plan.observe.capture if plan.observe else None
    if capture is None or capture.retention_days is None:
        return None
    prefix = captured_prefix(capture.s3_uri, plan.name)
    return prefix, {
        "ID": rule_id(plan.name, plan.region, prefix),
        "Status": "Enabled",
        "Filter": {"Prefix": prefix.key},
        "Expiration": {"Days": capture.retention_days},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
    }


def not_in_templates(plan: Plan) -> str:
    """Why a template cannot express the plan's retention of captured data; empty if it can."""
    if (rule := capture_rule(plan)) is None:
        return ""
    return (
        f"a template cannot add a rule to the lifecycle of {rule[0].bucket}, which it does not "
        "own (capture_retention 0 leaves that to the bucket)"
    )
