"""What is registered with Application Auto Scaling in the sandbox: variants and components.

moto keeps targets and policies; its package takes two seconds to import, so that is not done before
a target is registered. It does not know inference components, which are added here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from moto.cloudwatch.models import cloudwatch_backends

from peagle.render.resources import COPY_DIMENSION, COPY_METRIC, DIMENSION, METRIC
from peagle.sandbox import alarms, services
from peagle.sandbox.autoscaling import (
    AUTOSCALER,
    COOLDOWN_SECONDS,
    FiredStep,
    ScaledTarget,
    Tracking,
)
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.sagemaker import backend_of, find_endpoint
from peagle.sandbox.traffic import MetricSource

_METRICS = {DIMENSION: METRIC, COPY_DIMENSION: COPY_METRIC}
"""The predefined metric that is followed in each dimension."""


def scaled_targets() -> Iterator[ScaledTarget]:
    """The variants of existing endpoints, and the components, that have a scalable target."""
    loaded = _moto()
    for region, backend in loaded.items() if loaded else ():
        for target in list(backend.targets.get(DIMENSION, {}).values()):
            yield from _variant(region, backend, target)
        for target in list(backend.targets.get(COPY_DIMENSION, {}).values()):
            yield from _component(region, backend, target)


def _variant(region: str, backend: Any, target: Any) -> Iterator[ScaledTarget]:
    _, name, _, variant = target.resource_id.split("/")
    endpoint = find_endpoint(region, name)
    known = {one["VariantName"]: one for one in endpoint.variants} if endpoint else {}
    if endpoint is None or variant not in known or endpoint.serving is None:
        return

    def set_count(count: int) -> None:
        desired = [{"VariantName": variant, "DesiredInstanceCount": count}]
        backend_of(region).update_endpoint_weights_and_capacities(name, desired)

    count = known[variant]["InitialInstanceCount"] or 1
    yield ScaledTarget(
        region=region,
        resource=target.resource_id,
        dimension=DIMENSION,
        load=MetricSource(region, name, variant).metric("ConcurrentRequestsPerModel"),
        minimum=target.min_capacity,
        maximum=target.max_capacity,
        policy=_tracking(backend, target),
        count=count,
        is_busy=endpoint.is_busy,
        set_count=set_count,
        step=_step(region, backend, target, count),
    )


def _component(region: str, backend: Any, target: Any) -> Iterator[ScaledTarget]:
    name = target.resource_id.partition("/")[2]
    components = backend_of(region).components
    component = components.by_name.get(name)
    if component is None or component.fleet is None or component.status == "Deleting":
        return

    def set_count(count: int) -> None:
        desired = {"InferenceComponentName": name, "DesiredRuntimeConfig": {"CopyCount": count}}
        components.update_runtime_config(desired)

    variant = component.parameters["VariantName"]
    source = MetricSource(region, component.endpoint_name, variant, name)
    yield ScaledTarget(
        region=region,
        resource=target.resource_id,
        dimension=COPY_DIMENSION,
        load=source.metric("ConcurrentRequestsPerCopy"),
        minimum=target.min_capacity,
        maximum=target.max_capacity,
        policy=_tracking(backend, target),
        count=component.copies,
        is_busy=component.is_busy,
        set_count=set_count,
        step=_step(region, backend, target, component.copies),
    )


def _tracking(backend: Any, target: Any) -> Tracking | None:
    """The first policy of the target on its concurrency, unless scaling is suspended."""
    suspended = target.suspended_state or {}
    for policy in list(backend.policies.values()):
        found = policy.target_tracking_scaling_policy_configuration or {}
        metric = found.get("PredefinedMetricSpecification") or {}
        mine = policy.resource_id == target.resource_id
        if not mine or metric.get("PredefinedMetricType") != _METRICS[target.scalable_dimension]:
            continue
        if suspended.get("DynamicScalingOutSuspended"):
            return None
        return Tracking(
            target=found["TargetValue"],
            scale_in_cooldown=found.get("ScaleInCooldown", COOLDOWN_SECONDS),
            scale_out_cooldown=found.get("ScaleOutCooldown", COOLDOWN_SECONDS),
            scales_in=not (
                found.get("DisableScaleIn") or suspended.get("DynamicScalingInSuspended")
            ),
        )
    return None


def _step(region: str, backend: Any, target: Any, count: int) -> FiredStep | None:
    """What the first step policy asks for that an alarm calls now, of ``count`` instances or
    copies; ``None`` without one."""
    for policy in list(backend.policies.values()):
        found = policy.step_scaling_policy_configuration
        if policy.resource_id != target.resource_id or not found:
            continue
        if _is_called(region, policy.policy_arn) and (desired := stepped(found, count)) != count:
            return FiredStep(desired, found.get("Cooldown", COOLDOWN_SECONDS))
    return None


def _is_called(region: str, policy_arn: str) -> bool:
    """Whether an alarm with the policy among its actions is in the state ALARM now."""
    for alarm in list(cloudwatch_backends[ACCOUNT][region].alarms.values()):
        if policy_arn in (alarm.alarm_actions or ()) and alarm.actions_enabled:
            alarms.evaluate(alarm, time.time())
            if alarm.state_value == "ALARM":
                return True
    return False


def stepped(config: Mapping[str, Any], count: int) -> int:
    """The number that a StepScalingPolicyConfiguration makes of ``count``, by the step of a metric
    at its threshold."""
    for step in config.get("StepAdjustments") or ():
        low, high = step.get("MetricIntervalLowerBound"), step.get("MetricIntervalUpperBound")
        if (low is not None and low > 0) or (high is not None and high <= 0):
            continue
        change = int(step["ScalingAdjustment"])
        if config.get("AdjustmentType") == "ExactCapacity":
            return change
        if config.get("AdjustmentType") == "PercentChangeInCapacity":
            return count + count * change // 100
        return count + change
    return count


def _moto() -> Mapping[str, Any] | None:
    """moto's backends by region, once a request has loaded them."""
    loaded = sys.modules.get("moto.applicationautoscaling.models")
    backends = getattr(loaded, "applicationautoscaling_backends", None)  # None while it loads
    return backends[ACCOUNT] if backends else None


