"""SageMaker's models, and endpoint configurations with their variants, in the sandbox.

moto keeps only a part of each; its classes are the base because CloudFormation, ListTags and the
tagging service inside moto use their attributes. Both are described as they were created. ``LOCK``
guards every check that precedes a change, also of endpoints (``endpoint``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import FakeEndpointConfig
from moto.sagemaker.models import Model as MotoModel

LOCK = threading.RLock()

Variants = Sequence[dict[str, Any]]
"""Variants as a configuration has them."""

_RETAINED = {
    "DesiredInstanceCount": "InitialInstanceCount",
    "DesiredWeight": "InitialVariantWeight",
}
"""VariantPropertyType -> the key of a variant that it retains."""


class NotFoundError(ValidationError):
    """The resource does not exist."""


class RefusedForNowError(ValidationError):
    """The resource is being changed, or others depend on it: a later request may succeed."""


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


def managed_scaling(variant: Mapping[str, Any]) -> dict[str, Any]:
    """How the number of instances is managed, if the configuration says so."""
    scaling = variant.get("ManagedInstanceScaling")
    return {"ManagedInstanceScaling": scaling} if scaling else {}


def instances_of(variants: Variants) -> Counter[str]:
    """The number of instances of each type that ``variants`` ask for."""
    found: Counter[str] = Counter()
    for variant in variants:
        if "InstanceType" in variant:
            found[variant["InstanceType"]] += int(variant.get("InitialInstanceCount") or 1)
    return found


def find_variant(variants: Variants, name: str) -> dict[str, Any]:
    """The variant of that name; empty without one."""
    return next((one for one in variants if one["VariantName"] == name), {})


def weights_of(running: Variants) -> dict[str, float]:
    """Variant -> its share of the requests."""
    return {one["VariantName"]: float(one.get("CurrentWeight") or 0.0) for one in running}


def with_running_numbers(configured: Variants, running: Variants) -> list[dict[str, Any]]:
    """``configured`` with the instances and weights that the running variants have."""
    desired = {one["VariantName"]: one for one in running}
    return [
        {
            **variant,
            "InitialInstanceCount": desired[variant["VariantName"]].get("DesiredInstanceCount"),
            "InitialVariantWeight": desired[variant["VariantName"]].get("DesiredWeight"),
        }
        for variant in configured
    ]


def set_desired(running: Variants, desired: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Write the weights and numbers of instances of ``desired`` into the running variants, as
    UpdateEndpointWeightsAndCapacities names them; return the new numbers by variant."""
    counts = {}
    for variant in running:
        change = desired.get(variant["VariantName"], {})
        if change.get("DesiredWeight") is not None:
            variant["DesiredWeight"] = variant["CurrentWeight"] = change["DesiredWeight"]
        if change.get("DesiredInstanceCount") is not None:
            variant["DesiredInstanceCount"] = change["DesiredInstanceCount"]
            counts[variant["VariantName"]] = int(change["DesiredInstanceCount"])
    return counts


def with_retained(
    variants: Variants, running: Variants, parameters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """``variants`` of a new configuration; with RetainAllVariantProperties, those that already run
    keep their numbers and weights, unless a property is excluded."""
    if not parameters.get("RetainAllVariantProperties"):
        return [dict(variant) for variant in variants]
    excluded = {
        one["VariantPropertyType"]
        for one in parameters.get("ExcludeRetainedVariantProperties") or ()
    }
    kept = [name for property_type, name in _RETAINED.items() if property_type not in excluded]
    by_name = {variant["VariantName"]: variant for variant in running}
    return [
        {
            **variant,
            **{
                name: by_name[variant["VariantName"]][name]
                for name in kept
                if by_name.get(variant["VariantName"], {}).get(name) is not None
            },
        }
        for variant in variants
    ]
