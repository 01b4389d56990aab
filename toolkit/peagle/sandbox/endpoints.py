"""Endpoints and inference components in the sandbox, which follow their real engines:

    Create      Creating -> InService | Failed
    Update      Updating -> InService; where an engine fails, with the old ones and a FailureReason
    with alarms Updating -> InService, or RollingBack to the old ones with the alarm's name
    scaling     Updating -> InService with other numbers of instances, or of copies, 0 included
    Delete      Deleting -> removed
    the last engine ends by itself   InService -> Failed

One thread per change waits for the engines; ``LOCK`` guards its result and every check before it.
An update with alarms starts all new engines, and waits a second before they serve: an alarm fires
by the fault ``alarm-fires`` or by SetAlarmState. GPUs are not counted.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moto.core.utils import utcnow
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import FakeEndpoint

from peagle.engine.process import is_alive
from peagle.protocol import ENGINE_TAG, STAND_IN_TAG
from peagle.sandbox.account import is_missing_image
from peagle.sandbox.client import EndpointStatus
from peagle.sandbox.engines import EngineInstance, Fleet
from peagle.sandbox.faults import ALARM, AT_START, FAULTS
from peagle.sandbox.launch import MAX_ENGINES, LaunchFailed, LaunchSpec
from peagle.sandbox.observability import find_alarms, set_alarms

if TYPE_CHECKING:
    from peagle.sandbox.sagemaker import EndpointConfig

LOCK = threading.RLock()

Variants = Sequence[dict[str, Any]]

_BAKING_SECONDS = 1.0
_POLL_SECONDS = 0.05
_NO_CAPACITY = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)
_FIRED = "The deployment was rolled back because of CloudWatch alarms in the ALARM state:"


class NotFoundError(ValidationError):
    """The resource does not exist."""


class RefusedForNowError(ValidationError):
    """The resource is being changed, or others depend on it: a later request may succeed."""


def alarm_names(config: Mapping[str, Any] | None) -> list[str]:
    """The alarms of a DeploymentConfig."""
    alarms = ((config or {}).get("AutoRollbackConfiguration") or {}).get("Alarms") or []
    return [alarm["AlarmName"] for alarm in alarms]


class Serving:
    """What an endpoint and an inference component have in common: a status, the engines that serve,
    and those that an update starts beside them."""

    undoing = "Updating"
    """The status while alarms return the old engines."""

    new_engine: Callable[[LaunchSpec], EngineInstance] = EngineInstance

    def __init__(self, region: str, tags: Sequence[dict[str, str]] | None) -> None:
        self.region, self.tags = region, list(tags or [])
        self.status = "Creating"
        self.failure_reason: str | None = None
        self.creation_time = self.last_modified_time = utcnow()
        self.current: Fleet | None = None
        self.starting: Fleet | None = None
        self._is_ended = False
        self._stage = ""
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether AWS would reject another change now."""
        return self.status in ("Creating", "Updating", "RollingBack", "Deleting")

    def tag_engine(self, chosen: EngineInstance) -> None:
        """Record in tags of the endpoint what runs instead of the requested model or engine."""
        raise NotImplementedError

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

    def begin_deleting(self, on_deleted: Callable[[], object]) -> None:
        """End the engines, then call ``on_deleted``."""

        def delete() -> str:
            self.end()
            with LOCK:
                on_deleted()
            return "Deleting"

        self._begin("Deleting", delete)

    def _begin_replacing(
        self, operation: str, specs: Sequence[LaunchSpec], config: Mapping[str, Any] | None,
        use: Callable[[], object], fault: str = "", problem: str = "",
    ) -> None:  # fmt: skip
        """Start the engines of ``specs``, and let them serve in the place of others; ``use`` makes
        what the ``operation`` brought hold. ``config`` is its DeploymentConfig; a ``problem`` lets
        it fail."""
        fleet = self.starting = Fleet(specs, self.new_engine)
        alarms = alarm_names(config)

        def replace_engines() -> str:
            if fault == "stuck-creating":
                FAULTS.hold_until_cleared()
                if self._is_ended:
                    raise LaunchFailed("The endpoint was removed.")
            if problem:
                raise LaunchFailed(problem)
            for spec in specs:
                if is_missing_image(spec.image):
                    raise LaunchFailed(
                        "Please make sure all images included in the model for the production "
                        f"variant {spec.variant} exist, and that the execution role used to create "
                        "the model has permissions to access them."
                    )
            self._stage = "Creating"
            fleet.start(self.tag_engine)
            if self.current and alarms:
                self._bake(fleet, operation, alarms)
            with LOCK:
                old, self.current = self.current, fleet
                use()
                self._end_update()
            if old:
                old.retire()
            return "OutOfService" if fault == "out-of-service" else "InService"

        undone = "UpdateRollbackFailed" if fault == "update-rollback-failed" else "InService"
        self._begin("Updating" if self.current else "Creating", replace_engines, undone)

    def _bake(self, fleet: Fleet, operation: str, alarms: Sequence[str]) -> None:
        """Wait while the alarms watch. Raises LaunchFailed where one fires."""
        self._stage, region = "Baking", self.region
        if FAULTS.meet("sagemaker", operation, [ALARM]):
            set_alarms(region, alarms, "ALARM")
        end, fired = time.monotonic() + _BAKING_SECONDS, list[str]()
        while time.monotonic() < end and not (self._is_ended or fired):
            time.sleep(_POLL_SECONDS)
            watched = find_alarms(region, alarms)
            fired = [alarm.name for alarm in watched if alarm.state_value == "ALARM"]
        if self._is_ended or fired:
            self.status = self.undoing
            fleet.retire()
            set_alarms(region, alarms, "OK")
            raise LaunchFailed(f"{_FIRED} {', '.join(fired)}.")

    def _begin(self, status: str, work: Callable[[], str], undone: str = "InService") -> None:
        """Do ``work``, which returns the status after it, in a thread. ``undone`` is the status
        where it fails and engines serve."""
        self._set_status(status)

        def run() -> None:
            reason = None
            try:
                status = work()
            except Exception as error:
                status, reason = undone, str(error)[:1024]
                if not isinstance(error, LaunchFailed):  # a bug must not leave it in progress
                    traceback.print_exc()
                    reason = "Internal error of the sandbox; see its log (daemon.log)."
            with LOCK:
                self._end_update()
                self._set_status(status if self.current else "Failed", reason)

        self._thread = threading.Thread(target=run, name=status, daemon=True)
        self._thread.start()

    def _set_status(self, status: str, reason: str | None = None) -> None:
        with LOCK:
            self.status, self.failure_reason = status, reason
            self.last_modified_time = utcnow()

    def _end_update(self) -> None:
        self.starting, self._stage = None, ""


