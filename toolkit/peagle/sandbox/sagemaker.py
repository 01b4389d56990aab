"""SageMaker in the sandbox: what moto keeps without checks, with AWS's checks and real engines.

``install`` puts this backend in moto's place: CloudFormation, tags and lists use it too.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from moto.core.utils import utcnow
from moto.sagemaker import urls
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import FakeEndpointConfig, SageMakerModelBackend, sagemaker_backends
from moto.sagemaker.models import Model as MotoModel
from moto.sagemaker.utils import arn_formatter

from peagle.render.resources import DIMENSION
from peagle.sandbox import account
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.endpoints import (
    LOCK,
    NotFoundError,
    RefusedForNowError,
    SandboxComponent,
    SandboxEndpoint,
    Serving,
    Variants,
    count_instances,
)
from peagle.sandbox.launch import LaunchSpec, launch_spec
from peagle.sandbox.observability import MetricSource
from peagle.sandbox.training import ENDED, TrainingJob, check_job

MODEL, CONFIG, ENDPOINT = "model", "endpoint configuration", "endpoint"
COMPONENT, JOB = "inference component", "training job"

_ARN_KINDS = {
    MODEL: "model", CONFIG: "endpoint-config", ENDPOINT: "endpoint",
    COMPONENT: "inference-component", JOB: "training-job",
}  # fmt: skip

_RETAINED = {
    "DesiredInstanceCount": "InitialInstanceCount",
    "DesiredWeight": "InitialVariantWeight",
}
"""VariantPropertyType -> the key of a variant that it retains."""


class _Registered:
    """What a Create call with these ``parameters`` makes at once."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters, self.tags = parameters, list(parameters.get("Tags") or [])
        self.creation_time = utcnow()

    def is_created(self) -> bool:
        """For CloudFormation."""
        return True


