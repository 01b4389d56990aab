"""SageMaker in the sandbox: the models, endpoint configurations and endpoints of one region.

moto 5.2 keeps them without checks. This backend rejects what AWS rejects (``validation`` checks the
requests) and starts real engines for an endpoint (``resources``). ``install`` puts these classes
in moto's place, so that CloudFormation and the tagging service inside moto use them too.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from moto.core.exceptions import ServiceException
from moto.sagemaker import urls
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import SageMakerModelBackend, sagemaker_backends
from moto.sagemaker.utils import arn_formatter

from peagle.render.resources import DIMENSION
from peagle.sandbox import rollout, services
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.component_operations import ComponentOperations
from peagle.sandbox.endpoint import SandboxEndpoint
from peagle.sandbox.launch_spec import LaunchSpec, launch_spec
from peagle.sandbox.prerequisites import (
    check_data,
    check_images,
    check_role,
    check_vpc,
)
from peagle.sandbox.resources import (
    LOCK,
    EndpointConfig,
    NotFoundError,
    RefusedForNowError,
    SandboxModel,
    Variants,
    instances_of,
    with_retained,
)
from peagle.sandbox.state import catalog
from peagle.sandbox.traffic import MetricSource

MODEL, CONFIG, ENDPOINT = "model", "endpoint configuration", "endpoint"
Resource = TypeVar("Resource", SandboxModel, EndpointConfig, SandboxEndpoint)

_ARN_KINDS = {MODEL: "model", CONFIG: "endpoint-config", ENDPOINT: "endpoint"}


class ResourceLimitExceeded(ServiceException):
    """A quota is used up."""

    code = "ResourceLimitExceeded"


class SageMakerBackend(SageMakerModelBackend):
    """moto's SageMaker with AWS's checks and endpoints that serve."""

    _models: dict[str, SandboxModel]  # type: ignore[assignment]
    endpoint_configs: dict[str, EndpointConfig]  # type: ignore[assignment]
    endpoints: dict[str, SandboxEndpoint]  # type: ignore[assignment]

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.components = ComponentOperations(self)

    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return urls

    def register_model(self, parameters: Mapping[str, Any]) -> SandboxModel:
        """CreateModel: checks what the model needs from other services."""
        name = parameters["ModelName"]
        with LOCK:
            self._refuse_duplicate(MODEL, self._models, name)
            model = SandboxModel(self.account_id, self.region_name, parameters)
            if model.execution_role_arn:
                check_role(model.execution_role_arn, self.region_name)
            check_images(model.all_containers, self.region_name)
            check_data(model.all_containers, self.region_name)
            check_vpc(parameters.get("VpcConfig") or {}, self.region_name)
            self._models[name] = model
            return model

    def describe_model(self, model_name: str) -> SandboxModel:
        return self._find(MODEL, self._models, model_name)

    def delete_model(self, model_name: str) -> None:
        """DeleteModel, which AWS allows also while an endpoint serves the model."""
        with LOCK:
            self.describe_model(model_name)
            del self._models[model_name]

    def register_endpoint_config(self, parameters: Mapping[str, Any]) -> EndpointConfig:
        name = parameters["EndpointConfigName"]
        with LOCK:
            self._refuse_duplicate(CONFIG, self.endpoint_configs, name)
            config = EndpointConfig(self.account_id, self.region_name, parameters)
            for model_name in sorted(config.model_names):
                self.describe_model(model_name)
            self.endpoint_configs[name] = config
            return config

    def describe_endpoint_config(self, endpoint_config_name: str) -> dict[str, Any]:
        return self._find(CONFIG, self.endpoint_configs, endpoint_config_name).response_object

    def delete_endpoint_config(self, endpoint_config_name: str) -> None:
        """DeleteEndpointConfig, which AWS allows also while an endpoint has the configuration."""
        with LOCK:
            self._find(CONFIG, self.endpoint_configs, endpoint_config_name)
            del self.endpoint_configs[endpoint_config_name]

    def register_endpoint(self, parameters: Mapping[str, Any]) -> SandboxEndpoint:
        """CreateEndpoint: checks, then starts the engines in the background."""
        name = parameters["EndpointName"]
        with LOCK:
            self._refuse_duplicate(ENDPOINT, self.endpoints, name)
            config = self._find(CONFIG, self.endpoint_configs, parameters["EndpointConfigName"])
            specs = self._launch_specs(name, config.production_variants)
            tags = parameters.get("Tags")
            endpoint = SandboxEndpoint(self.account_id, self.region_name, name, config, tags)
            self.endpoints[name] = endpoint
            endpoint.begin_serving("Creating", specs, parameters.get("DeploymentConfig"))
            return endpoint

    def update_endpoint(self, parameters: Mapping[str, Any]) -> SandboxEndpoint:
        """UpdateEndpoint: checks, then starts the new engines in the background."""
        with LOCK:
            endpoint = self._idle_endpoint(parameters["EndpointName"])
            if endpoint.endpoint_status == "Failed":
                # Only DeleteEndpoint is possible (API_EndpointSummary); the wording is ours.
                raise ValidationError(f'Cannot update failed endpoint "{endpoint.arn}"; delete it.')
            config = self._find(CONFIG, self.endpoint_configs, parameters["EndpointConfigName"])
            self._check_scaling_targets(endpoint, config)
            variants = with_retained(config.production_variants, endpoint.variants, parameters)
            specs = self._launch_specs(endpoint.endpoint_name, variants)
            deployment_config = parameters.get("DeploymentConfig")
            if parameters.get("RetainDeploymentConfig"):
                deployment_config = endpoint.deployment_config
            total = sum(instances_of(variants).values())
            if refused := rollout.problem(deployment_config, self.region_name, total):
                raise ValidationError(refused)
            endpoint.begin_serving("Updating", specs, deployment_config, config, variants)
            return endpoint

    def begin_deleting(self, endpoint_name: str) -> SandboxEndpoint:
        """DeleteEndpoint: checks, then ends the engines in the background."""
        with LOCK:
            endpoint = self._idle_endpoint(endpoint_name)
            if endpoint.components:
                names = ", ".join(sorted(endpoint.components))
                raise RefusedForNowError(
                    f'Cannot delete endpoint "{endpoint.arn}" because it has the inference '
                    f"component(s) {names}."
                )
            endpoint.begin_deleting(on_deleted=lambda: self.endpoints.pop(endpoint_name, None))
            return endpoint

    def delete_endpoint(self, endpoint_name: str) -> None:
        """Delete and wait: CloudFormation deletes the configuration next."""
        self.begin_deleting(endpoint_name).join()

    def find_endpoint(self, name: str) -> SandboxEndpoint:
        """The endpoint. Raises NotFoundError."""
        return self._find(ENDPOINT, self.endpoints, name)

    def describe_endpoint(self, endpoint_name: str) -> dict[str, Any]:
        with LOCK:
            return self._find(ENDPOINT, self.endpoints, endpoint_name).response_object

    def update_endpoint_weights_and_capacities(
        self, endpoint_name: str, desired_weights_and_capacities: list[dict[str, Any]]
    ) -> str:
        """UpdateEndpointWeightsAndCapacities: starts and ends engines in the background."""
        desired = {one["VariantName"]: one for one in desired_weights_and_capacities}
        with LOCK:
            endpoint = self._idle_endpoint(endpoint_name)
            if endpoint.current is None or endpoint.endpoint_status == "Failed":
                raise ValidationError(f'Cannot update failed endpoint "{endpoint.arn}"; delete it.')
            running = {one["VariantName"]: one for one in endpoint.variants}
            unknown = ", ".join(sorted(set(desired) - set(running)))
            if unknown or len(desired) < len(desired_weights_and_capacities):
                raise ValidationError(
                    f'The variant name(s) "{unknown}" is/are not present within endpoint '
                    f'configuration "{endpoint.endpoint_config_name}".'
                    if unknown
                    else "A variant name was non-unique within the request."
                )
            more: Counter[str] = Counter()
            for name, change in desired.items():
                before = int(running[name].get("InitialInstanceCount") or 0)
                more[running[name].get("InstanceType", "")] += max(
                    0, int(change.get("DesiredInstanceCount") or before) - before
                )
            self._check_quota(+more)
            endpoint.begin_scaling(desired)
            return endpoint.arn

    def add_tags(self, arn: str, tags: list[dict[str, str]]) -> list[dict[str, str]]:
        """AddTags: an existing key gets the new value."""
        resource = self._get_resource_from_arn(arn)
        new_keys = {tag["Key"] for tag in tags}
        resource.tags = [tag for tag in resource.tags if tag["Key"] not in new_keys] + tags
        return list(resource.tags)

    def reset(self) -> None:
        """moto's reset; also ends the engines."""
        for endpoint in list(self.endpoints.values()):
            endpoint.end()
        super().reset()

    def _get_resource_from_arn(self, arn: str) -> Any:
        if ":inference-component/" in arn:
            return self.components.find(arn.rpartition("/")[2])
        resource = super()._get_resource_from_arn(arn)
        if resource is None:
            raise NotFoundError(f'Could not find resource "{arn}".')
        return resource

    def _idle_endpoint(self, name: str) -> SandboxEndpoint:
        endpoint = self._find(ENDPOINT, self.endpoints, name)
        if endpoint.is_busy:
            raise RefusedForNowError(f'Cannot update in-progress endpoint "{endpoint.arn}".')
        return endpoint

    def _launch_specs(self, endpoint_name: str, variants: Variants) -> list[LaunchSpec]:
        """What to launch for the variants, if quota, models and roles allow it."""
        self._check_quota(instances_of(variants))
        if all("ModelName" not in variant for variant in variants):
            return []  # inference components bring the models
        models = [self.describe_model(variant.get("ModelName", "")) for variant in variants]
        return self.specs_of(endpoint_name, variants, models)

    def specs_of(
        self, endpoint_name: str, variants: Variants, models: list[SandboxModel]
    ) -> list[LaunchSpec]:
        """What to launch for each variant and its model."""
        for model in models:
            if model.execution_role_arn:
                check_role(model.execution_role_arn, self.region_name)
        table = catalog().runtimes
        accounts = table.accounts.values()
        versions = {one.digest: one.vllm for one in table.runtimes if one.digest}
        return [
            launch_spec(self.region_name, endpoint_name, variant, model, accounts, versions)
            for variant, model in zip(variants, models, strict=True)
        ]

    def _check_scaling_targets(self, endpoint: SandboxEndpoint, config: EndpointConfig) -> None:
        """AWS rejects a request to change the type of a variant that is scaled automatically."""
        loaded = sys.modules.get("moto.applicationautoscaling.models")
        if loaded is None:  # importing it takes 2 s; there are no targets yet
            return
        targets = loaded.applicationautoscaling_backends[self.account_id][self.region_name].targets
        scaled = targets.get(DIMENSION, {})
        types = {one["VariantName"]: one.get("InstanceType") for one in config.production_variants}
        for variant in endpoint.variants:
            name = variant["VariantName"]
            changed = types.get(name) != variant.get("InstanceType")
            if changed and f"endpoint/{endpoint.endpoint_name}/variant/{name}" in scaled:
                raise ValidationError(
                    f'The variant(s) "[{name}]" must be deregistered as scalable targets with AWS '
                    "Auto Scaling before they can be removed or have their instance type updated."
                )

    def _check_quota(self, more: Counter[str]) -> None:
        """Blue and green exist at the same time during an update, so both count."""
        used: Counter[str] = Counter()
        for endpoint in self.endpoints.values():
            used.update(endpoint.instances)
        for instance_type, requested in more.items():
            quota = services.quota_value(instance_type, self.region_name)
            if used[instance_type] + requested > quota:
                raise ResourceLimitExceeded(
                    f"The account-level service limit '{instance_type} for endpoint usage' is "
                    f"{quota:.0f} Instances, with current utilization of {used[instance_type]} "
                    f"Instances and a request delta of {requested} Instances. Please use AWS "
                    "Service Quotas to request an increase for this quota. If AWS Service Quotas "
                    "is not available, contact AWS support to request an increase for this quota."
                )

    def _refuse_duplicate(self, kind: str, known: Mapping[str, Any], name: str) -> None:
        if name in known:
            arn = self._arn(kind, name)
            raise ValidationError(f'Cannot create already existing {kind} "{arn}".')

    def _find(self, kind: str, known: Mapping[str, Resource], name: str) -> Resource:
        if name not in known:
            raise NotFoundError(f'Could not find {kind} "{self._arn(kind, name)}".')
        return known[name]

    def _arn(self, kind: str, name: str) -> str:
        return arn_formatter(_ARN_KINDS[kind], name, self.account_id, self.region_name)


