"""An endpoint in the sandbox, which follows its real engines:

    CreateEndpoint   Creating -> InService | Failed
    UpdateEndpoint   Updating -> InService with the new configuration; when its engine fails, with
                     the old one (AWS rolls back) and a FailureReason
        with alarms  Updating -> InService in steps, or RollingBack -> InService with the old
                     configuration and a FailureReason that names the alarm
    UpdateEndpointWeightsAndCapacities
                     Updating -> InService with other numbers of instances
    DeleteEndpoint   Deleting -> removed
    its last engine ends by itself
                     InService -> Failed

One thread per change waits for the engines. Its result is stored under ``LOCK``, which guards every
check that precedes a change. Faults of endpoints (``faults``) lead to the other states.

An update with alarms starts all new engines and moves the requests to them in the steps of its
policy, with a wait after each. An alarm fires by the fault ``alarm-fires`` or by SetAlarmState, so
each wait lasts a second.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moto.core.utils import utcnow
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import FakeEndpoint

from peagle.protocol import ENGINE_TAG, STAND_IN_TAG
from peagle.sandbox.account import gpu_count, is_missing_image
from peagle.sandbox.engines import EngineInstance, Fleet, LaunchFailed, OnChosen
from peagle.sandbox.faults import FAULTS
from peagle.sandbox.launch import LaunchSpec, engines_for
from peagle.sandbox.observability import alarms_in_alarm, set_alarms, unknown_alarms

if TYPE_CHECKING:
    from peagle.sandbox.components import SandboxComponent
    from peagle.sandbox.sagemaker import EndpointConfig

LOCK = threading.RLock()

Variants = Sequence[dict[str, Any]]
"""Variants as a configuration has them."""

_SERVING = ("InService", "Updating", "RollingBack", "UpdateRollbackFailed")
_WAIT_SECONDS = 1.0
_POLL_SECONDS = 0.05
_LIMITS = {"RollingUpdatePolicy": (5, 50), "CANARY": (0, 50), "LINEAR": (10, 50)}
"""Policy or type -> the least and the largest step in percent of the instances."""

_NO_CAPACITY = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)


class NotFoundError(ValidationError):
    """The resource does not exist."""


class RefusedForNowError(ValidationError):
    """The resource is being changed, or others depend on it: a later request may succeed."""


class AlarmsFired(LaunchFailed):
    """Alarms undo the update."""


_FIRED = "The deployment was rolled back because of CloudWatch alarms in the ALARM state:"
"""What FailureReason begins with, in our words."""


def alarm_names(config: Mapping[str, Any] | None) -> list[str]:
    """The alarms of a DeploymentConfig."""
    alarms = ((config or {}).get("AutoRollbackConfiguration") or {}).get("Alarms") or []
    return [alarm["AlarmName"] for alarm in alarms]


def traffic_steps(config: Mapping[str, Any], total: int) -> Iterator[tuple[float, float]]:
    """The share of requests for the new engines in each step of an update of ``total`` instances
    or copies, and the seconds of the wait that follows."""
    rolling, blue = config.get("RollingUpdatePolicy"), config.get("BlueGreenUpdatePolicy") or {}
    traffic = blue.get("TrafficRoutingConfiguration") or {}
    wait = (rolling or traffic).get("WaitIntervalInSeconds", 0)
    size = rolling["MaximumBatchSize"] if rolling else None
    size = size or traffic.get("CanarySize") or traffic.get("LinearStepSize")
    if size:
        value = int(size["Value"])
        share = value / 100 if size["Type"] == "CAPACITY_PERCENT" else value / total
        step = max(1, math.ceil(min(share, 1.0) * total))
        count = 2 if traffic.get("Type") == "CANARY" else math.ceil(total / step)
        for number in range(1, count):
            yield number * step / total, wait
    yield 1.0, blue.get("TerminationWaitInSeconds") or (wait if rolling else 0)


def rollout_problem(
    config: Mapping[str, Any] | None,
    region: str,
    total: int,
    counted: str = "variant's total instance count",
) -> str:
    """Why SageMaker rejects the DeploymentConfig of an update, in our words; "" for nothing.
    ``counted`` names the ``total`` that steps are a part of."""
    policies = {"BlueGreenUpdatePolicy", "RollingUpdatePolicy"} & (config or {}).keys()
    if len(policies) > 1:
        return "Only one update policy should be used in the deployment configuration."
    if unknown := unknown_alarms(region, alarm_names(config)):
        return f"The following CloudWatch alarms do not exist: {', '.join(unknown)}."
    if not config or not policies:
        return ""
    if "RollingUpdatePolicy" in config:
        kind, size = "RollingUpdatePolicy", config["RollingUpdatePolicy"]["MaximumBatchSize"]
    else:
        policy = config["BlueGreenUpdatePolicy"] or {}
        traffic = policy.get("TrafficRoutingConfiguration") or {}
        kind = traffic.get("Type", "")
        size = traffic.get("CanarySize") or traffic.get("LinearStepSize")
    if kind not in _LIMITS:
        return ""
    if size is None:
        return f"A traffic routing configuration of type {kind} requires the size of its steps."
    least, most = _LIMITS[kind]
    is_percent = size["Type"] == "CAPACITY_PERCENT"
    share = float(size["Value"]) if is_percent else 100 * int(size["Value"]) / total
    if least <= share <= most:
        return ""
    return (
        f"The batch size of {kind} must be between {least}% and {most}% of the {counted}, which is "
        f"{total}."
    )


class Serves:
    """What an endpoint and an inference component have in common: the engines that serve, and those
    that an update starts beside them."""

    def __init__(self) -> None:
        self.current: Fleet | None = None
        self.starting: Fleet | None = None
        self._is_ended = False
        self._stage, self._share, self._requests = "", 0.0, 0
        self._thread: threading.Thread | None = None

    def next_fleet(self) -> Fleet | None:
        """The engines for the next request: in an update, the new ones for their share."""
        with LOCK:
            self._requests += 1
            is_for_new = self._requests * self._share % 1 < self._share
            return self.starting if self.current and self.starting and is_for_new else self.current

    def join(self) -> None:
        """Wait for the change that is in progress."""
        if self._thread:
            self._thread.join()

    def end(self) -> None:
        """End every engine; return when they have ended."""
        self._is_ended = True
        for fleet in (self.starting, self.current):
            if fleet:
                fleet.end()

    def _run(self, name: str, work: Callable[[], None], fail: Callable[[str], None]) -> None:
        """Do ``work`` in a thread; ``fail`` receives the reason where it fails."""

        def run() -> None:
            try:
                work()
            except LaunchFailed as failure:
                fail(str(failure)[:1024])
            except Exception:  # a bug here must not leave it in progress forever
                traceback.print_exc()
                fail("Internal error of the sandbox; see its log (daemon.log).")

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def _replace(
        self,
        fleet: Fleet,
        on_chosen: OnChosen,
        update: tuple[str, str, Mapping[str, Any], int] | None,
    ) -> None:
        """Start the engines of ``fleet``, and let them serve. ``update`` has the region, the
        operation, the DeploymentConfig with alarms and the number of instances or copies. Raises
        LaunchFailed; and AlarmsFired, after which the old engines have all requests again."""
        self._report("Creating", 0.0)
        fleet.start(on_chosen)
        if self.current and update:
            region, operation, config, total = update
            names = alarm_names(config)
            try:
                for share, seconds in traffic_steps(config, total):
                    self._report("ActivatingTraffic", share)
                    if FAULTS.meet_alarm(operation):
                        set_alarms(region, names, "ALARM")
                    self._report("Baking", share)
                    self._wait(region, names, seconds)
            except LaunchFailed:
                self._undo(fleet)
                set_alarms(region, names, "OK")
                raise

    def _undo(self, fleet: Fleet) -> None:
        """Return all requests to the old engines, and end the new ones."""
        self._report("", 0.0)
        fleet.retire()

    def _wait(self, region: str, names: Sequence[str], seconds: float) -> None:
        end = time.monotonic() + min(seconds, _WAIT_SECONDS)
        while True:
            if self._is_ended:
                raise LaunchFailed("The endpoint was removed.")
            if fired := alarms_in_alarm(region, names):
                raise AlarmsFired(f"{_FIRED} {', '.join(fired)}.")
            if time.monotonic() >= end:
                return
            time.sleep(_POLL_SECONDS)

    def _report(self, stage: str, share: float) -> None:
        """Where an update stands, and the share of requests for its new engines."""
        with LOCK:
            self._stage, self._share = stage, share

    def _swap(self, fleet: Fleet) -> Fleet | None:
        """Let ``fleet`` serve; returns the engines that did."""
        with LOCK:
            old, self.current, self.starting = self.current, fleet, None
            self._report("", 0.0)
        return old


class SandboxEndpoint(Serves, FakeEndpoint):
    """An endpoint, the engines that serve it, and those that are starting."""

    failure_reason: str | None  # type: ignore[assignment]

    def __init__(
        self,
        account_id: str,
        region_name: str,
        name: str,
        config: EndpointConfig,
        tags: list[dict[str, str]] | None,
    ) -> None:
        Serves.__init__(self)
        self.region = region_name
        self.components: dict[str, SandboxComponent] = {}
        FakeEndpoint.__init__(
            self,
            account_id=account_id,
            region_name=region_name,
            endpoint_name=name,
            endpoint_config_name=config.endpoint_config_name,
            production_variants=config.production_variants,
            data_capture_config={},
            tags=list(tags or []),
        )
        self.config = config
        self.next_config: EndpointConfig | None = None
        self._next_variants: Variants = ()
        self.deployment_config: dict[str, Any] | None = None
        self._changed_since = self.creation_time

    @property
    def endpoint_status(self) -> str:
        """Its state. In service, it fails with its last engine."""
        with LOCK:
            fleet = self.current
            reason = fleet.end_reason() if fleet and self._status == "InService" else None
            if fleet and reason:
                self._finish("Failed", f"The engine exited: {reason}"[:1024])
                threading.Thread(target=fleet.end, daemon=True).start()  # what it left running
            return self._status

    @endpoint_status.setter
    def endpoint_status(self, status: str) -> None:
        self._status = status

    @property
    def variants(self) -> list[dict[str, Any]]:
        """The variants of its configuration, with the numbers and weights that it really has."""
        running = {one["VariantName"]: one for one in self.production_variants}
        return [
            {
                **variant,
                "InitialInstanceCount": running[variant["VariantName"]].get("DesiredInstanceCount"),
                "InitialVariantWeight": running[variant["VariantName"]].get("DesiredWeight"),
            }
            for variant in self.config.production_variants
        ]

    @property
    def hosts_components(self) -> bool:
        """Whether its instances serve inference components, and no model of a variant."""
        return all("ModelName" not in variant for variant in self.config.production_variants)

    @property
    def engines(self) -> tuple[EngineInstance, ...]:
        """The engines that run or start, those of a component included."""
        fleets = [one.current or one.starting for one in (self, *self.components.values())]
        return tuple(instance for fleet in fleets if fleet for instance in fleet.instances)

    @property
    def instances(self) -> Counter[str]:
        """Instance type -> instances that count towards a quota: also those of an update."""
        if self.endpoint_status == "Failed":
            return Counter()
        return count_instances(self.variants) + count_instances(self._next_variants)

    @property
    def is_busy(self) -> bool:
        """Whether AWS would reject another change now."""
        return self.endpoint_status in ("Creating", "Updating", "RollingBack", "Deleting")

    @property
    def is_serving(self) -> bool:
        """Whether it answers invocations."""
        return self.current is not None and self.endpoint_status in _SERVING

    def is_created(self) -> bool:
        """For CloudFormation: when it is in service."""
        return self.is_serving

    def config_name(self, instance: EngineInstance) -> str:
        """The name of the configuration that the instance runs."""
        new, config = self.starting, self.next_config
        if new and config and instance in new.instances:
            return str(config.endpoint_config_name)
        return str(self.endpoint_config_name)

    @property
    def weights(self) -> dict[str, float]:
        """Variant -> its share of the requests."""
        return {
            one["VariantName"]: float(one.get("CurrentWeight") or 0.0)
            for one in self.production_variants
        }

    def begin_serving(
        self,
        status: str,
        specs: Sequence[LaunchSpec],
        deployment_config: dict[str, Any] | None,
        next_config: EndpointConfig | None = None,
        next_variants: Variants = (),
    ) -> None:
        """Start the engines for ``next_config``; during an update, beside the old ones.

        ``next_variants`` are its variants, with numbers that an update may have retained.
        """
        self.next_config, self._next_variants = next_config, next_variants
        self.deployment_config = deployment_config
        fleet = self.starting = Fleet(specs)
        operation = "UpdateEndpoint" if next_config else "CreateEndpoint"
        fault = FAULTS.meet_endpoint(operation, count_instances(next_variants or self.variants))
        total = sum(count_instances(next_variants).values())
        update = None
        if alarm_names(deployment_config):
            update = (self.region, operation, deployment_config or {}, total)

        def serve() -> None:
            if fault == "stuck-creating":
                FAULTS.hold_until_cleared()
                if self._is_ended:
                    return
            if fault in ("insufficient-capacity", "update-rollback-failed"):
                raise LaunchFailed(_NO_CAPACITY)
            for spec in fleet.specs:
                check_image(spec)
            self._replace(fleet, self.tag_engine, update)
            self._succeed(fleet, "OutOfService" if fault == "out-of-service" else "InService")

        undone = "UpdateRollbackFailed" if fault == "update-rollback-failed" else "InService"
        self._begin(status, serve, undone)

    def begin_scaling(self, desired: Mapping[str, Mapping[str, Any]]) -> None:
        """Start or end engines until each variant has its number, as far as the sandbox goes.

        ``desired`` has the changed variants, as UpdateEndpointWeightsAndCapacities names them.
        """
        fleet = self.current
        assert fleet is not None
        counts = {}
        for variant in self.production_variants:
            change = desired.get(variant["VariantName"], {})
            if change.get("DesiredWeight") is not None:
                variant["DesiredWeight"] = variant["CurrentWeight"] = change["DesiredWeight"]
            if change.get("DesiredInstanceCount") is not None:
                variant["DesiredInstanceCount"] = change["DesiredInstanceCount"]
                counts[variant["VariantName"]] = int(change["DesiredInstanceCount"])

        def scale() -> None:
            for variant, count in counts.items():
                fleet.resize(variant, engines_for(count), self.tag_engine)
            self._finish("InService")

        self._begin("Updating", scale)

    def begin_deleting(self, on_deleted: Callable[[], object]) -> None:
        """End the engines, then call ``on_deleted``."""

        def delete() -> None:
            self.end()
            with LOCK:
                on_deleted()

        self.starting = None
        self._begin("Deleting", delete)

    def end(self) -> None:
        """End every engine of this endpoint; return when they have ended."""
        super().end()
        for component in self.components.values():
            component.end()

    @property
    def response_object(self) -> dict[str, Any]:
        """The response of DescribeEndpoint, without empty members."""
        response = {
            "EndpointName": self.endpoint_name,
            "EndpointArn": self.arn,
            "EndpointConfigName": self.endpoint_config_name,
            "ProductionVariants": [
                self._describe_variant(variant) for variant in self.production_variants
            ],
            "EndpointStatus": self.endpoint_status,
            "FailureReason": self.failure_reason,
            "CreationTime": self.creation_time,
            "LastModifiedTime": self.last_modified_time,
            "LastDeploymentConfig": self.deployment_config,
            "AsyncInferenceConfig": self.config.async_inference_config,
            "PendingDeploymentSummary": self._describe_update(),
        }
        return {name: value for name, value in response.items() if value}

    def _describe_variant(self, variant: dict[str, Any]) -> dict[str, Any]:
        name = variant["VariantName"]
        configured = next(
            one for one in self.config.production_variants if one["VariantName"] == name
        )
        bounds = configured.get("ManagedInstanceScaling")
        count = self.current.count(name) if self.current else 0
        if self.hosts_components and self.current:
            count = int(variant.get("DesiredInstanceCount") or 0)
            if bounds and bounds.get("Status") == "ENABLED" and self.components:
                count = self._managed_instances(configured["InstanceType"], bounds, count)
        managed = {"ManagedInstanceScaling": bounds} if bounds else {}
        return {**variant, "CurrentInstanceCount": count, **managed}

    def _managed_instances(self, instance_type: str, bounds: Mapping[str, Any], most: int) -> int:
        """How many instances run for the copies on them: those that hold the GPUs of all copies.
        On AWS, an instance without a copy ends some minutes later."""
        used = sum(component.gpus for component in self.components.values())
        needed = math.ceil(used / (gpu_count(instance_type) or 1))
        least = int(bounds.get("MinInstanceCount") or 0)
        return min(max(needed, least), int(bounds.get("MaxInstanceCount") or most))

    def _describe_update(self) -> dict[str, Any] | None:
        if self.next_config is None:
            return None
        status = {"Status": self._stage, "StartTime": self._changed_since}
        stage = {"VariantStatus": [status]} if self._stage else {}
        return {
            "EndpointConfigName": self.next_config.endpoint_config_name,
            "ProductionVariants": [
                {**variant, **stage}
                for variant in self._process_production_variants(list(self._next_variants))
            ],
            "StartTime": self._changed_since,
        }

    def _begin(self, status: str, work: Callable[[], None], undone: str = "InService") -> None:
        """``undone`` is the status of an endpoint that served before, where ``work`` fails."""
        self._finish(status)
        self._changed_since = self.last_modified_time
        self._run(f"{status} {self.endpoint_name}", work, lambda reason: self._fail(reason, undone))

    def _undo(self, fleet: Fleet) -> None:
        self.endpoint_status = "RollingBack"
        super()._undo(fleet)

    def _succeed(self, fleet: Fleet, status: str) -> None:
        with LOCK:
            old = self._swap(fleet)
            if self.next_config:
                self.config, self.next_config = self.next_config, None
                self.endpoint_config_name = self.config.endpoint_config_name
                self.production_variants = self._process_production_variants(
                    list(self._next_variants)
                )
                self._next_variants = ()
        if old:
            old.retire()
        self._finish(status)

    def _fail(self, reason: str, undone: str) -> None:
        with LOCK:
            self.starting = self.next_config = None
            self._next_variants = ()
            self._report("", 0.0)
            self._finish(undone if self.current else "Failed", reason[:1024])

    def _finish(self, status: str, reason: str | None = None) -> None:
        with LOCK:
            self.endpoint_status, self.failure_reason = status, reason
            self.last_modified_time = utcnow()

    def tag_engine(self, chosen: EngineInstance) -> None:
        """Record in tags what runs instead of the requested model or engine."""
        engine = f"vllm {chosen.other_engine}" if chosen.other_engine else None
        replaced = {STAND_IN_TAG: chosen.stand_in, ENGINE_TAG: engine}
        with LOCK:
            kept = [tag for tag in self.tags if tag["Key"] not in replaced]
            self.tags = kept + [{"Key": k, "Value": v} for k, v in replaced.items() if v]


def check_image(spec: LaunchSpec) -> None:
    """Raise LaunchFailed for an image that has disappeared."""
    if is_missing_image(spec.image, spec.region):
        raise LaunchFailed(
            "Please make sure all images included in the model for the production variant "
            f"{spec.variant} exist, and that the execution role used to create the model has "
            "permissions to access them."
        )


def count_instances(variants: Variants) -> Counter[str]:
    """The number of instances of each type that ``variants`` ask for."""
    counts: Counter[str] = Counter()
    for variant in variants:
        if "InstanceType" in variant:
            counts[variant["InstanceType"]] += int(variant.get("InitialInstanceCount") or 1)
    return counts
