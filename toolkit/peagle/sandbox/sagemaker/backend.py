"""The models, endpoint configurations and endpoints of one region, and who may do what to them.

The methods with moto's own names and signatures (``create_model``, ``create_endpoint_config``,
``create_endpoint``, ``delete_endpoint``) are also CloudFormation's way in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from moto.sagemaker import urls
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import SageMakerModelBackend, sagemaker_backends
from moto.sagemaker.utils import arn_formatter

from peagle.sandbox import services as quotas
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.hosting.spec import Order, order_of
from peagle.sandbox.sagemaker import refusals as words
from peagle.sandbox.sagemaker.endpoint import LOCK, Endpoint
from peagle.sandbox.sagemaker.resources import EndpointConfig, Model

MODEL, CONFIG, ENDPOINT = "model", "endpoint configuration", "endpoint"
Resource = TypeVar("Resource", Model, EndpointConfig, Endpoint)

_ARN_KINDS = {MODEL: "model", CONFIG: "endpoint-config", ENDPOINT: "endpoint"}


class Backend(SageMakerModelBackend):
    """moto's SageMaker with AWS's refusals, and endpoints that live."""

    _models: dict[str, Model]  # type: ignore[assignment]
    endpoint_configs: dict[str, EndpointConfig]  # type: ignore[assignment]
    endpoints: dict[str, Endpoint]  # type: ignore[assignment]

    @property
    def _url_module(self) -> Any:
        """moto guesses it from the class's module; ours is elsewhere."""
        return urls

    def register_model(self, parameters: Mapping[str, Any]) -> Model:
        """CreateModel."""
        name = parameters["ModelName"]
        with LOCK:
            self._refuse_duplicate(MODEL, self._models, name)
            self._models[name] = Model(self.account_id, self.region_name, parameters)
            return self._models[name]

    def create_model(
        self,
        model_name: str,
        execution_role_arn: str,
        primary_container: dict[str, Any] | None,
        vpc_config: dict[str, Any] | None,
        containers: list[dict[str, Any]] | None,
        tags: list[dict[str, str]] | None,
    ) -> Model:
        """A model of a CloudFormation template."""
        return self.register_model(
            {
                "ModelName": model_name,
                "ExecutionRoleArn": execution_role_arn,
                "PrimaryContainer": primary_container,
                "VpcConfig": vpc_config,
                "Containers": containers,
                "Tags": tags,
            }
        )

    def describe_model(self, model_name: str) -> Model:
        """The model, or ValidationException."""
        return self._find(MODEL, self._models, model_name)

    def delete_model(self, model_name: str) -> None:
        """DeleteModel."""
        with LOCK:
            self.describe_model(model_name)
            for endpoint in self._staying_endpoints():
                if any(model_name in config.model_names for config in endpoint.configs):
                    raise words.in_use(MODEL, self._arn(MODEL, model_name), endpoint.arn)
            del self._models[model_name]

    def register_endpoint_config(self, parameters: Mapping[str, Any]) -> EndpointConfig:
        """CreateEndpointConfig."""
        name = parameters["EndpointConfigName"]
        with LOCK:
            self._refuse_duplicate(CONFIG, self.endpoint_configs, name)
            config = EndpointConfig(self.account_id, self.region_name, parameters)
            for model_name in sorted(config.model_names):
                self.describe_model(model_name)
            self.endpoint_configs[name] = config
            return config

    def create_endpoint_config(
        self,
        endpoint_config_name: str,
        production_variants: list[dict[str, Any]],
        data_capture_config: dict[str, Any],
        async_inference_config: dict[str, Any],
        tags: list[dict[str, str]],
        kms_key_id: str,
    ) -> EndpointConfig:
        """An endpoint configuration of a CloudFormation template."""
        return self.register_endpoint_config(
            {
                "EndpointConfigName": endpoint_config_name,
                "ProductionVariants": production_variants,
                "DataCaptureConfig": data_capture_config,
                "AsyncInferenceConfig": async_inference_config,
                "KmsKeyId": kms_key_id,
                "Tags": tags,
            }
        )

    def describe_endpoint_config(self, endpoint_config_name: str) -> dict[str, Any]:
        """DescribeEndpointConfig's answer, or ValidationException."""
        return self._find(CONFIG, self.endpoint_configs, endpoint_config_name).response_object

    def delete_endpoint_config(self, endpoint_config_name: str) -> None:
        """DeleteEndpointConfig."""
        with LOCK:
            config = self._find(CONFIG, self.endpoint_configs, endpoint_config_name)
            for endpoint in self._staying_endpoints():
                if config in endpoint.configs:
                    raise words.in_use(CONFIG, config.endpoint_config_arn, endpoint.arn)
            del self.endpoint_configs[endpoint_config_name]

    def create_endpoint(
        self,
        endpoint_name: str,
        endpoint_config_name: str,
        tags: list[dict[str, str]],
        deployment_config: dict[str, Any] | None = None,
    ) -> Endpoint:
        """CreateEndpoint: refuses, or begins to start the model."""
        with LOCK:
            self._refuse_duplicate(ENDPOINT, self.endpoints, endpoint_name)
            config = self._find(CONFIG, self.endpoint_configs, endpoint_config_name)
            order = self._order(endpoint_name, config)
            endpoint = Endpoint(self.account_id, self.region_name, endpoint_name, config, tags)
            self.endpoints[endpoint_name] = endpoint
            endpoint.begin_creating(order, deployment_config)
            return endpoint

    def update_endpoint(
        self,
        endpoint_name: str,
        endpoint_config_name: str,
        deployment_config: dict[str, Any] | None = None,
        retain_deployment_config: bool = False,
    ) -> Endpoint:
        """UpdateEndpoint: refuses, or begins to start the other configuration's model."""
        with LOCK:
            endpoint = self._idle_endpoint(endpoint_name)
            if endpoint.endpoint_status == "Failed":
                raise words.failed_endpoint(endpoint.arn)
            config = self._find(CONFIG, self.endpoint_configs, endpoint_config_name)
            order = self._order(endpoint_name, config)
            if retain_deployment_config:
                deployment_config = endpoint.deployment_config
            endpoint.begin_updating(order, config, deployment_config)
            return endpoint

    def begin_deleting(self, endpoint_name: str) -> Endpoint:
        """DeleteEndpoint: refuses, or begins to end the endpoint."""
        with LOCK:
            endpoint = self._idle_endpoint(endpoint_name)
            endpoint.begin_deleting(gone=lambda: self.endpoints.pop(endpoint_name, None))
            return endpoint

    def delete_endpoint(self, endpoint_name: str) -> None:
        """Delete and wait: CloudFormation removes the configuration next."""
        self.begin_deleting(endpoint_name).join()

    def describe_endpoint(self, endpoint_name: str) -> dict[str, Any]:
        """DescribeEndpoint's answer, or ValidationException."""
        with LOCK:
            return self._find(ENDPOINT, self.endpoints, endpoint_name).response_object

    def update_endpoint_weights_and_capacities(
        self, endpoint_name: str, desired_weights_and_capacities: list[dict[str, Any]]
    ) -> str:
        """Only the numbers change: the sandbox runs one engine per endpoint."""
        with LOCK:
            self._idle_endpoint(endpoint_name)
            arn: str = super().update_endpoint_weights_and_capacities(
                endpoint_name, desired_weights_and_capacities
            )
            return arn

    def add_tags(self, arn: str, tags: list[dict[str, str]]) -> list[dict[str, str]]:
        """AddTags: a known key gets the new value."""
        resource = self._get_resource_from_arn(arn)
        new_keys = {tag["Key"] for tag in tags}
        resource.tags = [tag for tag in resource.tags if tag["Key"] not in new_keys] + tags
        return list(resource.tags)

    def reset(self) -> None:
        """moto's reset: no engine outlives the memory of its endpoint."""
        for endpoint in list(self.endpoints.values()):
            endpoint.end()
        super().reset()

    def _get_resource_from_arn(self, arn: str) -> Any:
        resource = super()._get_resource_from_arn(arn)
        if resource is None:
            raise ValidationError(f'Could not find resource "{arn}".')
        return resource

    def _staying_endpoints(self) -> list[Endpoint]:
        """Those that are not on their way out: Terraform removes a configuration while its
        endpoint is still Deleting."""
        return [one for one in self.endpoints.values() if one.endpoint_status != "Deleting"]

    def _idle_endpoint(self, name: str) -> Endpoint:
        endpoint = self._find(ENDPOINT, self.endpoints, name)
        if endpoint.is_busy:
            raise words.busy(endpoint.arn)
        return endpoint

    def _order(self, endpoint_name: str, config: EndpointConfig) -> Order:
        self._check_quota(config)
        variant = config.production_variants[0]
        if "ModelName" not in variant:
            raise ValidationError("The sandbox has no inference components; name a model.")
        model = self.describe_model(variant["ModelName"])
        return order_of(self.region_name, endpoint_name, config.production_variants, model)

    def _check_quota(self, config: EndpointConfig) -> None:
        """Blue and green stand side by side during an update, so both count."""
        used: Counter[str] = Counter()
        for endpoint in self.endpoints.values():
            if endpoint.endpoint_status != "Failed":
                for other in endpoint.configs:
                    used.update(_instances(other))
        for instance_type, wanted in _instances(config).items():
            quota = quotas.value_of(instance_type, self.region_name)
            if used[instance_type] + wanted > quota:
                raise words.over_quota(instance_type, quota, used[instance_type], wanted)

    def _refuse_duplicate(self, kind: str, known: Mapping[str, Any], name: str) -> None:
        if name in known:
            raise words.exists(kind, self._arn(kind, name))

    def _find(self, kind: str, known: Mapping[str, Resource], name: str) -> Resource:
        if name not in known:
            raise words.missing(kind, self._arn(kind, name))
        return known[name]

    def _arn(self, kind: str, name: str) -> str:
        return arn_formatter(_ARN_KINDS[kind], name, self.account_id, self.region_name)


def find_endpoint(region: str, name: str) -> Endpoint | None:
    """An endpoint of the sandbox's account."""
    regions = sagemaker_backends[ACCOUNT]
    return _ours(regions[region]).endpoints.get(name) if region in regions else None


def all_endpoints() -> Iterator[tuple[str, Endpoint]]:
    """Every endpoint, with its region."""
    for _, region, backend in sagemaker_backends.iter_backends():
        for endpoint in list(_ours(backend).endpoints.values()):
            yield region, endpoint


def _ours(backend: object) -> Backend:
    assert isinstance(backend, Backend), "sagemaker.install() comes before the first request"
    return backend


def _instances(config: EndpointConfig) -> Counter[str]:
    """How many instances of each type a configuration takes."""
    return Counter(
        {
            variant["InstanceType"]: int(variant.get("InitialInstanceCount") or 1)
            for variant in config.production_variants
            if "InstanceType" in variant
        }
    )