def install() -> None:
    """Let this process's moto use this backend. Call it before the first request."""
    sagemaker_backends.backend = SageMakerBackend


def backend_of(region: str) -> SageMakerBackend:
    return _ours(sagemaker_backends[ACCOUNT][region])


def find_endpoint(region: str, name: str) -> SandboxEndpoint | None:
    regions = sagemaker_backends[ACCOUNT]
    return _ours(regions[region]).endpoints.get(name) if region in regions else None


def all_endpoints() -> Iterator[tuple[str, SandboxEndpoint]]:
    for _, region, backend in sagemaker_backends.iter_backends():
        for endpoint in list(_ours(backend).endpoints.values()):
            yield region, endpoint


def requests_in_progress() -> Iterator[tuple[MetricSource, int]]:
    """Every instance and every copy that serves, with its requests in progress."""
    for region, endpoint in all_endpoints():
        components = [one.fleet for one in [*endpoint.components.values()]]
        for fleet in (endpoint.current, *components):
            for instance in fleet.instances if fleet else ():
                spec = instance.spec
                source = MetricSource(region, endpoint.endpoint_name, spec.variant, spec.component)
                yield source, instance.in_progress


def _ours(backend: object) -> SageMakerBackend:
    assert isinstance(backend, SageMakerBackend), "install() precedes the first request"
    return backend
