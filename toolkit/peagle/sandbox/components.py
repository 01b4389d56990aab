"""Inference components in the sandbox: copies of a model on the instances of an endpoint.

    CreateInferenceComponent   Creating -> InService | Failed
    UpdateInferenceComponent   Updating -> InService with the new model, or with the old one and a
                               FailureReason when an engine of the new one fails; in batches where
                               alarms watch it, which return the old one
    UpdateInferenceComponentRuntimeConfig
                               Updating -> InService with another number of copies, 0 included
    DeleteInferenceComponent   Deleting -> removed

Each copy is a real engine, at most ``MAX_ENGINES`` of them. GPUs are counted as on AWS, where a
component that does not fit on the instances fails.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from moto.core.utils import utcnow

from peagle.sandbox.fleet import Fleet, OnChosen
from peagle.sandbox.instance import EngineInstance, LaunchFailed
from peagle.sandbox.launch_spec import LaunchSpec, engines_for
from peagle.sandbox.prerequisites import is_missing_image, missing_image_reason
from peagle.sandbox.resources import LOCK
from peagle.sandbox.rollout import AlarmsFired, StagedUpdate
from peagle.sandbox.services import gpu_count

_NO_ROOM = (
    "Insufficient capacity: the instances of the endpoint have fewer accelerators than the copies "
    "of the inference component require."
)
"""Our wording; AWS documents that a component fails, and not its words."""


class SandboxComponent:
    """One inference component. ``parameters`` are CreateInferenceComponent's, with the changes of
    updates; ``on_chosen`` receives every engine that is launched."""

    def __init__(
        self, arn: str, endpoint_arn: str, parameters: Mapping[str, Any], on_chosen: OnChosen
    ) -> None:
        self.arn, self.endpoint_arn = arn, endpoint_arn
        self.parameters = dict(parameters)
        self.tags: list[dict[str, str]] = list(parameters.get("Tags") or [])
        self.name: str = parameters["InferenceComponentName"]
        self.endpoint_name: str = parameters["EndpointName"]
        self.status = "Creating"
        self.failure_reason: str | None = None
        self.created = self.changed = utcnow()
        self.fleet: Fleet | None = None
        self.starting: Fleet | None = None
        self._on_chosen = on_chosen
        self._is_ended, self._share, self._requests = False, 0.0, 0
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether AWS would reject another change now."""
        return self.status in ("Creating", "Updating", "Deleting")

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
        response = {
            **self.summary,
            "FailureReason": self.failure_reason,
            "Specification": self.parameters.get("Specification"),
            "RuntimeConfig": {
                "DesiredCopyCount": self.copies,
                "CurrentCopyCount": len(self.fleet.instances) if self.fleet else 0,
            },
        }
        return {name: value for name, value in response.items() if value is not None}

    @property
    def summary(self) -> dict[str, Any]:
        """The component in the response of ListInferenceComponents."""
        return {
            "InferenceComponentName": self.name,
            "InferenceComponentArn": self.arn,
            "EndpointName": self.endpoint_name,
            "EndpointArn": self.endpoint_arn,
            "VariantName": self.parameters["VariantName"],
            "InferenceComponentStatus": self.status,
            "CreationTime": self.created,
            "LastModifiedTime": self.changed,
        }

    def begin_serving(
        self,
        status: str,
        spec: LaunchSpec,
        fits: bool,
        parameters: Any,
        rollout: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the copies of ``spec``, during an update beside the old ones; ``fits``: the
        instances have the GPUs. ``parameters`` are the component's once they serve. With the
        DeploymentConfig ``rollout``, they replace the old ones in batches."""
        count = int(parameters["RuntimeConfig"]["CopyCount"])
        specs = [replace(spec, count=engines_for(count))]
        in_batches = rollout is not None and self.fleet is not None
        fleet = self.starting = Fleet(specs, is_empty=in_batches)

        def serve() -> None:
            if not fits:
                raise LaunchFailed(_NO_ROOM)
            if is_missing_image(spec.image, spec.region):
                raise LaunchFailed(missing_image_reason(spec.variant))
            if in_batches and rollout is not None:
                self._roll(fleet, rollout)
            else:
                fleet.start(self._on_chosen)
            with LOCK:
                old, self.fleet, self.starting = self.fleet, fleet, None
                self.parameters, self._share = parameters, 0.0
            if old:
                old.drain()
                old.end()

        self._begin(status, serve)

    def _roll(self, new: Fleet, rollout: Mapping[str, Any]) -> None:
        """Replace the copies in batches; where that fails or alarms fire, the old ones return.
        Raises LaunchFailed."""
        old = self.fleet
        assert old is not None
        staged = StagedUpdate(new.specs[0].region, rollout, self.copies, lambda: self._is_ended)
        try:
            staged.roll(old, new, self._on_chosen, self._report)
        except (AlarmsFired, LaunchFailed) as failed:
            old.resize(old.variants[0], engines_for(self.copies), self._on_chosen)
            self._report("", 0.0)
            new.drain()
            new.end()
            raise LaunchFailed(str(failed)) from failed

    def _report(self, stage: str, share: float) -> None:
        """The share of requests for the new copies of an update in batches."""
        with LOCK:
            self._share = share

    def begin_scaling(self, copies: int, fits: bool) -> None:
        """Start or end copies until there are ``copies``."""
        fleet = self.fleet
        assert fleet is not None

        def scale() -> None:
            if not fits:
                raise LaunchFailed(_NO_ROOM)
            fleet.resize(fleet.variants[0], engines_for(copies), self._on_chosen)
            self.parameters = {**self.parameters, "RuntimeConfig": {"CopyCount": copies}}

        self._begin("Updating", scale)

    def begin_deleting(self, on_deleted: Callable[[], object]) -> None:
        """End the copies, then call ``on_deleted``."""

        def delete() -> None:
            self.end()
            with LOCK:
                on_deleted()

        self._begin("Deleting", delete)

    def choose(self) -> EngineInstance | None:
        """The copy for the next request; ``None`` without copies."""
        with LOCK:
            fleet, new, share = self.fleet, self.starting, self._share
            self._requests += 1
            chosen = new if new and self._requests * share % 1 < share else fleet
        if chosen is None or not chosen.instances:
            return None
        return chosen.choose({}, chosen.variants[0])

    def join(self) -> None:
        if self._thread:
            self._thread.join()

    def end(self) -> None:
        """End every copy; return when they have ended."""
        self._is_ended = True
        for fleet in (self.starting, self.fleet):
            if fleet:
                fleet.end()

    def _begin(self, status: str, work: Callable[[], None]) -> None:
        self.status, self.failure_reason, self.changed = status, None, utcnow()

        def run() -> None:
            reason = ""
            try:
                work()
            except LaunchFailed as failure:
                reason = str(failure)
            except Exception:  # a bug here must not leave the component in Creating forever
                traceback.print_exc()
                reason = "Internal error of the sandbox; see its log (daemon.log)."
            with LOCK:
                self.starting = None
                self.failure_reason = reason[:1024] or None
                self.status = "InService" if self.fleet else "Failed"
                self.changed = utcnow()

        self._thread = threading.Thread(target=run, name=f"{status} {self.name}", daemon=True)
        self._thread.start()


def with_changes(parameters: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a component after UpdateInferenceComponent."""
    changed = {key: changes[key] for key in ("Specification", "RuntimeConfig") if changes.get(key)}
    return {**parameters, **changed}


def accelerators_of(parameters: Mapping[str, Any]) -> int:
    """The GPUs that each copy requires."""
    needs = parameters["Specification"].get("ComputeResourceRequirements") or {}
    return int(needs.get("NumberOfAcceleratorDevicesRequired") or 0)


def fit_on(copies: int, accelerators: int, gpus: int, instances: int) -> bool:
    """Whether so many copies fit on so many instances with that number of GPUs each."""
    return not accelerators or gpus // accelerators * instances >= copies


def managed_instances(variant: Mapping[str, Any], components: Sequence[SandboxComponent]) -> int:
    """How many instances run for the copies on them: those that hold the GPUs of all copies, within
    the variant's bounds of ManagedInstanceScaling, if it has these; else the variant's number.

    On AWS, an instance without a copy ends some minutes later.
    """
    planned = int(variant.get("DesiredInstanceCount") or 0)
    bounds = variant.get("ManagedInstanceScaling") or {}
    if bounds.get("Status") != "ENABLED" or not components:
        return planned
    gpus = gpu_count(variant["InstanceType"]) or 1
    used = sum(_gpus_of(one) for one in components)
    least = int(bounds.get("MinInstanceCount") or 0)
    return min(max(-(-used // gpus), least), int(bounds.get("MaxInstanceCount") or planned))


def _gpus_of(component: SandboxComponent) -> int:
    """The GPUs of its copies; while an update starts others beside them, of both."""
    copies = component.copies * (2 if component.fleet and component.starting else 1)
    return copies * max(1, accelerators_of(component.parameters))
