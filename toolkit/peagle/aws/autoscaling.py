"""Application Auto Scaling of endpoints: one typed function per call.

A scalable target is the variant of an endpoint with its bounds, or the inference component of the
endpoint's name; its policies say what to hold. A component that scales to zero has a second policy,
which an alarm calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peagle.aws.client import Aws
from peagle.planning.plan import Scaling
from peagle.render import resources
from peagle.render.requests import VARIANT
from peagle.text import bounds_text

_SERVICE = "application-autoscaling"


@dataclass(frozen=True)
class Bounds:
    """The registered bounds, and what our own policy holds: ``target`` requests at a time of each
    instance, with cooldowns in seconds; ``None`` without one, or where policies were not read."""

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

    @property
    def by_name(self) -> dict[str, float | None]:
        """The bounds by what they count, and the target: ``min_copies``, ``max_instances``."""
        counted = "copies" if self.scales_copies else "instances"
        return {
            f"min_{counted}": self.minimum,
            f"max_{counted}": self.maximum,
            "target_concurrency": self.target,
        }

    @property
    def settings(self) -> dict[str, float | None]:
        """``by_name`` with the cooldowns."""
        return {
            **self.by_name,
            "scale_in_cooldown": self.scale_in_cooldown,
            "scale_out_cooldown": self.scale_out_cooldown,
        }


def to_bounds(scaling: Scaling) -> Bounds:
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
    ids = [resources.target_id(endpoint, VARIANT), resources.copies_id(endpoint)]
    bounds = next(iter(all_registered(aws, ResourceIds=ids).values()), None)
    if bounds is None or not policies:
        return bounds
    target = resources.target_parameters(endpoint, VARIANT, bounds.scales_copies)
    listed = aws.items(_SERVICE, "describe_scaling_policies", "ScalingPolicies", **target)
    policy = next((policy for policy in listed if policy["PolicyName"] == resources.POLICY), {})
    tracking = policy.get("TargetTrackingScalingPolicyConfiguration") or {}
    metric = tracking.get("PredefinedMetricSpecification", {}).get("PredefinedMetricType")
    if metric != (resources.COPY_METRIC if bounds.scales_copies else resources.METRIC):
        return bounds
    return replace(
        bounds,
        target=tracking["TargetValue"],
        scale_in_cooldown=tracking.get("ScaleInCooldown"),
        scale_out_cooldown=tracking.get("ScaleOutCooldown"),
    )


def all_registered(aws: Aws, **chosen: Sequence[str]) -> dict[str, Bounds]:
    """The bounds of every endpoint of the region that scales automatically, by its name, which its
    component has too; without policies. Raises CloudError, and AccessDenied."""
    bounds: dict[str, Bounds] = {}
    for target in aws.items(
        _SERVICE, "describe_scalable_targets", "ScalableTargets",
        ServiceNamespace=resources.SERVICE_NAMESPACE, **chosen,
    ):  # fmt: skip
        parts, dimension = str(target["ResourceId"]).split("/"), target.get("ScalableDimension")
        copies = dimension == resources.COPY_DIMENSION
        if (dimension == resources.DIMENSION and len(parts) == 4) or (copies and len(parts) == 2):
            registration = Bounds(
                target["MinCapacity"], target["MaxCapacity"], scales_copies=copies
            )
            bounds.setdefault(parts[1], registration)
    return bounds


def register(aws: Aws, endpoint: str, scaling: Scaling, tags: Sequence[dict[str, str]]) -> None:
    """Register the endpoint, or its component, with these bounds and our policies; replaces those
    that it had. ``tags`` are those of the alarm that wakes it."""
    target = resources.register_parameters(endpoint, VARIANT, scaling)
    aws.call(_SERVICE, "register_scalable_target", **target)
    aws.call(
        _SERVICE, "put_scaling_policy", **resources.policy_parameters(endpoint, VARIANT, scaling)
    )
    if scaling.scales_to_zero:
        wake = resources.wake_policy_parameters(endpoint, VARIANT, scaling)
        made = aws.call(_SERVICE, "put_scaling_policy", **wake)
        alarm = resources.wake_alarm(endpoint, made["PolicyARN"], tags)
        aws.call("cloudwatch", "put_metric_alarm", **alarm)


def deregister(aws: Aws, endpoint: str, copies: bool = False) -> None:
    """End automatic scaling, with its policies and alarms; ignores an endpoint that has none."""
    target = resources.target_parameters(endpoint, VARIANT, copies)
    aws.delete(_SERVICE, "deregister_scalable_target", **target)
    if copies:  # the other alarms are Application Auto Scaling's own
        aws.delete("cloudwatch", "delete_alarms", AlarmNames=[resources.wake_alarm_name(endpoint)])
