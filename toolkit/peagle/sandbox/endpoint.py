"""An endpoint in the sandbox, which follows its real engines:

    CreateEndpoint   Creating -> InService | Failed
    UpdateEndpoint   Updating -> InService with the new configuration; when its engine fails, with
                     the old one (AWS rolls back) and a FailureReason
        with alarms  Updating -> InService in steps, or RollingBack -> InService with the old
                     configuration and a FailureReason that names the alarm (``rollout``)
    UpdateEndpointWeightsAndCapacities
                     Updating -> InService with other numbers of instances
    DeleteEndpoint   Deleting -> removed
    its last engine ends by itself
                     InService -> Failed

One thread per change waits for the engines. Its result is stored under ``LOCK``. Faults of
endpoints (``faults``) lead to the other states.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moto.core.utils import utcnow
from moto.sagemaker.models import FakeEndpoint

from peagle.protocol import ENGINE_TAG, STAND_IN_TAG
from peagle.sandbox.components import SandboxComponent, managed_instances
from peagle.sandbox.faults import FAULTS, Fault
from peagle.sandbox.fleet import Fleet
from peagle.sandbox.instance import EngineInstance, LaunchFailed
from peagle.sandbox.launch_spec import LaunchSpec, engines_for
from peagle.sandbox.prerequisites import is_missing_image, missing_image_reason
from peagle.sandbox.resources import (
    LOCK,
    EndpointConfig,
    Variants,
    find_variant,
    instances_of,
    managed_scaling,
    set_desired,
    weights_of,
    with_running_numbers,
)
from peagle.sandbox.rollout import AlarmsFired, StagedUpdate, alarm_names

_SERVING = ("InService", "Updating", "RollingBack", "UpdateRollbackFailed")

_NO_CAPACITY = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)


class SandboxEndpoint(FakeEndpoint):
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
        self.current: Fleet | None = None
        self.components: dict[str, SandboxComponent] = {}
        super().__init__(
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
        self._is_ended = False
        self.starting: Fleet | None = None
        self.deployment_config: dict[str, Any] | None = None
        self._changed_since = self.creation_time
        self._stage = ""
        self._share = 0.0
        self._requests = 0
        self._thread: threading.Thread | None = None

    @property
    def endpoint_status(self) -> str:
        """Its state. In service, it fails with its last engine."""
        with LOCK:
            fleet = self.current
            ended = fleet.end_reason() if fleet and self._status == "InService" else None
            if fleet and ended:
                self.endpoint_status = "Failed"
                self.failure_reason = f"The engine exited: {ended}"[:1024]
                self.last_modified_time = utcnow()
                threading.Thread(target=fleet.end, daemon=True).start()  # what it left running
            return self._status

    @endpoint_status.setter
    def endpoint_status(self, status: str) -> None:
        self._status = status

    @property
    def variants(self) -> list[dict[str, Any]]:
        """The variants of its configuration, with the numbers and weights that it really has."""
        return with_running_numbers(self.config.production_variants, self.production_variants)

    @property
    def hosts_components(self) -> bool:
        """Whether its instances serve inference components, and no model of a variant."""
        return all("ModelName" not in one for one in self.config.production_variants)

    @property
    def engines(self) -> tuple[EngineInstance, ...]:
        """The engines that run or start, those of a component included."""
        fleets = [self.current or self.starting]
        fleets += [one.fleet or one.starting for one in self.components.values()]
        return tuple(instance for fleet in fleets if fleet for instance in fleet.instances)

    @property
    def instances(self) -> Counter[str]:
        """Instance type -> instances that count towards a quota: also those of an update."""
        if self.endpoint_status == "Failed":
            return Counter()
        return instances_of(self.variants) + instances_of(self._next_variants)

    def _is_rolling(self) -> bool:
        return "RollingUpdatePolicy" in (self.deployment_config or {})

    @property
    def is_busy(self) -> bool:
        """Whether AWS would reject another change now."""
        return self.endpoint_status in ("Creating", "Updating", "RollingBack", "Deleting")

    def is_created(self) -> bool:
        """For CloudFormation: when it is in service."""
        return self.serving is not None

    @property
    def serving(self) -> Fleet | None:
        """The engines that answer invocations."""
        return self.current if self.endpoint_status in _SERVING else None

    def next_fleet(self) -> Fleet | None:
        """The engines for the next request: in an update, the new ones for their share."""
        with LOCK:
            fleet, new, share = self.serving, self.starting, self._share
            self._requests += 1
            turn = self._requests * share % 1 < share
        return new if new and fleet and turn else fleet

    def config_of(self, instance: EngineInstance) -> str:
        """The name of the configuration that the instance runs."""
        new, config = self.starting, self.next_config
        if new and config and instance in new.instances:
            return str(config.endpoint_config_name)
        return str(self.endpoint_config_name)

    @property
    def weights(self) -> dict[str, float]:
        """Variant -> its share of the requests."""
        return weights_of(self.production_variants)

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
        is_rolling = bool(alarm_names(deployment_config)) and self._is_rolling()
        self.starting = Fleet(specs, is_empty=is_rolling and self.current is not None)
        operation = "UpdateEndpoint" if next_config else "CreateEndpoint"
        fault = FAULTS.of_endpoint(operation, instances_of(next_variants or self.variants))
        self._begin(status, functools.partial(self._bring_up, self.starting, fault))

    def begin_scaling(self, desired: Mapping[str, Mapping[str, Any]]) -> None:
        """Start or end engines until each variant has its number, as far as the sandbox goes.

        ``desired`` has the changed variants, as UpdateEndpointWeightsAndCapacities names them.
        """
        fleet = self.current
        assert fleet is not None
        counts = set_desired(self.production_variants, desired)

        def scale() -> None:
            for variant, count in counts.items():
                try:
                    fleet.resize(variant, engines_for(count), self.tag_engine)
                except LaunchFailed as failure:
                    self.failure_reason = str(failure)[:1024]
            self._finish("InService")

        self._begin("Updating", scale)

    def begin_deleting(self, on_deleted: Callable[[], object]) -> None:
        """End the engines, then call ``on_deleted``."""

        def end() -> None:
            self.end()
            with LOCK:
                on_deleted()

        self.starting = None
        self._begin("Deleting", end)

    def join(self) -> None:
        if self._thread:
            self._thread.join()

    def end(self) -> None:
        """End every engine of this endpoint; return when they have ended."""
        self._is_ended = True
        for fleet in (self.starting, self.current):
            if fleet:
                fleet.end()
        for component in self.components.values():
            component.end()

    @property
    def response_object(self) -> dict[str, Any]:
        """The response of DescribeEndpoint, without empty members."""
        configured = self.config.production_variants
        response = {
            "EndpointName": self.endpoint_name,
            "EndpointArn": self.arn,
            "EndpointConfigName": self.endpoint_config_name,
            "ProductionVariants": [
                {
                    **variant,
                    "CurrentInstanceCount": self._running(variant),
                    **managed_scaling(find_variant(configured, variant["VariantName"])),
                }
                for variant in self.production_variants
            ],
            "EndpointStatus": self.endpoint_status,
            "FailureReason": self.failure_reason,
            "CreationTime": self.creation_time,
            "LastModifiedTime": self.last_modified_time,
            "LastDeploymentConfig": self.deployment_config,
            "AsyncInferenceConfig": self.config.async_inference_config,
            "PendingDeploymentSummary": self._pending(),
        }
        return {name: value for name, value in response.items() if value}

    def _running(self, variant: dict[str, Any]) -> int:
        if self.hosts_components and self.current:
            configured = find_variant(self.config.production_variants, variant["VariantName"])
            found = {**configured, **variant}
            return managed_instances(found, tuple(self.components.values()))
        return self.current.count(variant["VariantName"]) if self.current else 0

    def _pending(self) -> dict[str, Any] | None:
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

    def _begin(self, status: str, work: Callable[[], None]) -> None:
        self.endpoint_status = status
        self.failure_reason = None
        self.last_modified_time = self._changed_since = utcnow()
        name = f"{status} {self.endpoint_name}"
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def _bring_up(self, fleet: Fleet, fault: Fault | None) -> None:
        kind = fault.kind if fault else None
        try:
            if kind == "stuck-creating":
                FAULTS.hold_until_cleared()
                if self._is_ended:
                    return
            if kind in ("insufficient-capacity", "update-rollback-failed"):
                raise LaunchFailed(_NO_CAPACITY)
            for spec in fleet.specs:
                if is_missing_image(spec.image, spec.region):
                    raise LaunchFailed(missing_image_reason(spec.variant))
            self._start(fleet)
        except AlarmsFired as fired:
            self._undo(fleet, str(fired))
        except LaunchFailed as failure:
            undone = "UpdateRollbackFailed" if kind == "update-rollback-failed" else "InService"
            self._fail(str(failure), undone)
        except Exception:  # a bug here must not leave the endpoint in Creating forever
            traceback.print_exc()
            self._fail("Internal error of the sandbox; see its log (daemon.log).")
        else:
            self._succeed(fleet, "OutOfService" if kind == "out-of-service" else "InService")

    def _start(self, fleet: Fleet) -> None:
        """Start the engines; in an update with alarms, also move the requests to them. Raises
        LaunchFailed and AlarmsFired."""
        old = self.current
        if old is None or not alarm_names(self.deployment_config):
            fleet.start(on_chosen=self.tag_engine)
            return
        total = sum(instances_of(self._next_variants).values())
        config = self.deployment_config or {}
        rollout = StagedUpdate(fleet.specs[0].region, config, total, lambda: self._is_ended)
        if rollout.is_rolling:
            rollout.roll(old, fleet, self.tag_engine, self._report)
            return
        self._report("Creating", 0.0)
        fleet.start(on_chosen=self.tag_engine)
        rollout.shift(self._report)

    def _report(self, stage: str, share: float) -> None:
        with LOCK:
            self._stage, self._share = stage, share

    def _undo(self, fleet: Fleet, reason: str) -> None:
        """Return all requests to the old engines, and end the new ones."""
        with LOCK:
            self.endpoint_status, old = "RollingBack", self.current
        status = "InService"
        try:
            for variant in self.production_variants if old else ():
                count = engines_for(int(variant["DesiredInstanceCount"]))
                if old and old.count(variant["VariantName"]) < count:
                    old.resize(variant["VariantName"], count, self.tag_engine)
        except LaunchFailed as failure:
            status, reason = "UpdateRollbackFailed", f"{reason} {failure}"
        self._report("", 0.0)
        fleet.drain()
        fleet.end()
        self._fail(reason, status)

    def _succeed(self, fleet: Fleet, status: str) -> None:
        with LOCK:
            old, self.current, self.starting = self.current, fleet, None
            self._stage, self._share = "", 0.0
            if self.next_config:
                self.config, self.next_config = self.next_config, None
                self.endpoint_config_name = self.config.endpoint_config_name
                self.production_variants = self._process_production_variants(
                    list(self._next_variants)
                )
                self._next_variants = ()
        if old:
            old.drain()
            old.end()
        self._finish(status)

    def _fail(self, reason: str, undone: str = "InService") -> None:
        """``undone`` is the status of an endpoint that served before."""
        with LOCK:
            self.starting = self.next_config = None
            self._next_variants, self._stage, self._share = (), "", 0.0
            self.failure_reason = reason[:1024]
            self._finish(undone if self.current else "Failed")

    def _finish(self, status: str) -> None:
        with LOCK:
            self.endpoint_status = status
            self.last_modified_time = utcnow()

    def tag_engine(self, chosen: EngineInstance) -> None:
        """Record in tags what runs instead of the requested model or engine."""
        engine = f"vllm {chosen.other_engine}" if chosen.other_engine else None
        replaced = {STAND_IN_TAG: chosen.stand_in, ENGINE_TAG: engine}
        with LOCK:
            kept = [tag for tag in self.tags if tag["Key"] not in replaced]
            self.tags = kept + [{"Key": k, "Value": v} for k, v in replaced.items() if v]
