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

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moto.core.utils import utcnow
from moto.sagemaker.exceptions import ValidationError

from peagle.sandbox.account import gpu_count
from peagle.sandbox.endpoints import (
    LOCK,
    NotFoundError,
    RefusedForNowError,
    SandboxEndpoint,
    Serves,
    alarm_names,
    check_image,
    rollout_problem,
)
from peagle.sandbox.engines import EngineInstance, Fleet, LaunchFailed, OnChosen
from peagle.sandbox.launch import LaunchSpec, engines_for

if TYPE_CHECKING:
    from peagle.sandbox.sagemaker import SageMakerBackend

_NO_ROOM = (
    "Insufficient capacity: the instances of the endpoint have fewer accelerators than the copies "
    "of the inference component require."
)
"""Our wording; AWS documents that a component fails, and not its words."""


class SandboxComponent(Serves):
    """One inference component. ``parameters`` are CreateInferenceComponent's, with the changes of
    updates; ``on_chosen`` receives every engine that is launched."""

    def __init__(
        self, arn: str, endpoint_arn: str, parameters: Mapping[str, Any], on_chosen: OnChosen
    ) -> None:
        super().__init__()
        self.arn, self.endpoint_arn = arn, endpoint_arn
        self.parameters = dict(parameters)
        self.tags: list[dict[str, str]] = list(parameters.get("Tags") or [])
        self.name: str = parameters["InferenceComponentName"]
        self.endpoint_name: str = parameters["EndpointName"]
        self.status = "Creating"
        self.failure_reason: str | None = None
        self.created = self.changed = utcnow()
        self.refused_at = 0.0
        """When a request found no copy, in epoch seconds: what wakes it."""
        self._on_chosen = on_chosen

    @property
    def is_busy(self) -> bool:
        """Whether AWS would reject another change now."""
        return self.status in ("Creating", "Updating", "Deleting")

    @property
    def copies(self) -> int:
        """How many copies were asked for."""
        return int(self.parameters["RuntimeConfig"]["CopyCount"])

    @property
    def gpus(self) -> int:
        """The GPUs of its copies; while an update starts others beside them, of both."""
        copies = self.copies * (2 if self.current and self.starting else 1)
        return copies * max(1, count_accelerators(self.parameters))

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
                "CurrentCopyCount": len(self.current.instances) if self.current else 0,
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
        parameters: Mapping[str, Any],
        rollout: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the copies of ``spec``, during an update beside the old ones; ``fits``: the
        instances have the GPUs. ``parameters`` are the component's once they serve. ``rollout`` is
        the DeploymentConfig of an update with alarms."""
        count = int(parameters["RuntimeConfig"]["CopyCount"])
        fleet = self.starting = Fleet([replace(spec, count=engines_for(count))])
        update = None
        if rollout:
            update = (spec.region, "UpdateInferenceComponent", rollout, self.copies)

        def serve() -> None:
            if not fits:
                raise LaunchFailed(_NO_ROOM)
            check_image(spec)
            self._replace(fleet, self._on_chosen, update)
            with LOCK:
                self.parameters = dict(parameters)
                old = self._swap(fleet)
            if old:
                old.retire()

        self._begin(status, serve)

    def begin_scaling(self, copies: int, fits: bool) -> None:
        """Start or end copies until there are ``copies``."""
        fleet = self.current
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
        fleet = self.next_fleet()
        if fleet is None or not fleet.instances:
            return None
        return fleet.choose({}, fleet.variants[0])

    def _begin(self, status: str, work: Callable[[], None]) -> None:
        self.status, self.failure_reason, self.changed = status, None, utcnow()

        def finish(reason: str = "") -> None:
            with LOCK:
                self.starting = None
                self.failure_reason = reason or None
                self.status = "InService" if self.current else "Failed"
                self.changed = utcnow()

        def work_and_finish() -> None:
            work()
            finish()

        self._run(f"{status} {self.name}", work_and_finish, finish)


def count_accelerators(parameters: Mapping[str, Any]) -> int:
    """The GPUs that each copy requires."""
    requirements = parameters["Specification"].get("ComputeResourceRequirements") or {}
    return int(requirements.get("NumberOfAcceleratorDevicesRequired") or 0)


class ComponentOperations:
    """The inference components of one region, by name."""

    def __init__(self, backend: SageMakerBackend) -> None:
        self._backend = backend
        self.by_name: dict[str, SandboxComponent] = {}

    def find(self, name: str) -> SandboxComponent:
        """The component. Raises NotFoundError."""
        if name not in self.by_name:
            raise NotFoundError(f'Could not find inference component "{self._arn(name)}".')
        return self.by_name[name]

    def create(self, parameters: Mapping[str, Any]) -> SandboxComponent:
        """CreateInferenceComponent: checks, then starts the copies in the background."""
        name = parameters["InferenceComponentName"]
        arn = self._arn(name)
        with LOCK:
            if name in self.by_name:
                raise ValidationError(
                    f'Cannot create already existing inference component "{arn}".'
                )
            endpoint = self._find_endpoint(parameters)
            spec = self._launch_spec(endpoint, parameters)
            if int(parameters["RuntimeConfig"]["CopyCount"]) < 1:
                raise ValidationError("CopyCount must be at least 1 to create a component.")
            component = SandboxComponent(arn, endpoint.arn, parameters, endpoint.tag_engine)
            self.by_name[name] = endpoint.components[name] = component
            fits = self._fits(endpoint, parameters)
            component.begin_serving("Creating", spec, fits, parameters)
            return component

    def update(self, parameters: Mapping[str, Any]) -> SandboxComponent:
        """UpdateInferenceComponent: starts the copies of the new model beside the old ones."""
        changes = {
            key: parameters[key] for key in ("Specification", "RuntimeConfig") if key in parameters
        }
        with LOCK:
            component = self._find_idle(parameters["InferenceComponentName"])
            changed = {**component.parameters, **changes}
            endpoint = self._find_endpoint(changed)
            fits = self._fits(endpoint, changed)
            if "Specification" not in parameters:
                component.begin_scaling(int(changed["RuntimeConfig"]["CopyCount"]), fits)
                return component
            spec = self._launch_spec(endpoint, changed)
            config = parameters.get("DeploymentConfig")
            region, copies = self._backend.region_name, component.copies
            if problem := rollout_problem(config, region, copies, "copy count"):
                raise ValidationError(problem)
            rollout = config if alarm_names(config) else None
            component.begin_serving("Updating", spec, fits, changed, rollout)
            return component

    def update_runtime_config(self, parameters: Mapping[str, Any]) -> SandboxComponent:
        """UpdateInferenceComponentRuntimeConfig: another number of copies."""
        return self.update(
            {
                "InferenceComponentName": parameters["InferenceComponentName"],
                "RuntimeConfig": parameters["DesiredRuntimeConfig"],
            }
        )

    def begin_deleting(self, name: str) -> None:
        """DeleteInferenceComponent: checks, then ends the copies in the background."""
        with LOCK:
            component = self._find_idle(name)

            def forget() -> None:
                self.by_name.pop(name, None)
                endpoint = self._backend.endpoints.get(component.endpoint_name)
                if endpoint:
                    endpoint.components.pop(name, None)

            component.begin_deleting(forget)

    def _find_idle(self, name: str) -> SandboxComponent:
        component = self.find(name)
        if component.is_busy:
            raise RefusedForNowError(
                f'Cannot update in-progress inference component "{component.arn}".'
            )
        return component

    def _find_endpoint(self, parameters: Mapping[str, Any]) -> SandboxEndpoint:
        """The endpoint in service that hosts components, with that variant."""
        endpoint = self._backend.find_endpoint(parameters["EndpointName"])
        if endpoint.endpoint_status != "InService":
            raise ValidationError(f'Endpoint "{endpoint.arn}" is not in service.')
        if not endpoint.hosts_components:
            raise ValidationError(
                f'Inference components are not supported for the endpoint "{endpoint.arn}", whose '
                "variants have models."
            )
        variant = parameters.get("VariantName")
        if variant not in [one["VariantName"] for one in endpoint.production_variants]:
            raise ValidationError(
                f'Variant "{variant}" is not present within endpoint '
                f'configuration "{endpoint.endpoint_config_name}".'
            )
        return endpoint

    def _launch_spec(self, endpoint: SandboxEndpoint, parameters: Mapping[str, Any]) -> LaunchSpec:
        """The engine of one copy; only components with a model are known here."""
        specification = parameters.get("Specification") or {}
        if "ModelName" not in specification:
            raise ValidationError("The sandbox starts inference components with a ModelName only.")
        startup = specification.get("StartupParameters") or {}
        variant = {
            "VariantName": parameters["VariantName"],
            "ModelName": specification["ModelName"],
            **startup,
        }
        name = parameters["InferenceComponentName"]
        (spec,) = self._backend.launch_specs(endpoint.endpoint_name, [variant], name)
        return spec

    def _fits(self, endpoint: SandboxEndpoint, parameters: Mapping[str, Any]) -> bool:
        """Whether the instances that the variant may have hold the copies."""
        name = parameters["VariantName"]
        variant = next(one for one in endpoint.variants if one["VariantName"] == name)
        scaling = variant.get("ManagedInstanceScaling") or {}
        instances = int(scaling.get("MaxInstanceCount") or variant.get("InitialInstanceCount") or 1)
        accelerators = count_accelerators(parameters)
        if not accelerators:
            return True
        per_instance = gpu_count(variant.get("InstanceType", "")) // accelerators
        return per_instance * instances >= int(parameters["RuntimeConfig"]["CopyCount"])

    def _arn(self, name: str) -> str:
        region, account = self._backend.region_name, self._backend.account_id
        return f"arn:aws:sagemaker:{region}:{account}:inference-component/{name}"
