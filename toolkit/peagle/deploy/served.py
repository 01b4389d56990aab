"""What an endpoint serves, read from a plan or from the account: for the diff, status and proof.

A deployment that a template or another machine made has no plan here, so its settings are read from
DescribeEndpoint, DescribeEndpointConfig and DescribeModel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.sagemaker import Endpoint
from peagle.catalog.tables import InstanceTable
from peagle.planning.plan import Plan
from peagle.render.requests import PAIR_TAG, requests, with_replaced
from peagle.vllm.environment import Value, engine_part, settings_in

_VERSION_TAG = re.compile(r":(?:server-)?v?(\d+\.\d+\.\d+)\b")
"""vLLM's version in the tag of AWS's images, such as ``vllm:0.28.0-gpu-py312-cu130``."""


@dataclass(frozen=True)
class Served:
    """The settings of one endpoint.

    ``pair`` is empty when unknown. ``k`` is 0 without speculation. ``instance_count`` is the number
    of instances of all variants that run, or that a plan starts; ``settings`` are vLLM's arguments
    without the dashes; ``variables`` the container's other variables; ``weights`` are the S3
    prefixes by folder. ``usd_per_hour`` is the price of all instances, ``None`` when unknown.
    """

    name: str
    region: str
    pair: str
    method: str | None
    k: int
    image: str
    vllm: str | None
    ami: str | None
    instance_type: str
    instance_count: int
    max_model_len: int | None
    settings: Mapping[str, Value | None]
    variables: Mapping[str, str]
    weights: Mapping[str, str]
    startup_timeout_seconds: int | None
    download_timeout_seconds: int | None
    usd_per_hour: float | None

    @property
    def speculates(self) -> bool:
        return self.k > 0


def served_by_plan(plan: Plan, filled: Mapping[str, str] | None = None) -> Served:
    """What ``plan`` serves once it is applied; ``filled`` replaces its placeholders."""
    model, config, _ = (with_replaced(one.parameters, filled or {}) for one in requests(plan))
    return Served(
        name=plan.name,
        region=plan.region,
        pair=plan.pair,
        vllm=plan.runtime.vllm,
        instance_count=plan.instance_count,
        usd_per_hour=plan.price_per_hour_usd,
        **_settings(model, config),
    )


def served_live(aws: Aws, live: Endpoint, instances: InstanceTable | None = None) -> Served:
    """What the endpoint serves now, with the price of ``instances`` for the instances that run.

    Raises CloudError; AccessDenied when a description may not be read.
    """
    config = sagemaker.description(aws, "EndpointConfig", live.config)
    variants = config["ProductionVariants"]
    model = sagemaker.description(aws, "Model", variants[0]["ModelName"])
    tags = sagemaker.tags_of(aws, live.arn)
    read = _settings(model, config)
    found = _VERSION_TAG.search(read["image"])
    return Served(
        name=live.name,
        region=aws.region,
        pair=tags.get(PAIR_TAG, ""),
        vllm=found[1] if found else None,
        instance_count=live.instance_count,
        usd_per_hour=_price(variants, live, instances, aws.region) if instances else None,
        **read,
    )


def _price(
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


def _settings(model: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``Served`` that model and configuration contain."""
    container = model.get("PrimaryContainer") or (model.get("Containers") or [{}])[0]
    variant = config["ProductionVariants"][0]
    environment = container.get("Environment") or {}
    settings = settings_in(environment)
    speculative = _speculative(settings.get("speculative-config"))
    length = settings.get("max-model-len")
    engine = engine_part(environment)
    return {
        "method": speculative.get("method"),
        "k": int(speculative.get("num_speculative_tokens") or 0),
        "image": container.get("Image", ""),
        "ami": variant.get("InferenceAmiVersion"),
        "instance_type": variant.get("InstanceType", ""),
        "max_model_len": length if isinstance(length, int) else None,
        "settings": settings,
        "variables": {key: value for key, value in environment.items() if key not in engine},
        "weights": _weights(container),
        "startup_timeout_seconds": variant.get("ContainerStartupHealthCheckTimeoutInSeconds"),
        "download_timeout_seconds": variant.get("ModelDataDownloadTimeoutInSeconds"),
    }


def _speculative(value: Value | None) -> dict[str, Any]:
    try:
        document = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _weights(container: Mapping[str, Any]) -> dict[str, str]:
    """Folder below ``/opt/ml`` -> S3 prefix."""
    found = {}
    sources = {"model": container.get("ModelDataSource")} | {
        f"additional-model-data-sources/{source['ChannelName']}": source
        for source in container.get("AdditionalModelDataSources") or []
    }
    for folder, source in sources.items():
        if source and "S3DataSource" in source:
            found[folder] = source["S3DataSource"]["S3Uri"]
    return found
