"""Application Auto Scaling in the sandbox: it really starts and ends engines.

moto keeps targets and policies; its package takes two seconds to import, so that is not done before
a target is registered. It does not know inference components, which are added here.

A target always has a number within its bounds. A policy of target tracking starts instances or
copies once the average concurrency of one was above its target for 30 s, and ends some once it was
below 90 % of it for 15 minutes. A step policy that an alarm calls wakes a component without a copy
when a request finds none. ``set_speed`` lets these times pass faster.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from moto.cloudwatch.models import cloudwatch_backends
from moto.core.exceptions import ServiceException

from peagle.render.resources import COPY_DIMENSION, COPY_METRIC, DIMENSION, METRIC
from peagle.sandbox.account import AwsError, Operation
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.engines import Fleet
from peagle.sandbox.sagemaker import backend_of, find_endpoint

_METRICS = {DIMENSION: METRIC, COPY_DIMENSION: COPY_METRIC}
"""The predefined metric that is followed in each dimension."""

COOLDOWN_SECONDS = 300
"""Application Auto Scaling's default of all cooldowns for instances and copies."""
_OUT_SECONDS, _IN_SECONDS, _IN_SHARE = 30.0, 900.0, 0.9
_SHORTEST_SECONDS = 2.0
_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class Tracking:
    """A target tracking policy on the concurrency of an instance; cooldowns are seconds."""

    target: float
    scale_in_cooldown: float = COOLDOWN_SECONDS
    scale_out_cooldown: float = COOLDOWN_SECONDS
    scales_in: bool = True


@dataclass(frozen=True)
class ScaledTarget:
    """A variant, or an inference component, with a scalable target. ``load`` is the requests in
    progress of an average instance or copy. ``policy`` is ``None`` for one that the sandbox does
    not follow; ``set_count`` starts or ends engines and may raise ServiceException; ``is_woken``: a
    request found no copy."""

    region: str
    resource: str
    load: float
    minimum: int
    maximum: int
    policy: Tracking | None
    count: int
    is_busy: bool
    set_count: Callable[[int], object]
    is_woken: bool = False


