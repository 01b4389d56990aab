"""What an endpoint serves now, read from the account.

A deployment that a template or another machine made has no plan here, so its settings come from
DescribeEndpoint, DescribeEndpointConfig and DescribeModel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.sagemaker import Endpoint
from peagle.catalog.tables import InstanceTable
from peagle.deploy.served import Served, settings_of
from peagle.render.requests import PAIR_TAG

_VERSION_TAG = re.compile(r":(?:server-)?v?(\d+\.\d+\.\d+)\b")
"""vLLM's version in the tag of AWS's images, such as ``vllm:0.28.0-gpu-py312-cu130``."""


def served_live(
    aws: Aws, live: Endpoint, tags: Mapping[str, str], instances: InstanceTable | None = None
) -> Served:
    """What the endpoint with these tags serves, with the price in ``instances`` of the instances
    that run.

    Raises CloudError; AccessDenied when a description may not be read.
    """
    config = sagemaker.description(aws, "EndpointConfig", live.config)
    variants = config["ProductionVariants"]
    model = sagemaker.description(aws, "Model", variants[0]["ModelName"])
    read = settings_of(model, config)
    found = _VERSION_TAG.search(read["image"])
    return Served(
        name=live.name,
        region=aws.region,
        pair=tags.get(PAIR_TAG, ""),
        vllm=found[1] if found else None,
        instance_count=live.instance_count,
        usd_per_hour=running_price(variants, live, instances, aws.region) if instances else None,
        **read,
    )


def running_price(
    variants: list[dict[str, Any]], live: Endpoint, instances: InstanceTable, region: str
) -> float | None:
    """USD per hour of the running instances of all variants; ``None`` if one price is unknown."""
    known = {
        instance.type: price.usd_per_hour
        for instance in instances.instances
        for price in instance.prices
        if price.region == region
    }
    total = 0.0
    for variant in variants:
        price = known.get(variant.get("InstanceType", ""))
        if price is None:
            return None
        planned = variant.get("InitialInstanceCount", 1)
        total += price * live.running.get(variant["VariantName"], planned)
    return round(total, 4)
