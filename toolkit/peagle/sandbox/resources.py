"""SageMaker's models, endpoint configurations and endpoints in the sandbox.

moto keeps only a part of each; its classes are the base because CloudFormation, ListTags and the
tagging service inside moto use their attributes. Models and configurations are described as they
were created. An endpoint follows its real engines:

    CreateEndpoint   Creating -> InService | Failed
    UpdateEndpoint   Updating -> InService with the new configuration; when its engine fails, with
                     the old one (AWS rolls back) and a FailureReason
    DeleteEndpoint   Deleting -> removed

One thread per change waits for the engines. Its result is stored under ``LOCK``, which also guards
every check that precedes a change.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moto.core.utils import utcnow
from moto.sagemaker.models import FakeEndpoint, FakeEndpointConfig
from moto.sagemaker.models import Model as MotoModel

from peagle.protocol import ENGINE_TAG, STAND_IN_TAG
from peagle.sandbox.fleet import Fleet
from peagle.sandbox.instance import EngineInstance, LaunchFailed
from peagle.sandbox.launch_spec import LaunchSpec, engines_for

LOCK = threading.RLock()

_SERVING = ("InService", "Updating")


class SandboxModel(MotoModel):
    """A model; ``parameters`` are CreateModel's."""

    def __init__(self, account_id: str, region_name: str, parameters: Mapping[str, Any]) -> None:
        super().__init__(
            account_id=account_id,
            region_name=region_name,
            model_name=parameters["ModelName"],
            execution_role_arn=parameters.get("ExecutionRoleArn", ""),
            primary_container=parameters.get("PrimaryContainer", {}),
            vpc_config=parameters.get("VpcConfig", {}),
            containers=parameters.get("Containers"),
            tags=parameters.get("Tags"),
        )
        self.parameters = parameters

    def is_created(self) -> bool:
        """For CloudFormation: immediately."""
        return True

    @property
    def all_containers(self) -> list[Mapping[str, Any]]:
        """The containers in the order of the inference pipeline."""
        primary = self.parameters.get("PrimaryContainer")
        return [primary] if primary else list(self.parameters.get("Containers") or [])

    @property
    def response_object(self) -> dict[str, Any]:
        return {
            "EnableNetworkIsolation": False,
            **_described(self.parameters),
            "ModelArn": self.arn,
            "CreationTime": self.creation_time,
        }


class EndpointConfig(FakeEndpointConfig):
    """An endpoint configuration; ``parameters`` are CreateEndpointConfig's."""

    def __init__(self, account_id: str, region_name: str, parameters: Mapping[str, Any]) -> None:
        variants = [
            {"InitialVariantWeight": 1.0, **variant} for variant in parameters["ProductionVariants"]
        ]
        super().__init__(
            account_id=account_id,
            region_name=region_name,
            endpoint_config_name=parameters["EndpointConfigName"],
            production_variants=variants,
            async_inference_config=parameters.get("AsyncInferenceConfig", {}),
            data_capture_config=parameters.get("DataCaptureConfig", {}),
            tags=parameters.get("Tags", []),
            kms_key_id=parameters.get("KmsKeyId", ""),
        )
        self.arn = self.endpoint_config_arn  # type: ignore[assignment]  # a tuple in moto 5.2
        self.parameters = {**parameters, "ProductionVariants": variants}

    def validate_production_variants(self, production_variants: list[dict[str, Any]]) -> None:
        """No-op: ``operations`` validates requests; moto's list of types dates from 2020."""

    def is_created(self) -> bool:
        """For CloudFormation: immediately."""
        return True

    @property
    def model_names(self) -> set[str]:
        variants = [
            *self.parameters["ProductionVariants"],
            *(self.parameters.get("ShadowProductionVariants") or []),
        ]
        return {variant["ModelName"] for variant in variants if variant.get("ModelName")}

    @property
    def response_object(self) -> dict[str, Any]:
        return {
            **_described(self.parameters),
            "EndpointConfigArn": self.endpoint_config_arn,
            "CreationTime": self.creation_time,
        }


