"""How many instances the account's endpoints use: what a quota counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from toolkit.aws.errors import Missing
from toolkit.aws.session import Aws

MOST_ENDPOINTS = 200
"""So many endpoints are looked at to count instances; with more the count is left open."""

_IDLE = frozenset({"Failed", "Deleting"})


def instances_in_use(aws: Aws, instance_type: str, but: str | None = None) -> dict[str, int] | None:
    """How many instances of that type each endpoint (``but`` for one) has or is getting; ``None``
    when there are too many endpoints to look at.

    Raises CloudError when it may not be looked at.
    """
    listed = list(aws.items("sagemaker", "list_endpoints", "Endpoints"))
    if len(listed) > MOST_ENDPOINTS:
        return None
    used: Counter[str] = Counter()
    for entry in listed:
        name = entry["EndpointName"]
        if name != but and entry.get("EndpointStatus") not in _IDLE:
            used[name] = _instances_of(aws, name, instance_type)
    return {name: count for name, count in used.items() if count}


def _instances_of(aws: Aws, endpoint: str, instance_type: str) -> int:
    """Of one endpoint: those that run, or those that are asked for, whichever are more."""
    try:
        found = aws.call("sagemaker", "describe_endpoint", EndpointName=endpoint)
        config = found.get("EndpointConfigName", "")
        types = aws.call("sagemaker", "describe_endpoint_config", EndpointConfigName=config)
    except Missing:
        return 0
    running = {v.get("VariantName"): v for v in found.get("ProductionVariants") or ()}
    return sum(
        _count(variant, running.get(variant.get("VariantName"), {}))
        for variant in types.get("ProductionVariants") or ()
        if variant.get("InstanceType") == instance_type
    )


def _count(variant: dict[str, Any], running: dict[str, Any]) -> int:
    counts = (running.get("CurrentInstanceCount"), running.get("DesiredInstanceCount"))
    known = [int(count) for count in counts if count]
    return max(known, default=int(variant.get("InitialInstanceCount") or 1))
