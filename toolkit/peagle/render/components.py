"""The copies of a plan as SageMaker's inference component.

The endpoint's configuration has instances and no model; the component places copies of the model on
them. It has the endpoint's name, so that clients need to know only that name.
"""

from __future__ import annotations

from typing import Any

from peagle.planning.company import model_network
from peagle.planning.plan import EXECUTION_ROLE, Plan

CREATE_COMPONENT = "create_inference_component"
"""The operation that creates it."""

_MODELS_OWN = ("ModelName", "InitialVariantWeight")
"""What a variant with a model has, and one for components has not."""

_STARTUP = (
    "ModelDataDownloadTimeoutInSeconds",
    "ContainerStartupHealthCheckTimeoutInSeconds",
)


def config_for_copies(plan: Plan, config: dict[str, Any]) -> dict[str, Any]:
    """CreateEndpointConfig for inference components, from that of the same plan without copies.

    The number of instances stays, or follows the copies within the bounds of scaling.
    """
    (variant,) = config["ProductionVariants"]
    least, most = managed_instances(plan)
    kept = {key: value for key, value in variant.items() if key not in (*_MODELS_OWN, *_STARTUP)}
    kept["ManagedInstanceScaling"] = {
        "Status": "ENABLED",
        "MinInstanceCount": least,
        "MaxInstanceCount": most,
    }
    kept["RoutingConfig"] = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
    return {
        **config,
        **model_network(plan.company),
        "ExecutionRoleArn": EXECUTION_ROLE,
        "ProductionVariants": [kept],
    }


def managed_instances(plan: Plan) -> tuple[int, int]:
    """The fewest and the most instances: one more than planned may start while an update replaces
    copies, which need GPUs before the earlier ones release theirs."""
    scaling, count = plan.scaling, plan.instance_count
    if scaling is None:
        return count, count + 1
    return scaling.min_instances, scaling.max_instances + 1


def component_request(
    plan: Plan, model: str, endpoint: str, variant: dict[str, Any]
) -> dict[str, Any]:
    """CreateInferenceComponent for the plan's copies of ``model`` on the endpoint; ``variant`` is
    the one that the plan would have without copies."""
    copies = plan.copies
    assert copies is not None
    return {
        "InferenceComponentName": endpoint,
        "EndpointName": endpoint,
        "VariantName": variant["VariantName"],
        "Specification": {
            "ModelName": model,
            "StartupParameters": {key: variant[key] for key in _STARTUP if key in variant},
            "ComputeResourceRequirements": {
                "NumberOfAcceleratorDevicesRequired": copies.gpus,
                "NumberOfCpuCoresRequired": copies.cpu_cores,
                "MinMemoryRequiredInMb": copies.memory_mib,
            },
        },
        "RuntimeConfig": {"CopyCount": plan.engines},
    }


def component_path(plan: Plan) -> str:
    """The part of an endpoint's address that names the plan's component; empty without copies."""
    return f"/inference-components/{plan.name}" if plan.copies else ""
