"""How CloudWatch names what a deployment publishes: its log, and the metrics of its requests.

They are the endpoint's variant's, or those of the inference component with the copies of its model.
"""

from __future__ import annotations

from peagle.planning.plan import Plan
from peagle.protocol import log_group
from peagle.render.requests import VARIANT

METRIC_NAMESPACE = "AWS/SageMaker"
"""The namespace of SageMaker's metrics of requests."""

COMPONENT_DIMENSION = "InferenceComponentName"
"""The only dimension of a component's metrics of requests."""


def log_of(plan: Plan) -> str:
    """The log group of the plan's engines."""
    return log_group(plan.name, copies=plan.copies is not None)


def metric_dimensions(endpoint: str, copies: bool, variant: str = VARIANT) -> dict[str, str]:
    """The dimensions of the metrics of requests, of an endpoint with ``copies``, or of one of its
    variants."""
    if copies:
        return {COMPONENT_DIMENSION: endpoint}
    return {"EndpointName": endpoint, "VariantName": variant}
