"""What a deployment has beside its endpoint, as requests: scaling, its end, its capture rule.

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

from peagle.planning.plan import Plan, Scaling
from peagle.planning.runtime import own_name
from peagle.s3uri import S3Uri

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


ENDS_TAG = "peagle:ends"
"""Tag of an endpoint and its configuration: when the scheduler deletes the endpoint."""

BUDGET_TAG = "peagle:budget"
"""Tag of the same resources: the USD that the end is computed from, if there is a budget."""

END_TAGS = (ENDS_TAG, BUDGET_TAG)

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


RETRY_POLICY = {"MaximumEventAgeInSeconds": 86_400, "MaximumRetryAttempts": 185}
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
        "Target": {"Input": json.dumps(request), "RetryPolicy": RETRY_POLICY},
    }


def target_arn(partition: str, copies: bool = False) -> str:
    """The universal target that deletes the endpoint, or the component of its ``copies``."""
    operation = "deleteInferenceComponent" if copies else "deleteEndpoint"
    return f"arn:{partition}:scheduler:::aws-sdk:sagemaker:{operation}"


def trust_policy(account: Any, service: str = SCHEDULER) -> dict[str, Any]:
    """The trust policy of a role: the service may assume it, for this account only."""
    return _document(
        {
            "Effect": "Allow",
            "Principal": {"Service": service},
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


_LONGEST_ID = 255


def rule_stem(endpoint: str, region: str) -> str:
    """How the names of all our rules for the endpoint begin; a dash and a hash follow."""
    return f"peagle-capture-{endpoint}-{region}"[: _LONGEST_ID - 9]


def rule_id(endpoint: str, region: str, prefix: S3Uri) -> str:
    """Such as ``peagle-capture-tiny-us-east-1-1a2b3c4d``: the name of our rule among the bucket's,
    one for each prefix, so that what was captured elsewhere in the bucket is deleted too."""
    digest = hashlib.sha256(prefix.key.encode()).hexdigest()[:8]
    return f"{rule_stem(endpoint, region)}-{digest}"


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
    rule = capture_rule(plan)
    if rule is None:
        return ""
    prefix, _ = rule
    return (
        f"a template cannot add a rule to the lifecycle of {prefix.bucket}, which it does not "
        "own (capture_retention 0 leaves that to the bucket)"
    )
