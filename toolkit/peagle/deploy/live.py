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
from peagle.deploy.diff import SettingChange, changes
from peagle.deploy.revisions import revision_in_service
from peagle.deploy.served import Served, settings_of
from peagle.deploy.state import Deployment, Revision
from peagle.render.requests import DEPLOYMENT_TAG, PAIR_TAG

_VERSION_TAG = re.compile(r":(?:server-)?v?(\d+\.\d+\.\d+)\b")
"""vLLM's version in the tag of AWS's images, such as ``vllm:0.28.0-gpu-py312-cu130``."""


def served_live(
    aws: Aws, live: Endpoint, tags: Mapping[str, str], instances: InstanceTable | None = None
) -> Served:
    """What the endpoint with these tags serves, with the price in ``instances`` of the instances
    that run.

    Raises CloudError; AccessDenied when a description may not be read.
    """
    config = sagemaker.description(aws, "EndpointConfig", live.endpoint_config)
    served = live.revision if live.hosts_components else model_in(config)
    model = sagemaker.description(aws, "Model", served)
    return served_by_descriptions(aws.region, model, config, tags, live, instances)


def served_now(served: Served, live: Endpoint) -> Served:
    """``served`` with the instances that run, and their price; as planned while none runs."""
    if not live.instance_count or not served.instance_count:
        return served
    return served.with_instances(live.instance_count)


def changes_of_live(
    record: Deployment, live: Endpoint, revision: Revision
) -> tuple[SettingChange, ...]:
    """What ``revision`` changes of what the endpoint serves now; nothing where that is unknown."""
    now = revision_in_service(record, live.revision)
    if now is None:
        return ()
    found = changes(served_now(now.served, live), revision.served)
    if now.role and now.role != revision.role:
        found += (SettingChange("role", now.role, revision.role),)
    return found


def served_by_descriptions(
    region: str,
    model: Mapping[str, Any],
    config: Mapping[str, Any],
    tags: Mapping[str, str],
    live: Endpoint | None = None,
    instances: InstanceTable | None = None,
) -> Served:
    """What a model and a configuration serve; with the instances that run if ``live`` serves that
    configuration, else with those that the configuration starts."""
    variants = config["ProductionVariants"]
    serves = live is not None and live.endpoint_config == config["EndpointConfigName"]
    component = live.component if live is not None and serves else None
    startup = component.specification.get("StartupParameters") if component else None
    counts = {one["VariantName"]: int(one.get("InitialInstanceCount") or 1) for one in variants}
    configured = sum(counts.values())
    if live is not None and serves:
        counts |= {name: count for name, count in live.running.items() if count}
    read = settings_of(model, config, startup)
    found = _VERSION_TAG.search(read["image"])
    return Served(
        name=tags.get(DEPLOYMENT_TAG, live.name if live else ""),
        region=region,
        pair=tags.get(PAIR_TAG, ""),
        vllm=found[1] if found else None,
        instance_count=sum(counts.values()),
        copies=component.desired_copies if component else None,
        configured_count=None if configured == sum(counts.values()) else configured,
        usd_per_hour=_price(variants, counts, instances, region) if instances else None,
        **read,
    )


def model_in(config: Mapping[str, Any]) -> str:
    """The model of a configuration's first variant; empty for one of inference components."""
    return str(config["ProductionVariants"][0].get("ModelName", ""))


def _price(
    variants: list[dict[str, Any]],
    counts: Mapping[str, int],
    instances: InstanceTable,
    region: str,
) -> float | None:
    """USD per hour of the instances of all variants; ``None`` if one price is unknown."""
    known = {
        instance.type: price.usd_per_hour
        for instance in instances.instances
        for price in instance.prices
        if price.region == region
    }
    prices = [known.get(one.get("InstanceType", "")) for one in variants]
    if None in prices:
        return None
    pairs = zip(prices, variants, strict=True)
    return round(sum((price or 0) * counts[one["VariantName"]] for price, one in pairs), 4)