class SandboxEndpoint(Serving, FakeEndpoint):  # type: ignore[misc]
    """An endpoint, the engines that serve it, and those that are starting."""

    undoing = "RollingBack"

    def __init__(
        self, account_id: str, region: str, name: str, config: EndpointConfig,
        tags: list[dict[str, str]] | None,
    ) -> None:  # fmt: skip
        super().__init__(region, tags)
        self.endpoint_name = name
        self.arn = self.arn_formatter(name, account_id, region)
        self.components: dict[str, SandboxComponent] = {}
        self.deployment_config: Mapping[str, Any] | None = None
        self.next_config: EndpointConfig | None = None
        self._next_variants: Variants = ()
        self._use(config, config.production_variants)

    def _use(self, config: EndpointConfig, variants: Variants) -> None:
        self.config, self.endpoint_config_name = config, config.endpoint_config_name
        self.production_variants = self._process_production_variants(list(variants))

    @property
    def endpoint_status(self) -> str:  # type: ignore[override]
        """Its state. In service, it fails with its last engine."""
        with LOCK:
            fleet = self.current
            reason = fleet.end_reason() if fleet and self.status == "InService" else None
            if fleet and reason:
                self._set_status("Failed", f"The engine exited: {reason}"[:1024])
                threading.Thread(target=fleet.end, daemon=True).start()  # what it left running
            return self.status

    @property
    def variants(self) -> list[dict[str, Any]]:
        """The variants of its configuration, with the numbers and weights that it really has."""
        running = {variant["VariantName"]: variant for variant in self.production_variants}
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
    def instances(self) -> Counter[str]:
        """Instance type -> instances that count towards a quota: also those of an update."""
        if self.endpoint_status == "Failed":
            return Counter()
        return count_instances(self.variants) + count_instances(self._next_variants)

    @property
    def is_serving(self) -> bool:
        """Whether it answers invocations."""
        states = ("InService", "Updating", "RollingBack", "UpdateRollbackFailed")
        return self.current is not None and self.endpoint_status in states

    def is_created(self) -> bool:
        """For CloudFormation."""
        return self.is_serving

    @property
    def weights(self) -> dict[str, float]:
        """Variant -> its share of the requests."""
        return {
            variant["VariantName"]: float(variant.get("CurrentWeight") or 0.0)
            for variant in self.production_variants
        }

    def begin_serving(
        self, specs: Sequence[LaunchSpec], deployment_config: Mapping[str, Any] | None,
        next_config: EndpointConfig | None = None, next_variants: Variants = (),
    ) -> None:  # fmt: skip
        """Start the engines for ``next_config``; during an update, beside the old ones.
        ``next_variants`` are its variants, with numbers that an update may have retained."""
        self.next_config, self._next_variants = next_config, next_variants
        self.deployment_config = deployment_config
        operation = "UpdateEndpoint" if next_config else "CreateEndpoint"
        types = count_instances(next_variants or self.variants)
        met = FAULTS.meet("sagemaker", operation, AT_START, types)
        fault = met.kind if met else ""
        fails = fault in ("insufficient-capacity", "update-rollback-failed")

        def use() -> None:
            if next_config:
                self._use(next_config, next_variants)

        problem = _NO_CAPACITY if fails else ""
        self._begin_replacing(operation, specs, deployment_config, use, fault, problem)

    def begin_scaling(self, desired: Mapping[str, Mapping[str, Any]]) -> None:
        """Start or end engines until each variant has its number, as far as the sandbox goes.
        ``desired`` has the changed variants, as UpdateEndpointWeightsAndCapacities names them."""
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

        def scale() -> str:
            for variant, count in counts.items():
                fleet.resize(variant, min(count, MAX_ENGINES), self.tag_engine)
            return "InService"

        self._begin("Updating", scale)

    def end(self) -> None:
        super().end()
        for component in self.components.values():
            component.end()

    @property
    def response_object(self) -> dict[str, Any]:
        """The response of DescribeEndpoint, without empty members."""
        update = None
        if self.next_config is not None:
            status = {"Status": self._stage, "StartTime": self.last_modified_time}
            stage = {"VariantStatus": [status]} if self._stage else {}
            variants = self._process_production_variants(list(self._next_variants))
            update = {
                "EndpointConfigName": self.next_config.endpoint_config_name,
                "ProductionVariants": [variant | stage for variant in variants],
                "StartTime": self.last_modified_time,
            }
        response = {
            "EndpointName": self.endpoint_name,
            "EndpointArn": self.arn,
            "EndpointConfigName": self.endpoint_config_name,
            "ProductionVariants": [self._describe(variant) for variant in self.production_variants],
            "EndpointStatus": self.endpoint_status,
            "FailureReason": self.failure_reason,
            "CreationTime": self.creation_time,
            "LastModifiedTime": self.last_modified_time,
            "LastDeploymentConfig": self.deployment_config,
            "PendingDeploymentSummary": update,
        }
        return {name: value for name, value in response.items() if value}

    def _describe(self, variant: dict[str, Any]) -> dict[str, Any]:
        name = variant["VariantName"]
        configured = {each["VariantName"]: each for each in self.config.production_variants}
        bounds = configured[name].get("ManagedInstanceScaling") or {}
        count = self.current.count(name) if self.current else 0
        if self.hosts_components and self.current:
            count = int(variant.get("DesiredInstanceCount") or 0)
            copies = [component.copies for component in self.components.values()]
            if bounds.get("Status") == "ENABLED" and copies and not any(copies):
                count = int(bounds.get("MinInstanceCount") or 0)  # on AWS, minutes later
        managed = {"ManagedInstanceScaling": bounds} if bounds else {}
        return {**variant, "CurrentInstanceCount": count, **managed}

    @property
    def sandbox_status(self) -> EndpointStatus:
        """For ``peagle sandbox status``."""
        serving: list[Serving] = [self, *self.components.values()]
        fleets = [resource.current or resource.starting for resource in serving]
        engines = [instance for fleet in fleets if fleet for instance in fleet.instances]
        state, instance = self.endpoint_status, engines[0] if engines else None
        process = instance.process if instance else None
        alive = process if process and is_alive(process) else None
        uptime = round(time.time() - instance.started_at, 1) if instance and alive else None
        return EndpointStatus(
            name=self.endpoint_name,
            region=self.region,
            state=state,
            failure_reason=self.failure_reason,
            stand_in=instance.stand_in if instance else None,
            pid=alive.pid if alive else None,
            port=alive.port if alive else None,
            uptime_seconds=uptime,
            instances=len(engines),
            not_applied=instance.not_applied if instance else (),
        )

    def _end_update(self) -> None:
        super()._end_update()
        self.next_config, self._next_variants = None, ()

    def tag_engine(self, chosen: EngineInstance) -> None:
        engine = f"vllm {chosen.other_engine}" if chosen.other_engine else None
        replaced = {STAND_IN_TAG: chosen.stand_in, ENGINE_TAG: engine}
        with LOCK:
            kept = [tag for tag in self.tags if tag["Key"] not in replaced]
            self.tags = kept + [{"Key": k, "Value": v} for k, v in replaced.items() if v]