class SandboxModel(_Registered, MotoModel):
    def __init__(self, account_id: str, region_name: str, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.model_name = parameters["ModelName"]
        self.arn = arn_formatter("model", self.model_name, account_id, region_name)

    @property
    def response_object(self) -> dict[str, Any]:
        described = {"EnableNetworkIsolation": False, **_describe(self.parameters)}
        return {**described, "ModelArn": self.arn, "CreationTime": self.creation_time}


class EndpointConfig(_Registered, FakeEndpointConfig):
    def __init__(self, account_id: str, region_name: str, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.endpoint_config_name = parameters["EndpointConfigName"]
        arn = self.arn_formatter(self.endpoint_config_name, account_id, region_name)
        self.arn = self.endpoint_config_arn = arn  # type: ignore[assignment]  # a tuple in moto 5.2
        self.production_variants = [
            {"InitialVariantWeight": 1.0, **variant} for variant in parameters["ProductionVariants"]
        ]

    @property
    def response_object(self) -> dict[str, Any]:
        return {
            **_describe(self.parameters),
            "ProductionVariants": self.production_variants,
            "EndpointConfigArn": self.endpoint_config_arn,
            "CreationTime": self.creation_time,
        }


def _describe(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A Create call's parameters as the Describe call returns them. Without tags, which have their
    own call, and without empty members: Terraform and sagemaker-core treat an empty structure as
    one that was set."""
    empty: tuple[Any, ...] = (None, {}, [])
    kept = ((name, value) for name, value in parameters.items() if value not in empty)
    return {name: value for name, value in kept if name != "Tags"}


Resource = TypeVar("Resource", SandboxModel, EndpointConfig, SandboxEndpoint, SandboxComponent)
Parameters = Mapping[str, Any]


class SageMakerBackend(SageMakerModelBackend):
    """moto's SageMaker with AWS's checks and endpoints that serve."""

    _models: dict[str, SandboxModel]  # type: ignore[assignment]
    endpoint_configs: dict[str, EndpointConfig]  # type: ignore[assignment]
    endpoints: dict[str, SandboxEndpoint]  # type: ignore[assignment]
    training_jobs: dict[str, TrainingJob]  # type: ignore[assignment]
    new_endpoint: Callable[..., SandboxEndpoint] = SandboxEndpoint
    new_component: Callable[..., SandboxComponent] = SandboxComponent

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.components: dict[str, SandboxComponent] = {}

    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return urls

    def register_model(self, parameters: Parameters) -> SandboxModel:
        """CreateModel: checks what the model needs from other services."""
        name = parameters["ModelName"]
        with LOCK:
            self._refuse_duplicate(MODEL, self._models, name)
            self.check_model(parameters)
            self._models[name] = SandboxModel(self.account_id, self.region_name, parameters)
            return self._models[name]

    def check_model(self, parameters: Parameters) -> None:
        """Raise AWS's error for what the model needs and the account does not have."""
        account.check_model(parameters, self.region_name)

    def describe_model(self, model_name: str) -> SandboxModel:
        return self._find(MODEL, self._models, model_name)

    def delete_model(self, model_name: str) -> None:
        """DeleteModel, which AWS allows also while an endpoint serves the model."""
        with LOCK:
            self.describe_model(model_name)
            del self._models[model_name]

    def register_endpoint_config(self, parameters: Parameters) -> EndpointConfig:
        """CreateEndpointConfig: checks that its models exist."""
        name = parameters["EndpointConfigName"]
        with LOCK:
            self._refuse_duplicate(CONFIG, self.endpoint_configs, name)
            for variant in parameters["ProductionVariants"]:
                if variant.get("ModelName"):
                    self.describe_model(variant["ModelName"])
            config = EndpointConfig(self.account_id, self.region_name, parameters)
            self.endpoint_configs[name] = config
            return config

    def describe_endpoint_config(self, endpoint_config_name: str) -> dict[str, Any]:
        return self._find(CONFIG, self.endpoint_configs, endpoint_config_name).response_object

    def delete_endpoint_config(self, endpoint_config_name: str) -> None:
        """DeleteEndpointConfig, which AWS allows also while an endpoint has the configuration."""
        with LOCK:
            self._find(CONFIG, self.endpoint_configs, endpoint_config_name)
            del self.endpoint_configs[endpoint_config_name]

    def register_endpoint(self, parameters: Parameters) -> SandboxEndpoint:
        """CreateEndpoint: checks, then starts the engines in the background."""
        name = parameters["EndpointName"]
        with LOCK:
            self._refuse_duplicate(ENDPOINT, self.endpoints, name)
            config = self._find(CONFIG, self.endpoint_configs, parameters["EndpointConfigName"])
            specs = self._admit(name, config, config.production_variants)
            tags = parameters.get("Tags")
            endpoint = self.new_endpoint(self.account_id, self.region_name, name, config, tags)
            self.endpoints[name] = endpoint
            endpoint.begin_serving(specs, parameters.get("DeploymentConfig"))
            return endpoint

    def update_endpoint(self, parameters: Parameters) -> SandboxEndpoint:
        """UpdateEndpoint: checks, then starts the new engines in the background."""
        with LOCK:
            endpoint = self._find_serving(parameters["EndpointName"])
            config = self._find(CONFIG, self.endpoint_configs, parameters["EndpointConfigName"])
            self._check_scaling_targets(endpoint, config)
            variants = _with_retained(config.production_variants, endpoint.variants, parameters)
            specs = self._admit(endpoint.endpoint_name, config, variants)
            deployment_config = parameters.get("DeploymentConfig")
            endpoint.begin_serving(specs, deployment_config, config, variants)
            return endpoint

    def begin_deleting(self, endpoint_name: str) -> SandboxEndpoint:
        """DeleteEndpoint: checks, then ends the engines in the background."""
        with LOCK:
            endpoint = self._find_idle(ENDPOINT, self.endpoints, endpoint_name)
            if endpoint.components:
                names = ", ".join(sorted(endpoint.components))
                raise RefusedForNowError(
                    f'Cannot delete endpoint "{endpoint.arn}" because it has the inference '
                    f"component(s) {names}."
                )
            endpoint.begin_deleting(lambda: self.endpoints.pop(endpoint_name, None))
            return endpoint

    def describe_endpoint(self, endpoint_name: str) -> dict[str, Any]:
        with LOCK:
            return self._find(ENDPOINT, self.endpoints, endpoint_name).response_object

    def update_endpoint_weights_and_capacities(
        self, endpoint_name: str, desired_weights_and_capacities: list[dict[str, Any]]
    ) -> str:
        """UpdateEndpointWeightsAndCapacities: starts and ends engines in the background."""
        desired = {change["VariantName"]: change for change in desired_weights_and_capacities}
        with LOCK:
            endpoint = self._find_serving(endpoint_name)
            running = {variant["VariantName"]: variant for variant in endpoint.variants}
            if unknown := ", ".join(sorted(desired.keys() - running.keys())):
                raise ValidationError(
                    f'The variant name(s) "{unknown}" is/are not present within endpoint '
                    f'configuration "{endpoint.endpoint_config_name}".'
                )
            more: Counter[str] = Counter()
            for name, change in desired.items():
                before = int(running[name].get("InitialInstanceCount") or 0)
                added = int(change.get("DesiredInstanceCount") or before) - before
                more[running[name].get("InstanceType", "")] += max(0, added)
            self._check_quota(+more)
            endpoint.begin_scaling(desired)
            return endpoint.arn

    def create_component(self, parameters: Parameters) -> SandboxComponent:
        """CreateInferenceComponent: checks, then starts the copies in the background."""
        name = parameters["InferenceComponentName"]
        with LOCK:
            self._refuse_duplicate(COMPONENT, self.components, name)
            endpoint = self._find_host(parameters)
            spec = self._copy_spec(parameters)
            if int(parameters["RuntimeConfig"]["CopyCount"]) < 1:
                raise ValidationError("CopyCount must be at least 1 to create a component.")
            component = self.new_component(self._arn(COMPONENT, name), endpoint, parameters)
            self.components[name] = endpoint.components[name] = component
            component.begin_serving(spec, parameters)
            return component

    def update_component(self, parameters: Parameters) -> SandboxComponent:
        """UpdateInferenceComponent: starts the copies of the new model beside the old ones, or
        another number of copies."""
        keys = ("Specification", "RuntimeConfig")
        with LOCK:
            name = parameters["InferenceComponentName"]
            component = self._find_idle(COMPONENT, self.components, name)
            changes = {key: parameters[key] for key in keys if key in parameters}
            changed = {**component.parameters, **changes}
            self._find_host(changed)
            if "Specification" not in parameters:
                component.begin_scaling(changed)
                return component
            spec, config = self._copy_spec(changed), parameters.get("DeploymentConfig")
            component.begin_serving(spec, changed, config)
            return component

    def begin_deleting_component(self, name: str) -> None:
        """DeleteInferenceComponent: checks, then ends the copies in the background."""
        with LOCK:
            component = self._find_idle(COMPONENT, self.components, name)

            def forget() -> None:
                self.components.pop(name, None)
                component.endpoint.components.pop(name, None)

            component.begin_deleting(forget)

    def find_component(self, name: str) -> SandboxComponent:
        """The component. Raises NotFoundError."""
        return self._find(COMPONENT, self.components, name)

    def register_job(self, parameters: Parameters) -> TrainingJob:
        """CreateTrainingJob: checks, then runs the job in the background."""
        name = parameters["TrainingJobName"]
        with LOCK:
            if name in self.training_jobs:
                message = (
                    "Job name must be unique within an AWS account and region, and a job with this "
                    f"name already exists ({self.training_jobs[name].arn})"
                )
                raise account.AwsError("ResourceInUse", message)
            check_job(parameters, self.region_name)
            job = TrainingJob(self._arn(JOB, name), self.region_name, parameters)
            others = self.training_jobs.values()
            used = Counter(
                other.instance_type for other in others
                if other.status not in ENDED and other.is_spot == job.is_spot
            )  # fmt: skip
            use = f"{'spot ' if job.is_spot else ''}training job usage"
            count = int(parameters["ResourceConfig"].get("InstanceCount", 1))
            self._check_quota(Counter({job.instance_type: count}), used, use)
            self.training_jobs[name] = job
            job.begin()
            return job

    def find_job(self, name: str) -> TrainingJob:
        """The job. Raises ValidationError in AWS's words."""
        if name not in self.training_jobs:
            raise NotFoundError("Requested resource not found.")
        return self.training_jobs[name]

    def stop_job(self, name: str) -> None:
        """StopTrainingJob."""
        job = self.find_job(name)
        if job.status != "InProgress":
            raise ValidationError(
                f"The request was rejected because the training job is in status {job.status}."
            )
        job.stop()

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
        for job in list(self.training_jobs.values()):
            job.end()
        super().reset()

    def _launch_specs(
        self, endpoint_name: str, variants: Variants, component: str = ""
    ) -> list[LaunchSpec]:
        """What to launch for each variant and its model, if the roles allow it."""
        specs, region = [], self.region_name
        for variant in variants:
            model = self.describe_model(variant.get("ModelName", ""))
            if role := model.parameters.get("ExecutionRoleArn"):
                account.check_role(role, region)
            primary = model.parameters.get("PrimaryContainer")
            containers = [primary] if primary else model.parameters.get("Containers") or []
            spec = launch_spec(region, endpoint_name, variant, containers, model.tags, component)
            specs.append(spec)
        return specs

    def _copy_spec(self, parameters: Parameters) -> LaunchSpec:
        """The engine of one copy; only components with a model are known here."""
        specification = parameters.get("Specification") or {}
        if "ModelName" not in specification:
            raise ValidationError("The sandbox starts inference components with a ModelName only.")
        variant = {
            "VariantName": parameters["VariantName"],
            "ModelName": specification["ModelName"],
            **(specification.get("StartupParameters") or {}),
        }
        name = parameters["InferenceComponentName"]
        return self._launch_specs(parameters["EndpointName"], [variant], name)[0]

    def _admit(
        self, endpoint_name: str, config: EndpointConfig, variants: Variants
    ) -> list[LaunchSpec]:
        """What to launch for the configuration's variants, if quota, models and roles allow it."""
        self._check_quota(count_instances(variants))
        if all("ModelName" not in variant for variant in variants):
            return []  # inference components bring the models
        capture = config.parameters.get("DataCaptureConfig")
        specs = self._launch_specs(endpoint_name, variants)
        return [replace(spec, capture=capture) for spec in specs]

    def _get_resource_from_arn(self, arn: str) -> Any:
        if ":inference-component/" in arn:
            return self.find_component(arn.rpartition("/")[2])
        resource = super()._get_resource_from_arn(arn)
        if resource is None:
            raise NotFoundError(f'Could not find resource "{arn}".')
        return resource

    def _find_host(self, parameters: Parameters) -> SandboxEndpoint:
        """The endpoint in service that hosts components."""
        endpoint = self._find(ENDPOINT, self.endpoints, parameters["EndpointName"])
        if endpoint.endpoint_status != "InService":
            raise ValidationError(f'Endpoint "{endpoint.arn}" is not in service.')
        if not endpoint.hosts_components:
            raise ValidationError(
                f'Inference components are not supported for the endpoint "{endpoint.arn}", whose '
                "variants have models."
            )
        return endpoint

    def _find_serving(self, name: str) -> SandboxEndpoint:
        endpoint = self._find_idle(ENDPOINT, self.endpoints, name)
        if endpoint.current is None or endpoint.endpoint_status == "Failed":
            # Only DeleteEndpoint is possible (API_EndpointSummary); the wording is ours.
            raise ValidationError(f'Cannot update failed endpoint "{endpoint.arn}"; delete it.')
        return endpoint

    def _find_idle(self, kind: str, existing: Mapping[str, Resource], name: str) -> Resource:
        resource = self._find(kind, existing, name)
        if isinstance(resource, Serving) and resource.is_busy:
            raise RefusedForNowError(f'Cannot update in-progress {kind} "{resource.arn}".')
        return resource

    def _check_scaling_targets(self, endpoint: SandboxEndpoint, config: EndpointConfig) -> None:
        """AWS rejects a request to change the type of a variant that is scaled automatically."""
        loaded = sys.modules.get("moto.applicationautoscaling.models")
        if loaded is None:  # importing it takes 2 s; there are no targets yet
            return
        targets = loaded.applicationautoscaling_backends[self.account_id][self.region_name].targets
        types = {
            variant["VariantName"]: variant.get("InstanceType")
            for variant in config.production_variants
        }
        for variant in endpoint.variants:
            name = variant["VariantName"]
            is_scaled = f"endpoint/{endpoint.endpoint_name}/variant/{name}" in targets.get(
                DIMENSION, {}
            )
            if is_scaled and types.get(name) != variant.get("InstanceType"):
                raise ValidationError(
                    f'The variant(s) "[{name}]" must be deregistered as scalable targets with AWS '
                    "Auto Scaling before they can be removed or have their instance type updated."
                )

    def _check_quota(
        self, more: Counter[str], used: Counter[str] | None = None, use: str = "endpoint usage"
    ) -> None:
        """Blue and green exist at the same time during an update, so both count. A quota of the
        sandbox is of each ``use``."""
        if used is None:
            counts = (endpoint.instances for endpoint in self.endpoints.values())
            used = sum(counts, start=Counter[str]())
        for instance_type, requested in more.items():
            quota = account.quota_value(instance_type, self.region_name)
            if used[instance_type] + requested > quota:
                raise account.AwsError(
                    "ResourceLimitExceeded",
                    f"The account-level service limit '{instance_type} for {use}' is "
                    f"{quota:.0f} Instances, with current utilization of {used[instance_type]} "
                    f"Instances and a request delta of {requested} Instances. Please use AWS "
                    "Service Quotas to request an increase for this quota. If AWS Service Quotas "
                    "is not available, contact AWS support to request an increase for this quota.",
                )

    def _refuse_duplicate(self, kind: str, existing: Mapping[str, Any], name: str) -> None:
        if name in existing:
            arn = self._arn(kind, name)
            raise ValidationError(f'Cannot create already existing {kind} "{arn}".')

    def _find(self, kind: str, existing: Mapping[str, Resource], name: str) -> Resource:
        if name not in existing:
            raise NotFoundError(f'Could not find {kind} "{self._arn(kind, name)}".')
        return existing[name]

    def _arn(self, kind: str, name: str) -> str:
        return arn_formatter(_ARN_KINDS[kind], name, self.account_id, self.region_name)


def _with_retained(
    variants: Variants, running: Variants, parameters: Parameters
) -> list[dict[str, Any]]:
    """``variants`` of a new configuration; with RetainAllVariantProperties, those that already run
    keep their numbers and weights, unless a property is excluded."""
    if not parameters.get("RetainAllVariantProperties"):
        return [dict(variant) for variant in variants]
    exclusions = parameters.get("ExcludeRetainedVariantProperties") or ()
    excluded = {_RETAINED.get(exclusion["VariantPropertyType"]) for exclusion in exclusions}
    keys = [key for key in _RETAINED.values() if key not in excluded]
    by_name = {variant["VariantName"]: variant for variant in running}
    kept = []
    for variant in variants:
        before = by_name.get(variant["VariantName"], {})
        kept.append(variant | {key: before[key] for key in keys if before.get(key) is not None})
    return kept


def _update_copies(backend: SageMakerBackend, parameters: Parameters) -> dict[str, str]:
    """UpdateInferenceComponentRuntimeConfig: another number of copies."""
    name = {"InferenceComponentName": parameters["InferenceComponentName"]}
    changes = {**name, "RuntimeConfig": parameters["DesiredRuntimeConfig"]}
    return backend.update_component(changes).response_create


def _list_components(backend: SageMakerBackend, parameters: Parameters) -> dict[str, Any]:
    """ListInferenceComponents, of one endpoint or of all; in one answer."""
    endpoint = parameters.get("EndpointNameEquals")
    summaries = [component.summary for component in backend.components.values()]
    listed = [summary for summary in summaries if endpoint in (None, summary["EndpointName"])]
    return {"InferenceComponents": listed}


def _list_jobs(backend: SageMakerBackend, parameters: Parameters) -> dict[str, Any]:
    """ListTrainingJobs, the newest first; in one answer."""
    part, status = parameters.get("NameContains", ""), parameters.get("StatusEquals")
    summaries = [job.summary for job in reversed(backend.training_jobs.values())]
    listed = [
        summary for summary in summaries
        if part in summary["TrainingJobName"] and status in (None, summary["TrainingJobStatus"])
    ]  # fmt: skip
    return {"TrainingJobSummaries": listed}


def _delete(begin: Callable[[SageMakerBackend, str], object], key: str) -> _Handler:
    """A call that ends something, which is answered before that has ended."""

    def delete(backend: SageMakerBackend, parameters: Parameters) -> dict[str, Any]:
        begin(backend, parameters[key])
        return {}

    return delete


_Handler = Callable[[SageMakerBackend, Parameters], dict[str, Any]]
_Backend, _COMPONENT_NAME = SageMakerBackend, "InferenceComponentName"
_JOB_NAME = "TrainingJobName"
HANDLERS: dict[str, _Handler] = {
    "CreateModel": lambda backend, p: backend.register_model(p).response_create,
    "CreateEndpointConfig": lambda backend, p: backend.register_endpoint_config(p).response_create,
    "CreateEndpoint": lambda backend, p: backend.register_endpoint(p).response_create,
    "UpdateEndpoint": lambda backend, p: backend.update_endpoint(p).response_create,
    "DeleteEndpoint": _delete(_Backend.begin_deleting, "EndpointName"),
    "CreateInferenceComponent": lambda backend, p: backend.create_component(p).response_create,
    "UpdateInferenceComponent": lambda backend, p: backend.update_component(p).response_create,
    "UpdateInferenceComponentRuntimeConfig": _update_copies,
    "DescribeInferenceComponent": lambda backend, p: (
        backend.find_component(p[_COMPONENT_NAME]).response_object
    ),
    "ListInferenceComponents": _list_components,
    "DeleteInferenceComponent": _delete(_Backend.begin_deleting_component, _COMPONENT_NAME),
    "CreateTrainingJob": lambda backend, p: {"TrainingJobArn": backend.register_job(p).arn},
    "DescribeTrainingJob": lambda backend, p: backend.find_job(p[_JOB_NAME]).response_object,
    "StopTrainingJob": _delete(_Backend.stop_job, _JOB_NAME),
    "ListTrainingJobs": _list_jobs,
}


def _operation(handler: _Handler) -> account.Operation:
    return lambda region, parameters: handler(find_backend(region), parameters)


OPERATIONS: dict[str, account.Operation] = {
    f"SageMaker.{name}": _operation(handler) for name, handler in HANDLERS.items()
}
"""X-Amz-Target -> the operation, of those that differ from moto's, which has none of inference
components and no UpdateEndpoint, and whose training jobs end at once."""


def install() -> None:
    """Let this process's moto use this backend. Call it before the first request."""
    sagemaker_backends.backend = SageMakerBackend


def find_backend(region: str) -> SageMakerBackend:
    backend = sagemaker_backends[ACCOUNT][region]
    assert isinstance(backend, SageMakerBackend), "install() precedes the first request"
    return backend


def find_endpoint(region: str, name: str) -> SandboxEndpoint | None:
    is_region = region in sagemaker_backends[ACCOUNT]
    return find_backend(region).endpoints.get(name) if is_region else None


def all_endpoints() -> Iterator[SandboxEndpoint]:
    for _, region, _ in sagemaker_backends.iter_backends():
        yield from list(find_backend(region).endpoints.values())


def all_jobs() -> Iterator[TrainingJob]:
    for _, region, _ in sagemaker_backends.iter_backends():
        yield from list(find_backend(region).training_jobs.values())


def requests_in_progress() -> Iterator[tuple[MetricSource, int]]:
    """Every instance and every copy that serves, with its requests in progress."""
    for endpoint in all_endpoints():
        serving: list[Serving] = [endpoint, *endpoint.components.values()]
        for fleet in [resource.current for resource in serving]:
            for instance in fleet.instances if fleet else ():
                name, spec = endpoint.endpoint_name, instance.spec
                yield (
                    MetricSource(endpoint.region, name, spec.variant, spec.component),
                    (instance.in_progress),
                )