def decide(
    target: ScaledTarget, recent: Sequence[float], long: Sequence[float], quiet: float
) -> int:
    """How many instances or copies the target should have.

    ``recent`` and ``long`` are the requests at a time of one in the last 30 s, and in the last 15
    minutes; empty where they do not reach back that far. ``quiet`` is how many seconds ago the
    number changed last.
    """
    count, policy = target.count, target.policy
    if not target.minimum <= count <= target.maximum:
        return min(max(count, target.minimum), target.maximum)
    if target.is_woken or policy is None:
        return max(count, 1) if target.is_woken else count
    periods = [recent[len(recent) * i // 3 : len(recent) * (i + 1) // 3] for i in range(3)]
    is_above = all(part and sum(part) / len(part) > policy.target for part in periods)
    if is_above and quiet >= policy.scale_out_cooldown:
        mean = sum(recent) / len(recent)
        return min(math.ceil(count * mean / policy.target), target.maximum)
    mean = sum(long) / len(long) if long else math.inf
    is_quiet = policy.scales_in and quiet >= policy.scale_in_cooldown
    if mean < _IN_SHARE * policy.target and is_quiet:
        return max(math.ceil(count * mean / policy.target), target.minimum)
    return count


class Autoscaler:
    """Follows the policies of all targets. ``speed`` is how many seconds pass in one."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, and let time pass as usual."""
        self.speed = 1.0
        self._changed: dict[tuple[str, str], float] = {}
        self._loads: dict[tuple[str, str], deque[tuple[float, float]]] = {}

    def follow(self, target: ScaledTarget, now: float) -> None:
        """Change the number of instances if its policy asks for that. ``now`` is epoch seconds."""
        key = (target.region, target.resource)
        loads = self._loads.setdefault(key, deque(maxlen=int(_IN_SECONDS / _TICK_SECONDS) + 10))
        if target.is_busy:  # only what is measured with the present number counts
            self._changed[key] = now
            loads.clear()
            return
        loads.append((now, target.load))

        def window(seconds: float) -> list[float]:
            """The loads of the last ``seconds``; empty where they do not reach back that far."""
            start = now - max(seconds / self.speed, _SHORTEST_SECONDS)
            return [load for at, load in loads if at >= start] if loads[0][0] <= start else []

        quiet = (now - self._changed.get(key, -math.inf)) * self.speed
        desired = decide(target, window(_OUT_SECONDS), window(_IN_SECONDS), quiet)
        if desired == target.count:
            return
        self._changed[key] = now
        loads.clear()
        print(f"{target.resource}: {target.count} -> {desired}", flush=True)
        try:
            target.set_count(desired)
        except ServiceException as error:
            print(f"{target.resource} stays: {error.message}", flush=True)


AUTOSCALER = Autoscaler()


def set_speed(speed: float) -> None:
    """Let the times of scaling pass ``speed`` times as fast. Raises ValueError."""
    if not 1 <= speed <= 1000:  # false for NaN
        raise ValueError(f"a speed is a number from 1 to 1000, not {speed}")
    AUTOSCALER.speed = speed


def start() -> None:
    """Follow the policies of all targets for as long as the process runs."""

    def follow() -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            try:
                for target in _scaled_targets():
                    AUTOSCALER.follow(target, time.time())
            except Exception:  # a bug here must not end the scaling of every endpoint
                traceback.print_exc()

    threading.Thread(target=follow, name="autoscaling", daemon=True).start()


def _scaled_targets() -> Iterator[ScaledTarget]:
    """The variants of existing endpoints, and the components, that have a scalable target."""
    for region, backend in (_backends() or {}).items():
        for dimension in _METRICS:
            for target in list(backend.targets.get(dimension, {}).values()):
                yield from _scaled_target(region, backend, target)


def _scaled_target(region: str, backend: Any, target: Any) -> Iterator[ScaledTarget]:
    parts, sagemaker = target.resource_id.split("/"), backend_of(region)
    is_woken = False
    if target.scalable_dimension == DIMENSION:
        _, name, _, variant_name = parts
        endpoint = sagemaker.endpoints.get(name)
        if endpoint is None or not endpoint.is_serving:
            return
        variants = {variant["VariantName"]: variant for variant in endpoint.variants}
        if variant_name not in variants:
            return
        fleet, is_busy = endpoint.current, endpoint.is_busy
        count = variants[variant_name]["InitialInstanceCount"] or 1

        def set_count(count: int) -> None:
            desired = [{"VariantName": variant_name, "DesiredInstanceCount": count}]
            sagemaker.update_endpoint_weights_and_capacities(name, desired)

    else:
        component = sagemaker.components.get(parts[1])
        if component is None or component.current is None or component.status == "Deleting":
            return
        variant_name = component.parameters["VariantName"]
        fleet, is_busy, count = component.current, component.is_busy, component.copies
        is_woken = component.refused_at > 0 and _has_wake_up(region, backend, target)

        def set_count(count: int) -> None:
            component.refused_at = 0.0
            changes = {"InferenceComponentName": component.name}
            sagemaker.update_component({**changes, "RuntimeConfig": {"CopyCount": count}})

    bounds = target.min_capacity, target.max_capacity
    yield ScaledTarget(
        region, target.resource_id, _load(fleet, variant_name), *bounds,
        _tracking(backend, target), count, is_busy, set_count, is_woken,
    )  # fmt: skip


def _load(fleet: Fleet | None, variant: str) -> float:
    """The requests in progress of an average instance of the variant."""
    instances = fleet.instances if fleet else ()
    loads = [instance.in_progress for instance in instances if instance.spec.variant == variant]
    return sum(loads) / len(loads) if loads else 0.0


def _policies(backend: Any, resource: str | None) -> dict[str, Any]:
    """Key -> policy, of those of a target."""
    policies = list(backend.policies.items())
    return {key: policy for key, policy in policies if policy.resource_id == resource}


def _tracking(backend: Any, target: Any) -> Tracking | None:
    """The first policy of the target on its concurrency."""
    for policy in _policies(backend, target.resource_id).values():
        config = policy.target_tracking_scaling_policy_configuration or {}
        metric = (config.get("PredefinedMetricSpecification") or {}).get("PredefinedMetricType")
        if metric == _METRICS[target.scalable_dimension]:
            return Tracking(
                target=config["TargetValue"],
                scale_in_cooldown=config.get("ScaleInCooldown", COOLDOWN_SECONDS),
                scale_out_cooldown=config.get("ScaleOutCooldown", COOLDOWN_SECONDS),
                scales_in=not config.get("DisableScaleIn"),
            )
    return None


def _has_wake_up(region: str, backend: Any, target: Any) -> bool:
    """Whether a step policy starts a copy when an alarm sees a request that found none."""
    alarms = list(cloudwatch_backends[ACCOUNT][region].alarms.values())
    called = {action for alarm in alarms for action in alarm.alarm_actions or ()}
    return any(
        policy.step_scaling_policy_configuration and policy.policy_arn in called
        for policy in _policies(backend, target.resource_id).values()
    )


def _backends() -> Mapping[str, Any] | None:
    """moto's backends by region, once a request has loaded them."""
    loaded = sys.modules.get("moto.applicationautoscaling.models")
    backends = getattr(loaded, "applicationautoscaling_backends", None)  # None while it loads
    return backends[ACCOUNT] if backends else None


def _let_moto_know_components() -> None:
    """Add the dimension of inference components, which moto 5.2 refuses."""
    from moto.applicationautoscaling import models, responses

    dimensions = {member.name: member.value for member in models.ScalableDimensionValueSet}
    if COPY_DIMENSION not in dimensions.values():
        more = dimensions | {"SAGEMAKER_INFERENCE_COMPONENT_DESIRED_COPY_COUNT": COPY_DIMENSION}
        extended = Enum("ScalableDimensionValueSet", more)  # type: ignore[misc]
        for module in (models, responses):
            vars(module)["ScalableDimensionValueSet"] = extended


# The operations below check what moto does not, for SageMaker's dimensions, before moto does them.


def _register(region: str, parameters: Mapping[str, Any]) -> None:
    resource = str(parameters.get("ResourceId"))
    if parameters["ScalableDimension"] == COPY_DIMENSION:
        _let_moto_know_components()
        if resource.partition("/")[2] not in backend_of(region).components:
            raise AwsError(_INVALID, f"Inference component not found: {resource}")
    else:
        _, name, _, variant_name = (resource.split("/") + [""] * 4)[:4]
        endpoint = find_endpoint(region, name)
        variants = endpoint.variants if endpoint else []
        if variant_name not in [variant["VariantName"] for variant in variants]:
            raise AwsError(_INVALID, f"Endpoint variant not found: {resource}")
    least, most = parameters.get("MinCapacity"), parameters.get("MaxCapacity")
    if least is not None and most is not None and most < least:
        raise AwsError(_INVALID, "Maximum capacity cannot be less than minimum capacity")


def _find_policies(region: str, parameters: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """moto's backend, and the target's policies by key."""
    resource, dimension = parameters.get("ResourceId"), parameters["ScalableDimension"]
    backends = _backends()
    backend = backends[region] if backends else None
    if backend is None or resource not in backend.targets.get(dimension, {}):
        raise AwsError(
            _NO_TARGET,
            f"No scalable target found for service namespace: sagemaker, resource ID: {resource}, "
            f"scalable dimension: {dimension}",
        )
    return backend, _policies(backend, resource)


def _deregister(region: str, parameters: Mapping[str, Any]) -> None:
    backend, policies = _find_policies(region, parameters)
    for key in policies:  # AWS removes them with the target
        del backend.policies[key]


def _delete_policy(region: str, parameters: Mapping[str, Any]) -> None:
    _, policies = _find_policies(region, parameters)
    name = parameters.get("PolicyName")
    if name not in [policy.policy_name for policy in policies.values()]:
        resource = parameters.get("ResourceId")
        raise AwsError(_NO_TARGET, f"No scaling policy found for {resource}, {name}")


_INVALID, _NO_TARGET = "ValidationException", "ObjectNotFoundException"


def _of_sagemaker(check: Callable[[str, Mapping[str, Any]], object]) -> Operation:
    def operation(region: str, parameters: Mapping[str, Any]) -> None:
        if parameters.get("ScalableDimension") in _METRICS:
            check(region, parameters)

    return operation


def _unless_loaded(empty: str) -> Operation:
    """A listing that is empty as long as nothing was registered."""
    return lambda region, parameters: None if _backends() else {empty: []}


_SERVICE = "AnyScaleFrontendService"

OPERATIONS: dict[str, Operation] = {
    f"{_SERVICE}.RegisterScalableTarget": _of_sagemaker(_register),
    f"{_SERVICE}.DeregisterScalableTarget": _of_sagemaker(_deregister),
    f"{_SERVICE}.PutScalingPolicy": _of_sagemaker(_find_policies),
    f"{_SERVICE}.DeleteScalingPolicy": _of_sagemaker(_delete_policy),
    f"{_SERVICE}.DescribeScalableTargets": _unless_loaded("ScalableTargets"),
    f"{_SERVICE}.DescribeScalingPolicies": _unless_loaded("ScalingPolicies"),
    # Terraform requires a response.
    f"{_SERVICE}.ListTagsForResource": lambda region, parameters: {"Tags": {}},
}
"""X-Amz-Target -> the operation, which passes the request on to moto by ``None``."""
