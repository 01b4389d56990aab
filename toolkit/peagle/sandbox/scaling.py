"""What acts by itself in the sandbox: Application Auto Scaling, and EventBridge Scheduler.

moto keeps scalable targets and policies; its package takes two seconds to import, so it is imported
when the first target is registered. Target tracking starts instances or copies once the concurrency
of each was above its target for 30 s, and ends some once it was below 90 % of that for 15 minutes.
A step policy that an alarm calls starts a copy when a request finds none.

Of moto's schedules, those with ``at(...)`` that delete an endpoint or a component are fired once
they are due; what SageMaker refuses is tried again for the maximum age of the retry policy.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from statistics import fmean
from typing import Any, cast
from zoneinfo import ZoneInfo

from moto.cloudwatch.models import cloudwatch_backends
from moto.core.exceptions import ServiceException
from moto.scheduler.models import EventBridgeSchedulerBackend, Schedule, scheduler_backends

from peagle.render.resources import COPY_DIMENSION, COPY_METRIC, DIMENSION, METRIC
from peagle.sandbox.account import AwsError, Operation
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.endpoints import RefusedForNowError
from peagle.sandbox.sagemaker import find_backend, find_endpoint
from peagle_serve.json_reader import read

_METRICS = {DIMENSION: METRIC, COPY_DIMENSION: COPY_METRIC}
"""The predefined metric that is followed in each dimension."""

COOLDOWN_SECONDS = 300
"""Application Auto Scaling's default of all cooldowns for instances and copies."""
_OUT_SECONDS, _IN_SECONDS, _IN_SHARE = 30.0, 900.0, 0.9
_SHORTEST_SECONDS = 2.0
_TICK_SECONDS = 0.5
_SCHEDULE_SECONDS = 1.0
_LONGEST_RETRY = 86_400
"""Seconds in which a schedule without a RetryPolicy is tried again (EventBridge Scheduler)."""


@dataclass(frozen=True)
class ScaledTarget:
    """A variant, or an inference component, with a scalable target. ``load`` is the requests in
    progress of an average instance or copy. ``policy`` is the configuration of its target tracking;
    ``set_count`` starts or ends engines and may raise ServiceException; ``is_woken``: a request
    found no copy."""

    region: str
    resource: str
    load: float
    minimum: int
    maximum: int
    policy: Mapping[str, Any] | None
    count: int
    is_busy: bool
    set_count: Callable[[int], object]
    is_woken: bool = False