class SandboxComponent(Serving):
    """An inference component: copies of a model. ``parameters`` are CreateInferenceComponent's,
    with the changes of updates."""

    def __init__(self, arn: str, endpoint: SandboxEndpoint, parameters: Mapping[str, Any]) -> None:
        super().__init__(endpoint.region, parameters.get("Tags"))
        self.arn, self.endpoint = arn, endpoint
        self.parameters = dict(parameters)
        self.name: str = parameters["InferenceComponentName"]
        self.refused_at = 0.0
        """When a request found no copy, in epoch seconds: what wakes it."""

    @property
    def copies(self) -> int:
        """How many copies were asked for."""
        return int(self.parameters["RuntimeConfig"]["CopyCount"])

    @property
    def response_create(self) -> dict[str, str]:
        return {"InferenceComponentArn": self.arn}

    @property
    def response_object(self) -> dict[str, Any]:
        """The response of DescribeInferenceComponent, without empty members."""
        counts = {
            "DesiredCopyCount": self.copies,
            "CurrentCopyCount": len(self.current.instances) if self.current else 0,
        }
        reason = {"FailureReason": self.failure_reason} if self.failure_reason else {}
        specification = {"Specification": self.parameters.get("Specification")}
        return {**self.summary, **reason, **specification, "RuntimeConfig": counts}

    @property
    def summary(self) -> dict[str, Any]:
        """The component in the response of ListInferenceComponents."""
        return {
            "InferenceComponentName": self.name,
            "InferenceComponentArn": self.arn,
            "EndpointName": self.endpoint.endpoint_name,
            "EndpointArn": self.endpoint.arn,
            "VariantName": self.parameters["VariantName"],
            "InferenceComponentStatus": self.status,
            "CreationTime": self.creation_time,
            "LastModifiedTime": self.last_modified_time,
        }

    def begin_serving(
        self, spec: LaunchSpec, parameters: Mapping[str, Any],
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Start the copies of ``spec``, during an update beside the old ones. ``parameters`` are
        the component's once they serve, ``config`` an update's DeploymentConfig."""
        count = min(int(parameters["RuntimeConfig"]["CopyCount"]), MAX_ENGINES)

        def use() -> None:
            self.parameters = dict(parameters)

        specs = [replace(spec, count=count)]
        self._begin_replacing("UpdateInferenceComponent", specs, config, use)

    def begin_scaling(self, parameters: Mapping[str, Any]) -> None:
        """Start or end copies until there are as many as the ``parameters`` ask for."""
        fleet = self.current
        assert fleet is not None
        count = min(int(parameters["RuntimeConfig"]["CopyCount"]), MAX_ENGINES)

        def scale() -> str:
            fleet.resize(fleet.variants[0], count, self.tag_engine)
            self.parameters = dict(parameters)
            return "InService"

        self._begin("Updating", scale)

    def tag_engine(self, chosen: EngineInstance) -> None:
        self.endpoint.tag_engine(chosen)


def count_instances(variants: Variants) -> Counter[str]:
    """The number of instances of each type that ``variants`` ask for."""
    counts: Counter[str] = Counter()
    for variant in variants:
        if "InstanceType" in variant:
            counts[variant["InstanceType"]] += int(variant.get("InitialInstanceCount") or 1)
    return counts
