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

An update with alarms moves the requests in steps:

    all at once   all new engines -> all requests -> wait -> end the old engines
    canary        all new engines -> a part of the requests -> wait -> all -> wait -> end the old
    linear        the same in equal parts
    rolling       a batch of new engines -> end as many old ones -> wait -> the next batch

An alarm fires by the fault ``alarm-fires`` or by SetAlarmState, so each wait lasts a second.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


class AlarmsFired(Exception):
    """Alarms undo the update; the message is the endpoint's FailureReason, in our words."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            "The deployment was rolled back because of CloudWatch alarms in the ALARM state: "
            f"{', '.join(names)}."
        )


Report = Callable[[str, float], None]
"""Takes the stage, such as ``Baking``, and the share of requests for the new engines."""


@dataclass(frozen=True)
class StagedUpdate:
    """A DeploymentConfig with alarms, for an update by ``operation`` of ``total`` instances or
    copies."""

    region: str
    operation: str
    config: Mapping[str, Any]
    total: int
    is_ended: Callable[[], bool]

    def run(self, old: Fleet, new: Fleet, on_chosen: OnChosen, report: Report) -> None:
        """Start the engines of ``new`` and move the requests to them. Raises AlarmsFired and
        LaunchFailed."""
        if "RollingUpdatePolicy" in self.config:
            self._roll(old, new, on_chosen, report)
            return
        report("Creating", 0.0)
        new.start(on_chosen)
        for share, seconds in self._stages():
            report("ActivatingTraffic", share)
            self._wait(share, seconds, report)

    def _roll(self, old: Fleet, new: Fleet, on_chosen: OnChosen, report: Report) -> None:
        policy = self.config["RollingUpdatePolicy"]
        batch = _step_size(policy["MaximumBatchSize"], self.total)
        before = {variant: old.count(variant) for variant in old.variants}
        share = 0.0
        for number in range(1, math.ceil(self.total / batch) + 1):
            report("Updating", share)
            share = min(1.0, number * batch / self.total)
            for spec in new.specs:
                new.resize(spec.variant, math.ceil(share * spec.count), on_chosen)
            report("ActivatingTraffic", share)
            for variant, count in before.items():
                old.resize(variant, math.floor((1 - share) * count), on_chosen)
            self._wait(share, policy["WaitIntervalInSeconds"], report)

    def _stages(self) -> Iterator[tuple[float, int]]:
        """The share of requests for the new engines, and the seconds of the wait that follows."""
        policy = self.config.get("BlueGreenUpdatePolicy", {})
        traffic = policy.get("TrafficRoutingConfiguration", {"Type": "ALL_AT_ONCE"})
        size = traffic.get("CanarySize") or traffic.get("LinearStepSize")
        if size:
            step = _step_size(size, self.total)
            count = 2 if traffic["Type"] == "CANARY" else math.ceil(self.total / step)
            for number in range(1, count):
                yield min(1.0, number * step / self.total), traffic.get("WaitIntervalInSeconds", 0)
        yield 1.0, policy.get("TerminationWaitInSeconds") or 0

    def _wait(self, share: float, seconds: float, report: Report) -> None:
        names = alarm_names(self.config)
        report("Baking", share)
        if FAULTS.meet_alarm(self.operation):
            set_alarms(self.region, names, "ALARM")
        end = time.monotonic() + min(seconds, _WAIT_SECONDS)
        while True:
            if self.is_ended():
                raise LaunchFailed("The endpoint was removed.")
            if fired := alarms_in_alarm(self.region, names):
                raise AlarmsFired(fired)
            if time.monotonic() >= end:
                return
            time.sleep(_POLL_SECONDS)

    def calm(self) -> None:
        """After the update is undone: end what the alarms saw."""
        set_alarms(self.region, alarm_names(self.config), "OK")


def alarm_names(config: Mapping[str, Any] | None) -> list[str]:
    """The alarms of a DeploymentConfig."""
    alarms = ((config or {}).get("AutoRollbackConfiguration") or {}).get("Alarms") or []
    return [alarm["AlarmName"] for alarm in alarms]


def _step_size(size: Mapping[str, Any], total: int) -> int:
    """A CapacitySize as a number of instances, or copies."""
    if size["Type"] != "CAPACITY_PERCENT":
        return min(int(size["Value"]), total)
    return max(1, math.ceil(int(size["Value"]) * total / 100))


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

    def _report(self, stage: str, share: float) -> None:
        with LOCK:
            self._stage, self._share = stage, share

    def _swap(self, fleet: Fleet) -> Fleet | None:
        """Let ``fleet`` serve; returns the engines that did."""
        with LOCK:
            old, self.current, self.starting = self.current, fleet, None
            self._report("", 0.0)
        return old

    def _undo(self, fleet: Fleet, counts: Mapping[str, int], on_chosen: OnChosen) -> None:
        """Return all requests to the old engines, as many as ``counts`` says of each variant, and
        end the new ones. Raises LaunchFailed."""
        try:
            for variant, count in counts.items():
                if self.current and self.current.count(variant) < count:
                    self.current.resize(variant, count, on_chosen)
        finally:
            self._report("", 0.0)
            fleet.retire()


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
        old = self.current
        staged = None
        if old and alarm_names(deployment_config):
            total = sum(count_instances(next_variants).values())
            staged = StagedUpdate(
                self.region, "UpdateEndpoint", deployment_config or {}, total,
                lambda: self._is_ended,
            )  # fmt: skip
        in_batches = staged is not None and "RollingUpdatePolicy" in (deployment_config or {})
        fleet = self.starting = Fleet(specs, is_empty=in_batches)
        operation = "UpdateEndpoint" if next_config else "CreateEndpoint"
        fault = FAULTS.meet_endpoint(operation, count_instances(next_variants or self.variants))

        def serve() -> None:
            if fault == "stuck-creating":
                FAULTS.hold_until_cleared()
                if self._is_ended:
                    return
            if fault in ("insufficient-capacity", "update-rollback-failed"):
                raise LaunchFailed(_NO_CAPACITY)
            for spec in fleet.specs:
                check_image(spec)
            if staged and old:
                staged.run(old, fleet, self.tag_engine, self._report)
            else:
                fleet.start(self.tag_engine)
            self._succeed(fleet, "OutOfService" if fault == "out-of-service" else "InService")

        def serve_or_undo() -> None:
            try:
                serve()
            except AlarmsFired as fired:
                self.endpoint_status = "RollingBack"
                counts = {
                    one["VariantName"]: engines_for(int(one["DesiredInstanceCount"]))
                    for one in self.production_variants
                }
                reason, undone = str(fired), "InService"
                try:
                    self._undo(fleet, counts, self.tag_engine)
                except LaunchFailed as failure:
                    reason, undone = f"{fired} {failure}", "UpdateRollbackFailed"
                if staged:
                    staged.calm()
                self._fail(reason, undone)

        undone = "UpdateRollbackFailed" if fault == "update-rollback-failed" else "InService"
        self._begin(status, serve_or_undo, undone)

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