class Autoscaler:
    """Follows the policies of all targets. ``speed`` is how many seconds pass in one."""

    def __init__(self) -> None:
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
        count, policy = target.count, target.policy
        desired = min(max(count, target.minimum), target.maximum)
        if target.is_woken:
            desired = max(desired, 1)
        elif policy and desired == count:
            recent, long = window(_OUT_SECONDS), window(_IN_SECONDS)
            aim = float(policy["TargetValue"])
            thirds = [recent[len(recent) * i // 3 : len(recent) * (i + 1) // 3] for i in range(3)]
            is_above = all(part and fmean(part) > aim for part in thirds)
            is_below = long and fmean(long) < _IN_SHARE * aim
            if is_above and quiet >= policy.get("ScaleOutCooldown", COOLDOWN_SECONDS):
                desired = min(math.ceil(count * fmean(recent) / aim), target.maximum)
            elif is_below and quiet >= policy.get("ScaleInCooldown", COOLDOWN_SECONDS):
                desired = max(math.ceil(count * fmean(long) / aim), target.minimum)
        if desired == target.count:
            return
        self._changed[key] = now
        loads.clear()
        print(f"{target.resource}: {target.count} -> {desired}", flush=True)
        try:
            target.set_count(desired)
        except ServiceException as error:
            print(f"{target.resource} stays: {error.message}", flush=True)


_autoscaler = Autoscaler()


def set_speed(speed: float) -> None:
    """Let the times of scaling pass ``speed`` times as fast. Raises ValueError."""
    if not 1 <= speed <= 1000:  # false for NaN
        raise ValueError(f"a speed is a number from 1 to 1000, not {speed}")
    _autoscaler.speed = speed


def forget() -> None:
    """Forget all that was measured, and let time pass as usual."""
    global _autoscaler, _ahead
    _autoscaler, _ahead = Autoscaler(), 0.0


def start() -> None:
    """Follow policies and fire due schedules for as long as the process runs."""

    def follow() -> None:
        for region, backend in (_backends() or {}).items():
            for dimension in _METRICS:
                for registered in list(backend.targets.get(dimension, {}).values()):
                    if target := _scaled_target(region, backend, registered):
                        _autoscaler.follow(target, time.time())

    def repeat(work: Callable[[], object], seconds: float) -> None:
        while True:
            time.sleep(seconds)
            try:
                work()
            except Exception:  # a bug here must not end the scaling of every endpoint
                traceback.print_exc()

    for arguments in ((follow, _TICK_SECONDS), (lambda: advance(0), _SCHEDULE_SECONDS)):
        threading.Thread(target=repeat, args=arguments, daemon=True).start()


def _scaled_target(region: str, backend: Any, target: Any) -> ScaledTarget | None:
    """The variant of an existing endpoint, or the component, of moto's scalable target."""
    parts, sagemaker = target.resource_id.split("/"), find_backend(region)
    policies = _policies(backend, target.resource_id).values()
    is_woken = False
    if target.scalable_dimension == DIMENSION:
        _, name, _, variant_name = parts
        endpoint = sagemaker.endpoints.get(name)
        if endpoint is None or not endpoint.is_serving:
            return None
        variants = {variant["VariantName"]: variant for variant in endpoint.variants}
        if variant_name not in variants:
            return None
        fleet, is_busy = endpoint.current, endpoint.is_busy
        count = variants[variant_name]["InitialInstanceCount"] or 1

        def set_count(count: int) -> None:
            desired = [{"VariantName": variant_name, "DesiredInstanceCount": count}]
            sagemaker.update_endpoint_weights_and_capacities(name, desired)

    else:
        component = sagemaker.components.get(parts[1])
        if component is None or component.current is None or component.status == "Deleting":
            return None
        variant_name = component.parameters["VariantName"]
        fleet, is_busy, count = component.current, component.is_busy, component.copies
        # A step policy starts a copy when an alarm sees a request that found none.
        alarms = list(cloudwatch_backends[ACCOUNT][region].alarms.values())
        called = {action for alarm in alarms for action in alarm.alarm_actions or ()}
        is_woken = component.refused_at > 0 and any(
            policy.step_scaling_policy_configuration and policy.policy_arn in called
            for policy in policies
        )

        def set_count(count: int) -> None:
            component.refused_at = 0.0
            changes = {"InferenceComponentName": component.name}
            sagemaker.update_component({**changes, "RuntimeConfig": {"CopyCount": count}})

    instances = fleet.instances if fleet else ()
    loads = [inst.in_progress for inst in instances if inst.spec.variant == variant_name]
    load = fmean(loads) if loads else 0.0
    tracking = None
    for config in (policy.target_tracking_scaling_policy_configuration for policy in policies):
        metric = ((config or {}).get("PredefinedMetricSpecification") or {}).get(
            "PredefinedMetricType"
        )
        if tracking is None and metric == _METRICS[target.scalable_dimension]:
            tracking = config
    return ScaledTarget(
        region, target.resource_id, load, target.min_capacity, target.max_capacity, tracking,
        count, is_busy, set_count, is_woken,
    )  # fmt: skip


def _policies(backend: Any, resource: str | None) -> dict[str, Any]:
    """Key -> policy, of those of a target."""
    policies = list(backend.policies.items())
    return {key: policy for key, policy in policies if policy.resource_id == resource}


def _backends() -> Mapping[str, Any] | None:
    """moto's backends by region, once a request has loaded them."""
    loaded = sys.modules.get("moto.applicationautoscaling.models")
    backends = getattr(loaded, "applicationautoscaling_backends", None)  # None while it loads
    return backends[ACCOUNT] if backends else None


# The operations below check what moto does not, for SageMaker's dimensions, before moto does them.

_INVALID, _NO_TARGET = "ValidationException", "ObjectNotFoundException"


def _register(region: str, parameters: Mapping[str, Any]) -> None:
    resource = str(parameters.get("ResourceId"))
    if parameters["ScalableDimension"] == COPY_DIMENSION:
        from moto.applicationautoscaling import models, responses

        # Add the dimension of inference components, which moto 5.2 refuses.
        dimensions = {member.name: member.value for member in models.ScalableDimensionValueSet}
        if COPY_DIMENSION not in dimensions.values():
            more = dimensions | {"SAGEMAKER_INFERENCE_COMPONENT_DESIRED_COPY_COUNT": COPY_DIMENSION}
            extended = Enum("ScalableDimensionValueSet", more)  # type: ignore[misc]
            for module in (models, responses):
                vars(module)["ScalableDimensionValueSet"] = extended
        if resource.partition("/")[2] not in find_backend(region).components:
            raise AwsError(_INVALID, f"Inference component not found: {resource}")
    else:
        _, name, _, variant_name = (resource.split("/") + [""] * 4)[:4]
        endpoint = find_endpoint(region, name)
        variants = endpoint.variants if endpoint else []
        if variant_name not in [variant["VariantName"] for variant in variants]:
            raise AwsError(_INVALID, f"Endpoint variant not found: {resource}")


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


def _require_sagemaker(check: Callable[[str, Mapping[str, Any]], object]) -> Operation:
    def operation(region: str, parameters: Mapping[str, Any]) -> None:
        if parameters.get("ScalableDimension") in _METRICS:
            check(region, parameters)

    return operation


def _unless_loaded(empty: str) -> Operation:
    """A listing that is empty as long as nothing was registered."""
    return lambda region, parameters: None if _backends() else {empty: []}


_SERVICE = "AnyScaleFrontendService"

OPERATIONS: dict[str, Operation] = {
    f"{_SERVICE}.RegisterScalableTarget": _require_sagemaker(_register),
    f"{_SERVICE}.DeregisterScalableTarget": _require_sagemaker(_deregister),
    f"{_SERVICE}.PutScalingPolicy": _require_sagemaker(_find_policies),
    f"{_SERVICE}.DeleteScalingPolicy": _require_sagemaker(_delete_policy),
    f"{_SERVICE}.DescribeScalableTargets": _unless_loaded("ScalableTargets"),
    f"{_SERVICE}.DescribeScalingPolicies": _unless_loaded("ScalingPolicies"),
    # Terraform requires a response.
    f"{_SERVICE}.ListTagsForResource": lambda region, parameters: {"Tags": {}},
}
"""X-Amz-Target -> the operation, which passes the request on to moto by ``None``."""


_ahead = 0.0
"""Seconds by which the scheduler's time is ahead of the machine's, so that tests need not wait."""


def advance(seconds: float) -> list[str]:
    """Move the scheduler's time forward until a reset; the names of the schedules that are done."""
    global _ahead
    with _FIRING:  # a thread calls this, too
        _ahead += seconds
    return fire_due(time.time() + _ahead)


_FIRING = threading.Lock()
_fired: set[tuple[str, str, float]] = set()
"""What has fired and stays: ARN, expression, and when it was changed."""


def due_time(expression: str, timezone: str | None) -> float | None:
    """When a one-time schedule is due, in epoch seconds; ``None`` for any other."""
    try:
        moment = datetime.strptime(expression, "at(%Y-%m-%dT%H:%M:%S)")
        return moment.replace(tzinfo=ZoneInfo(timezone or "UTC")).astimezone(UTC).timestamp()
    except (ValueError, OSError, KeyError):
        return None


def fire_due(now: float) -> list[str]:
    """Call the target of every schedule that is due, in epoch seconds; the names of those that are
    done, with or without success."""
    done = []
    with _FIRING:
        for _, region, of_region in list(scheduler_backends.iter_backends()):
            backend = cast(EventBridgeSchedulerBackend, of_region)
            groups = list(backend.schedule_groups.values())
            for schedule in [item for group in groups for item in list(group.schedules.values())]:
                due = due_time(schedule.schedule_expression, schedule.schedule_expression_timezone)
                mark = (schedule.arn, schedule.schedule_expression, schedule.last_modified_date)
                if due is None or due > now or mark in _fired or schedule.state != "ENABLED":
                    continue
                if not _fire(schedule, region, now - due):
                    continue
                _fired.add(mark)
                if schedule.action_after_completion == "DELETE":
                    backend.delete_schedule(schedule.group_name, schedule.name)
                done.append(schedule.name)
    return done


def _fire(schedule: Schedule, region: str, late_seconds: float) -> bool:
    """Call the target; false for one that is to be tried again."""
    target = schedule.target
    try:
        operation = str(target["Arn"]).rpartition(":scheduler:::aws-sdk:sagemaker:")[2]
        parameters = read(target.get("Input") or "{}", "the target's input")
        if operation == "deleteEndpoint":
            find_backend(region).begin_deleting(parameters["EndpointName"])
        elif operation == "deleteInferenceComponent":
            find_backend(region).begin_deleting_component(parameters["InferenceComponentName"])
        else:
            raise ValueError(f"the sandbox does not call {target['Arn']}")
    except (ServiceException, ValueError, LookupError, TypeError) as error:
        oldest = (target.get("RetryPolicy") or {}).get("MaximumEventAgeInSeconds", _LONGEST_RETRY)
        if isinstance(error, RefusedForNowError) and late_seconds < oldest:
            return False
        print(f"schedule {schedule.name}: {error}", flush=True)
    return True