def _let_moto_know_components() -> None:
    """Add the dimension of inference components, which moto 5.2 refuses."""
    from moto.applicationautoscaling import models, responses

    known = {one.name: one.value for one in models.ScalableDimensionValueSet}
    if COPY_DIMENSION not in known.values():
        more = known | {"SAGEMAKER_INFERENCE_COMPONENT_DESIRED_COPY_COUNT": COPY_DIMENSION}
        extended = Enum("ScalableDimensionValueSet", more)  # type: ignore[misc]
        for module in (models, responses):
            vars(module)["ScalableDimensionValueSet"] = extended


class NoSuchTarget(services.NoSuchQuota):
    """Application Auto Scaling's ObjectNotFoundException."""

    code = "ObjectNotFoundException"


class InvalidTarget(services.NoSuchQuota):
    """Application Auto Scaling's ValidationException."""

    code = "ValidationException"


def _register(region: str, parameters: Mapping[str, Any]) -> None:
    """Checks what moto does not; moto registers the target."""
    dimension = parameters.get("ScalableDimension")
    if dimension not in _METRICS:
        return
    resource = str(parameters.get("ResourceId"))
    if dimension == COPY_DIMENSION:
        _let_moto_know_components()
        if resource.partition("/")[2] not in backend_of(region).components.by_name:
            raise InvalidTarget(f"Inference component not found: {resource}")
    else:
        _, name, _, variant = (resource.split("/") + [""] * 4)[:4]
        endpoint = find_endpoint(region, name)
        known = [one["VariantName"] for one in endpoint.variants] if endpoint else []
        if variant not in known:
            raise InvalidTarget(f"Endpoint variant not found: {resource}")
    least, most = parameters.get("MinCapacity"), parameters.get("MaxCapacity")
    if least is not None and most is not None and most < least:
        raise InvalidTarget("Maximum capacity cannot be less than minimum capacity")


def _deregister(region: str, parameters: Mapping[str, Any]) -> None:
    """Removes the target's policies, as AWS does; moto removes the target."""
    if parameters.get("ScalableDimension") not in _METRICS:
        return
    backend, resource = _registered(region, parameters)
    for key, policy in list(backend.policies.items()):
        if policy.resource_id == resource:
            del backend.policies[key]


def _with_target(region: str, parameters: Mapping[str, Any]) -> None:
    """A policy needs its target, which moto does not check."""
    if parameters.get("ScalableDimension") in _METRICS:
        _registered(region, parameters)


def _registered(region: str, parameters: Mapping[str, Any]) -> tuple[Any, str]:
    """moto's backend and the ResourceId of a registered target. Raises NoSuchTarget."""
    resource, dimension = parameters.get("ResourceId"), parameters.get("ScalableDimension")
    loaded = _moto()
    backend = loaded[region] if loaded else None
    if backend is None or resource not in backend.targets.get(dimension, {}):
        raise NoSuchTarget(
            f"No scalable target found for service namespace: sagemaker, resource ID: {resource}, "
            f"scalable dimension: {dimension}"
        )
    return backend, str(resource)


def _delete_policy(region: str, parameters: Mapping[str, Any]) -> None:
    """DeleteScalingPolicy of a policy that is missing is ObjectNotFoundException."""
    if parameters.get("ScalableDimension") not in _METRICS:
        return
    backend, resource = _registered(region, parameters)
    mine = (one for one in backend.policies.values() if one.resource_id == resource)
    name = parameters.get("PolicyName")
    if name not in [one.policy_name for one in mine]:
        raise NoSuchTarget(f"No scaling policy found for resource ID: {resource}, {name}")


def _unless_loaded(empty: str) -> Callable[[str, Mapping[str, Any]], dict[str, Any] | None]:
    """A listing that is empty as long as nothing was registered."""
    return lambda region, parameters: None if _moto() else {empty: []}


def _describe_activities(region: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeScalingActivities, which moto lacks."""
    return {"ScalingActivities": AUTOSCALER.activities(region, parameters.get("ResourceId"))}


_SERVICE = "AnyScaleFrontendService"

OPERATIONS: dict[str, Callable[[str, Mapping[str, Any]], dict[str, Any] | None]] = {
    f"{_SERVICE}.RegisterScalableTarget": _register,
    f"{_SERVICE}.DeregisterScalableTarget": _deregister,
    f"{_SERVICE}.PutScalingPolicy": _with_target,
    f"{_SERVICE}.DeleteScalingPolicy": _delete_policy,
    f"{_SERVICE}.DescribeScalableTargets": _unless_loaded("ScalableTargets"),
    f"{_SERVICE}.DescribeScalingPolicies": _unless_loaded("ScalingPolicies"),
    f"{_SERVICE}.DescribeScalingActivities": _describe_activities,
}
"""X-Amz-Target -> the operation; its result ``None`` passes the request on to moto."""
