"""The operations of inference components: what AWS rejects, and which engines a change starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moto.sagemaker.exceptions import ValidationError

from peagle.sandbox import rollout
from peagle.sandbox.components import SandboxComponent, accelerators_of, fit_on, with_changes
from peagle.sandbox.endpoint import SandboxEndpoint
from peagle.sandbox.launch_spec import LaunchSpec
from peagle.sandbox.resources import LOCK, NotFoundError, RefusedForNowError
from peagle.sandbox.services import gpu_count

if TYPE_CHECKING:
    from peagle.sandbox.sagemaker import SageMakerBackend


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

    def of_endpoint(self, endpoint: str) -> list[SandboxComponent]:
        """The components on that endpoint."""
        return [one for one in self.by_name.values() if one.endpoint_name == endpoint]

    def create(self, parameters: Mapping[str, Any]) -> SandboxComponent:
        """CreateInferenceComponent: checks, then starts the copies in the background."""
        name = parameters["InferenceComponentName"]
        with LOCK:
            if name in self.by_name:
                arn = self._arn(name)
                raise ValidationError(
                    f'Cannot create already existing inference component "{arn}".'
                )
            endpoint = self._endpoint(parameters)
            spec = self._spec(endpoint, parameters)
            if int(parameters["RuntimeConfig"]["CopyCount"]) < 1:
                raise ValidationError("CopyCount must be at least 1 to create a component.")
            made = SandboxComponent(self._arn(name), endpoint.arn, parameters, endpoint.tag_engine)
            self.by_name[name] = endpoint.components[name] = made
            made.begin_serving("Creating", spec, self._fits(endpoint, parameters), dict(parameters))
            return made

    def update(self, parameters: Mapping[str, Any]) -> SandboxComponent:
        """UpdateInferenceComponent: starts the copies of the new model beside the old ones."""
        with LOCK:
            component = self._idle(parameters["InferenceComponentName"])
            changed = with_changes(component.parameters, parameters)
            endpoint = self._endpoint(changed)
            if "Specification" not in parameters:
                copies = int(changed["RuntimeConfig"]["CopyCount"])
                component.begin_scaling(copies, self._fits(endpoint, changed))
            else:
                spec = self._spec(endpoint, changed)
                config = self._rollout(parameters.get("DeploymentConfig"), component)
                fits = self._fits(endpoint, changed)
                component.begin_serving("Updating", spec, fits, changed, config)
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
            component = self._idle(name)

            def gone() -> None:
                self.by_name.pop(name, None)
                endpoint = self._backend.endpoints.get(component.endpoint_name)
                if endpoint:
                    endpoint.components.pop(name, None)

            component.begin_deleting(gone)

    def _idle(self, name: str) -> SandboxComponent:
        component = self.find(name)
        if component.is_busy:
            raise RefusedForNowError(
                f'Cannot update in-progress inference component "{component.arn}".'
            )
        return component

    def _endpoint(self, parameters: Mapping[str, Any]) -> SandboxEndpoint:
        """The endpoint in service that hosts components, with that variant."""
        endpoint = self._backend.find_endpoint(parameters["EndpointName"])
        if endpoint.endpoint_status != "InService":
            raise ValidationError(f'Endpoint "{endpoint.arn}" is not in service.')
        if not endpoint.hosts_components:
            raise ValidationError(
                f'Inference components are not supported for the endpoint "{endpoint.arn}", whose '
                "variants have models."
            )
        variants = [one["VariantName"] for one in endpoint.production_variants]
        if parameters.get("VariantName") not in variants:
            raise ValidationError(
                f'Variant "{parameters.get("VariantName")}" is not present within endpoint '
                f'configuration "{endpoint.endpoint_config_name}".'
            )
        return endpoint

    def _rollout(
        self, config: Mapping[str, Any] | None, component: SandboxComponent
    ) -> Mapping[str, Any] | None:
        """The DeploymentConfig of an update, if alarms watch it. Raises ValidationError."""
        copies = component.copies
        text = rollout.problem(config, self._backend.region_name, copies, "copy count")
        if text:
            raise ValidationError(text)
        return config if rollout.alarm_names(config) else None

    def _spec(self, endpoint: SandboxEndpoint, parameters: Mapping[str, Any]) -> LaunchSpec:
        """The engine of one copy; only components with a model are known here."""
        specification = parameters.get("Specification") or {}
        if "ModelName" not in specification:
            raise ValidationError("The sandbox starts inference components with a ModelName only.")
        model = self._backend.describe_model(specification["ModelName"])
        startup = specification.get("StartupParameters") or {}
        variant = {"VariantName": parameters["VariantName"], **startup}
        (spec,) = self._backend.specs_of(endpoint.endpoint_name, [variant], [model])
        return spec.of_component(parameters["InferenceComponentName"])

    def _fits(self, endpoint: SandboxEndpoint, parameters: Mapping[str, Any]) -> bool:
        """Whether the instances that the variant may have hold the copies."""
        name = parameters["VariantName"]
        variant = next(one for one in endpoint.variants if one["VariantName"] == name)
        scaling = variant.get("ManagedInstanceScaling") or {}
        instances = int(scaling.get("MaxInstanceCount") or variant.get("InitialInstanceCount") or 1)
        gpus = gpu_count(variant.get("InstanceType", ""))
        copies = int(parameters["RuntimeConfig"]["CopyCount"])
        return fit_on(copies, accelerators_of(parameters), gpus, instances)

    def _arn(self, name: str) -> str:
        backend = self._backend
        return (
            f"arn:aws:sagemaker:{backend.region_name}:{backend.account_id}:"
            f"inference-component/{name}"
        )
