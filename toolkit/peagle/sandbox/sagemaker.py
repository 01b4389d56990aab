"""SageMaker in the sandbox: the models, endpoint configurations and endpoints of one region.

moto 5.2 keeps them without checks. This backend rejects what AWS rejects (``operations`` checks the
requests) and starts real engines for an endpoint (``resources``). ``install`` puts these classes
in moto's place, so that CloudFormation and the tagging service inside moto use them too: the
methods with moto's own names and signatures are CloudFormation's way in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from moto.core.exceptions import ServiceException
from moto.sagemaker import urls
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import SageMakerModelBackend, sagemaker_backends
from moto.sagemaker.utils import arn_formatter

from peagle.sandbox import services
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.launch_spec import LaunchSpec, launch_spec
from peagle.sandbox.resources import LOCK, EndpointConfig, SandboxEndpoint, SandboxModel
from peagle.sandbox.state import catalog

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

    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return urls

    def register_model(self, parameters: Mapping[str, Any]) -> SandboxModel:
        name = parameters["ModelName"]
        with LOCK:
            self._refuse_duplicate(MODEL, self._models, name)
            self._models[name] = SandboxModel(self.account_id, self.region_name, parameters)
            return self._models[name]

    def create_model(self, **fields: Any) -> SandboxModel:  # type: ignore[override]
        """A model of a CloudFormation template."""
        return self.register_model(_parameters(fields))

    def describe_model(self, model_name: str) -> SandboxModel:
        return self._find(MODEL, self._models, model_name)

    def delete_model(self, model_name: str) -> None:
        with LOCK:
            self.describe_model(model_name)
            for endpoint in self._remaining_endpoints():
                if any(model_name in config.model_names for config in endpoint.configs):
                    raise _in_use(MODEL, self._arn(MODEL, model_name), endpoint.arn)
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

    def create_endpoint_config(self, **fields: Any) -> EndpointConfig:  # type: ignore[override]
        """An endpoint configuration of a CloudFormation template."""
        return self.register_endpoint_config(_parameters(fields))

    def describe_endpoint_config(self, endpoint_config_name: str) -> dict[str, Any]:
        return self._find(CONFIG, self.endpoint_configs, endpoint_config_name).response_object

    def delete_endpoint_config(self, endpoint_config_name: str) -> None:
        with LOCK:
            config = self._find(CONFIG, self.endpoint_configs, endpoint_config_name)
            for endpoint in self._remaining_endpoints():
                if config in endpoint.configs:
                    raise _in_use(CONFIG, config.endpoint_config_arn, endpoint.arn)
            del self.endpoint_configs[endpoint_config_name]

    def register_endpoint(self, parameters: Mapping[str, Any]) -> SandboxEndpoint:
        """CreateEndpoint: checks, then starts the engines in the background."""
        name = parameters["EndpointName"]
        with LOCK:
            self._refuse_duplicate(ENDPOINT, self.endpoints, name)
            config, specs = self._launch_specs(parameters)
            tags = parameters.get("Tags")
            endpoint = SandboxEndpoint(self.account_id, self.region_name, name, config, tags)
            self.endpoints[name] = endpoint
            endpoint.begin_serving("Creating", specs, parameters.get("DeploymentConfig"))
            return endpoint

    def create_endpoint(self, **fields: Any) -> SandboxEndpoint:  # type: ignore[override]
        """An endpoint of a CloudFormation template."""
        return self.register_endpoint(_parameters(fields))

    def update_endpoint(self, parameters: Mapping[str, Any]) -> SandboxEndpoint:
        """UpdateEndpoint: checks, then starts the new engines in the background."""
        with LOCK:
            endpoint = self._idle_endpoint(parameters["EndpointName"])
            if endpoint.endpoint_status == "Failed":
                # Only DeleteEndpoint is possible (API_EndpointSummary); the wording is ours.
                raise ValidationError(f'Cannot update failed endpoint "{endpoint.arn}"; delete it.')
            config, specs = self._launch_specs(parameters)
            deployment_config = parameters.get("DeploymentConfig")
            if parameters.get("RetainDeploymentConfig"):
                deployment_config = endpoint.deployment_config
            endpoint.begin_serving("Updating", specs, deployment_config, config)
            return endpoint

    def begin_deleting(self, endpoint_name: str) -> SandboxEndpoint:
        """DeleteEndpoint: checks, then ends the engines in the background."""
        with LOCK:
            endpoint = self._idle_endpoint(endpoint_name)
            endpoint.begin_deleting(on_deleted=lambda: self.endpoints.pop(endpoint_name, None))
            return endpoint

    def delete_endpoint(self, endpoint_name: str) -> None:
        """Delete and wait: CloudFormation deletes the configuration next."""
        self.begin_deleting(endpoint_name).join()

    def describe_endpoint(self, endpoint_name: str) -> dict[str, Any]:
        with LOCK:
            return self._find(ENDPOINT, self.endpoints, endpoint_name).response_object

    def update_endpoint_weights_and_capacities(
        self, endpoint_name: str, desired_weights_and_capacities: list[dict[str, Any]]
    ) -> str:
        """UpdateEndpointWeightsAndCapacities: starts and ends engines in the background."""
        with LOCK:
            endpoint = self._idle_endpoint(endpoint_name)
            arn: str = super().update_endpoint_weights_and_capacities(
                endpoint_name, desired_weights_and_capacities
            )
            if endpoint.current:
                endpoint.begin_scaling(
                    {
                        desired["VariantName"]: int(desired["DesiredInstanceCount"])
                        for desired in desired_weights_and_capacities
                        if desired.get("DesiredInstanceCount")
                    }
                )
            return arn

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
        resource = super()._get_resource_from_arn(arn)
        if resource is None:
            raise ValidationError(f'Could not find resource "{arn}".')
        return resource

    def _remaining_endpoints(self) -> list[SandboxEndpoint]:
        """The endpoints that are not being deleted: Terraform deletes a configuration while its
        endpoint is still Deleting."""
        return [one for one in self.endpoints.values() if one.endpoint_status != "Deleting"]

    def _idle_endpoint(self, name: str) -> SandboxEndpoint:
        endpoint = self._find(ENDPOINT, self.endpoints, name)
        if endpoint.is_busy:
            raise ValidationError(f'Cannot update in-progress endpoint "{endpoint.arn}".')
        return endpoint

    def _launch_specs(
        self, parameters: Mapping[str, Any]
    ) -> tuple[EndpointConfig, list[LaunchSpec]]:
        """The configuration that the request names, and what to launch for its variants."""
        name = parameters["EndpointConfigName"]
        config = self._find(CONFIG, self.endpoint_configs, name)
        self._check_quota(config)
        variants = config.production_variants
        if any("ModelName" not in variant for variant in variants):
            raise ValidationError("The sandbox has no inference components; specify a model.")
        accounts = catalog().runtimes.accounts.values()
        return config, [
            launch_spec(
                self.region_name,
                parameters["EndpointName"],
                variant,
                self.describe_model(variant["ModelName"]),
                accounts,
            )
            for variant in variants
        ]

    def _check_quota(self, config: EndpointConfig) -> None:
        """Blue and green exist at the same time during an update, so both count."""
        used: Counter[str] = Counter()
        for endpoint in self.endpoints.values():
            if endpoint.endpoint_status != "Failed":
                for other in endpoint.configs:
                    used.update(_instances(other))
        for instance_type, requested in _instances(config).items():
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
            raise ValidationError(f'Could not find {kind} "{self._arn(kind, name)}".')
        return known[name]

    def _arn(self, kind: str, name: str) -> str:
        return arn_formatter(_ARN_KINDS[kind], name, self.account_id, self.region_name)


def install() -> None:
    """Let this process's moto use this backend. Call it before the first request."""
    sagemaker_backends.backend = SageMakerBackend