def _described(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A Create call's parameters as the Describe call returns them.

    Without tags, which have their own call, and without empty members: Terraform and
    sagemaker-core treat an empty structure as one that was set.
    """
    return {
        name: value
        for name, value in parameters.items()
        if name != "Tags" and value not in (None, {}, [])
    }


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
        self.current: Fleet | None = None
        self.starting: Fleet | None = None
        self.deployment_config: dict[str, Any] | None = None
        self._changed_since = self.creation_time
        self._thread: threading.Thread | None = None

    @property
    def configs(self) -> tuple[EndpointConfig, ...]:
        """The configurations in use: one, or two during an update."""
        return (self.config, self.next_config) if self.next_config else (self.config,)

    @property
    def is_busy(self) -> bool:
        """Whether AWS would reject another change now."""
        return self.endpoint_status in ("Creating", "Updating", "Deleting")

    def is_created(self) -> bool:
        """For CloudFormation: when it is in service."""
        return self.serving is not None

    @property
    def serving(self) -> Fleet | None:
        """The engines that answer invocations."""
        return self.current if self.endpoint_status in _SERVING else None

    @property
    def weights(self) -> dict[str, float]:
        """Variant -> its share of the requests."""
        return {
            variant["VariantName"]: float(variant.get("CurrentWeight") or 0.0)
            for variant in self.production_variants
        }

    def begin_serving(
        self,
        status: str,
        specs: Sequence[LaunchSpec],
        deployment_config: dict[str, Any] | None,
        next_config: EndpointConfig | None = None,
    ) -> None:
        """Start the engines for ``next_config``; during an update, beside the old ones."""
        self.next_config = next_config
        self.deployment_config = deployment_config
        self.starting = Fleet(specs)
        self._begin(status, functools.partial(self._bring_up, self.starting))

    def begin_scaling(self, counts: Mapping[str, int]) -> None:
        """Start or end engines until each variant has its number, as far as the sandbox goes."""
        fleet = self.current
        assert fleet is not None

        def scale() -> None:
            for variant, count in counts.items():
                try:
                    fleet.resize(variant, engines_for(count), self._tag)
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
        for fleet in (self.starting, self.current):
            if fleet:
                fleet.end()

    @property
    def response_object(self) -> dict[str, Any]:
        """The response of DescribeEndpoint, without empty members."""
        response = {
            "EndpointName": self.endpoint_name,
            "EndpointArn": self.arn,
            "EndpointConfigName": self.endpoint_config_name,
            "ProductionVariants": [
                {**variant, "CurrentInstanceCount": self._running(variant["VariantName"])}
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

    def _running(self, variant: str) -> int:
        return self.current.count(variant) if self.current else 0

    def _pending(self) -> dict[str, Any] | None:
        if self.next_config is None:
            return None
        return {
            "EndpointConfigName": self.next_config.endpoint_config_name,
            "ProductionVariants": self._process_production_variants(
                self.next_config.production_variants
            ),
            "StartTime": self._changed_since,
        }

    def _begin(self, status: str, work: Callable[[], None]) -> None:
        self.endpoint_status = status
        self.failure_reason = None
        self.last_modified_time = self._changed_since = utcnow()
        name = f"{status} {self.endpoint_name}"
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def _bring_up(self, fleet: Fleet) -> None:
        try:
            fleet.start(on_chosen=self._tag)
        except LaunchFailed as failure:
            self._fail(str(failure))
        except Exception:  # a bug here must not leave the endpoint in Creating forever
            traceback.print_exc()
            self._fail("Internal error of the sandbox; see its log (daemon.log).")
        else:
            self._succeed(fleet)

    def _succeed(self, fleet: Fleet) -> None:
        with LOCK:
            old, self.current, self.starting = self.current, fleet, None
            if self.next_config:
                self.config, self.next_config = self.next_config, None
                self.endpoint_config_name = self.config.endpoint_config_name
                self.production_variants = self._process_production_variants(
                    self.config.production_variants
                )
        if old:
            old.drain()
            old.end()
        self._finish("InService")

    def _fail(self, reason: str) -> None:
        with LOCK:
            self.starting = self.next_config = None
            self.failure_reason = reason[:1024]
            self._finish("InService" if self.current else "Failed")

    def _finish(self, status: str) -> None:
        with LOCK:
            self.endpoint_status = status
            self.last_modified_time = utcnow()

    def _tag(self, chosen: EngineInstance) -> None:
        """Record in tags what runs instead of the requested model or engine."""
        engine = f"vllm {chosen.other_engine}" if chosen.other_engine else None
        replaced = {STAND_IN_TAG: chosen.stand_in, ENGINE_TAG: engine}
        with LOCK:
            kept = [tag for tag in self.tags if tag["Key"] not in replaced]
            self.tags = kept + [{"Key": k, "Value": v} for k, v in replaced.items() if v]
