"""SageMaker's models and endpoint configurations in the sandbox.

moto keeps only a part of each; its classes are the base because CloudFormation, ListTags and the
tagging service inside moto use their attributes. Both are described as they were created. ``LOCK``
guards every check that precedes a change, also of endpoints (``endpoint``).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from moto.sagemaker.models import FakeEndpointConfig
from moto.sagemaker.models import Model as MotoModel

LOCK = threading.RLock()


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
