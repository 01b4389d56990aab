"""SageMaker's inference components: the copies of a model on an endpoint's instances.

The component of a deployment has its endpoint's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import Missing


@dataclass(frozen=True)
class InferenceComponent:
    """A component as SageMaker describes it. ``copies`` is the number that run, ``specification``
    what CreateInferenceComponent was given; ``changed`` is epoch seconds."""

    name: str
    arn: str
    status: str
    model: str
    copies: int
    desired_copies: int
    failure: str | None
    changed: float
    specification: Mapping[str, Any]


def hosts_components(endpoint: Mapping[str, Any]) -> bool:
    """Whether DescribeEndpoint's answer is of an endpoint for inference components: only these
    manage their instances."""
    variants = endpoint.get("ProductionVariants") or []
    return any(variant.get("ManagedInstanceScaling") for variant in variants)


def describe_component(aws: Aws, name: str) -> InferenceComponent | None:
    """The component, or ``None`` when there is none of that name."""
    try:
        found = aws.call("sagemaker", "describe_inference_component", InferenceComponentName=name)
    except Missing:
        return None
    specification = found.get("Specification") or {}
    runtime = found.get("RuntimeConfig") or {}
    return InferenceComponent(
        name=found["InferenceComponentName"],
        arn=found["InferenceComponentArn"],
        status=found.get("InferenceComponentStatus", ""),
        model=specification.get("ModelName", ""),
        copies=int(runtime.get("CurrentCopyCount") or 0),
        desired_copies=int(runtime.get("DesiredCopyCount") or 0),
        failure=found.get("FailureReason"),
        changed=found["LastModifiedTime"].timestamp(),
        specification=specification,
    )


def create_component(aws: Aws, parameters: Mapping[str, Any]) -> None:
    """CreateInferenceComponent, on an endpoint in service."""
    aws.call("sagemaker", "create_inference_component", **parameters)


def update_component(aws: Aws, parameters: Mapping[str, Any], running: int) -> None:
    """UpdateInferenceComponent to the model and the number of copies in ``parameters``, which are
    those of CreateInferenceComponent, in the way of the DeploymentConfig there. New copies start
    before the earlier ones end, without one at most half of them at a time, and at most half of the
    ``running`` ones; when they fail, SageMaker returns to the earlier ones."""
    keys = ("InferenceComponentName", "Specification", "RuntimeConfig")
    given = {key: parameters[key] for key in keys}
    copies = min(parameters["RuntimeConfig"]["CopyCount"], running)
    if "DeploymentConfig" in parameters:
        given["DeploymentConfig"] = _within_half(parameters["DeploymentConfig"], copies)
    elif copies > 1:
        batch = {"Type": "COPY_COUNT", "Value": copies // 2}
        policy = {"MaximumBatchSize": batch, "WaitIntervalInSeconds": 60}
        given["DeploymentConfig"] = {"RollingUpdatePolicy": policy}
    aws.call("sagemaker", "update_inference_component", **given)


def _within_half(config: Mapping[str, Any], copies: int) -> dict[str, Any]:
    """The DeploymentConfig with batches of at most half of the ``copies``, SageMaker's limit:
    scaling may have chosen fewer than planned."""
    policy = config["RollingUpdatePolicy"]
    batch = policy["MaximumBatchSize"]
    if batch["Type"] != "COPY_COUNT":
        return dict(config)
    size = {**batch, "Value": min(batch["Value"], max(1, copies // 2))}
    return {**config, "RollingUpdatePolicy": {**policy, "MaximumBatchSize": size}}


def set_copy_count(aws: Aws, name: str, copies: int) -> None:
    """Let SageMaker start or end copies until ``copies`` run."""
    aws.call(
        "sagemaker",
        "update_inference_component_runtime_config",
        InferenceComponentName=name,
        DesiredRuntimeConfig={"CopyCount": copies},
    )


def delete_component(aws: Aws, name: str) -> None:
    """Request deletion; ignores what does not exist."""
    with suppress(Missing):
        aws.call("sagemaker", "delete_inference_component", InferenceComponentName=name)