def find_endpoint(region: str, name: str) -> SandboxEndpoint | None:
    regions = sagemaker_backends[ACCOUNT]
    return _ours(regions[region]).endpoints.get(name) if region in regions else None


def all_endpoints() -> Iterator[tuple[str, SandboxEndpoint]]:
    for _, region, backend in sagemaker_backends.iter_backends():
        for endpoint in list(_ours(backend).endpoints.values()):
            yield region, endpoint


def _parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """``model_name`` -> ``ModelName``."""
    return {name.title().replace("_", ""): value for name, value in fields.items()}


def _in_use(kind: str, arn: str, endpoint_arn: str) -> ValidationError:
    """AWS documents that this is forbidden but allows it for some kinds; the wording is ours."""
    return ValidationError(f'Cannot delete {kind} "{arn}": endpoint "{endpoint_arn}" uses it.')


def _ours(backend: object) -> SageMakerBackend:
    assert isinstance(backend, SageMakerBackend), "install() precedes the first request"
    return backend


def _instances(config: EndpointConfig) -> Counter[str]:
    """The number of instances of each type in a configuration."""
    return Counter(
        {
            variant["InstanceType"]: int(variant.get("InitialInstanceCount") or 1)
            for variant in config.production_variants
            if "InstanceType" in variant
        }
    )
