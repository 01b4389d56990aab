"""Application Auto Scaling of endpoints: one typed function per call.

A scalable target is the variant of an endpoint with its bounds, or the inference component of the
endpoint's name; its policies say what to hold. A component that scales to zero has a second policy,
which an alarm calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from peagle.aws import cloudwatch
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.planning.plan import Scaling
from peagle.render.requests import VARIANT
from peagle.render.resources import (
    COPY_DIMENSION,
    COPY_METRIC,
    DIMENSION,
    METRIC,
    POLICY,
    SERVICE_NAMESPACE,
    WAKE_POLICY,
    copies_id,
    policy_parameters,
    register_parameters,
    target_id,
    target_parameters,
    wake_alarm,
    wake_alarm_name,
    wake_policy_parameters,
)
from peagle.text import bounds_text


@dataclass(frozen=True)
class Bounds:
    """The registered bounds of an endpoint's variant, and what our own policy holds: ``target``
    requests at a time of each instance, with cooldowns in seconds; ``None`` without one, or where
    policies were not read. ``scales_copies``: those of its inference component."""

    minimum: int
    maximum: int
    target: float | None = None
    scale_in_cooldown: int | None = None
    scale_out_cooldown: int | None = None
    scales_copies: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether our own policy holds it, as far as policies were read."""
        return self.target is not None

    @property
    def text(self) -> str:
        """``1 to 4 instances, target 8 requests at a time each``."""
        return bounds_text(self.minimum, self.maximum, self.target, self.scales_copies)

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        counted = "copies" if self.scales_copies else "instances"
        return {
            f"min_{counted}": self.minimum,
            f"max_{counted}": self.maximum,
            "target_concurrency": self.target,
        }


def bounds_of(scaling: Scaling) -> Bounds:
    """What registering ``scaling`` leads to."""
    return Bounds(
        scaling.minimum,
        scaling.maximum,
        scaling.target_concurrency,
        scaling.scale_in_cooldown_seconds,
        scaling.scale_out_cooldown_seconds,
        scaling.scales_copies,
    )


def registered(aws: Aws, endpoint: str, policies: bool = True) -> Bounds | None:
    """The bounds of the endpoint; ``None`` when it does not scale automatically. ``policies``: read
    its policy too. Raises CloudError, and AccessDenied."""
    ids = [target_id(endpoint, VARIANT), copies_id(endpoint)]
    bounds = next((bounds for _, bounds in _targets(aws, ResourceIds=ids)), None)
    if bounds is None or not policies:
        return bounds
    policy = _policy(aws, endpoint, POLICY, bounds.scales_copies) or {}
    tracking = policy.get("TargetTrackingScalingPolicyConfiguration") or {}
    metric = tracking.get("PredefinedMetricSpecification", {}).get("PredefinedMetricType")
    if metric != (COPY_METRIC if bounds.scales_copies else METRIC):
        return bounds
    return replace(
        bounds,
        target=tracking["TargetValue"],
        scale_in_cooldown=tracking.get("ScaleInCooldown"),
        scale_out_cooldown=tracking.get("ScaleOutCooldown"),
    )


def _policy(aws: Aws, endpoint: str, name: str, copies: bool) -> dict[str, Any] | None:
    target = target_parameters(endpoint, VARIANT, copies)
    listed = aws.items(
        "application-autoscaling", "describe_scaling_policies", "ScalingPolicies", **target
    )
    return next((policy for policy in listed if policy["PolicyName"] == name), None)


def all_registered(aws: Aws) -> dict[str, Bounds]:
    """The bounds of every endpoint of the region that scales automatically, by its name, without
    policies. Raises CloudError, and AccessDenied."""
    return dict(_targets(aws))


def _targets(aws: Aws, **chosen: Sequence[str]) -> Iterator[tuple[str, Bounds]]:
    """The bounds by endpoint, whose name its component has."""
    listed = aws.items(
        "application-autoscaling",
        "describe_scalable_targets",
        "ScalableTargets",
        ServiceNamespace=SERVICE_NAMESPACE,
        **chosen,
    )
    for target in listed:
        parts, dimension = str(target["ResourceId"]).split("/"), target.get("ScalableDimension")
        copies = dimension == COPY_DIMENSION
        if (dimension == DIMENSION and len(parts) == 4) or (copies and len(parts) == 2):
            bounds = Bounds(target["MinCapacity"], target["MaxCapacity"], scales_copies=copies)
            yield parts[1], bounds


def register(aws: Aws, endpoint: str, scaling: Scaling, tags: Sequence[dict[str, str]]) -> None:
    """Register the endpoint, or its component, with these bounds and our policies; replaces those
    that it had. ``tags`` are those of the alarm that wakes it."""
    target = register_parameters(endpoint, VARIANT, scaling)
    aws.call("application-autoscaling", "register_scalable_target", **target)
    policy = policy_parameters(endpoint, VARIANT, scaling)
    aws.call("application-autoscaling", "put_scaling_policy", **policy)
    if scaling.scales_to_zero:
        wake = wake_policy_parameters(endpoint, VARIANT, scaling)
        made = aws.call("application-autoscaling", "put_scaling_policy", **wake)
        cloudwatch.put_metric_alarm(aws, wake_alarm(endpoint, made["PolicyARN"], tags))


def wake_policy(aws: Aws, endpoint: str) -> dict[str, Any] | None:
    """The policy that starts the first copy, as DescribeScalingPolicies has it; ``None`` without
    one."""
    return _policy(aws, endpoint, WAKE_POLICY, copies=True)


def stay_awake(aws: Aws, endpoint: str) -> None:
    """Remove the alarm that wakes a component which slept, and its policy; ignores what is gone."""
    cloudwatch.delete_alarms(aws, [wake_alarm_name(endpoint)])
    target = target_parameters(endpoint, VARIANT, copies=True)
    with suppress(Missing):
        aws.call(
            "application-autoscaling", "delete_scaling_policy", **target, PolicyName=WAKE_POLICY
        )


def deregister(aws: Aws, endpoint: str, copies: bool = False) -> None:
    """End automatic scaling, with its policies and alarms; ignores an endpoint that has none."""
    target = target_parameters(endpoint, VARIANT, copies)
    with suppress(Missing):
        aws.call("application-autoscaling", "deregister_scalable_target", **target)
    if copies:  # the other alarms are Application Auto Scaling's own
        cloudwatch.delete_alarms(aws, [wake_alarm_name(endpoint)])


def deregister_before_deletion(aws: Aws, endpoint: str, copies: bool = False) -> None:
    """``deregister``; where that is not allowed, DeleteEndpoint reports what is in its way."""
    with suppress(AccessDenied):
        deregister(aws, endpoint, copies)
