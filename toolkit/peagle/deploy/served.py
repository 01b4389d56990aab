"""What an endpoint serves, in one data class: for the record, the diff, the status and the proof.

A plan and the account's descriptions become the same data, so that they can be compared. This
module does not import boto3; ``live`` reads the account.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peagle.planning.options import Frozen
from peagle.planning.plan import Plan
from peagle.render.requests import requests, with_replaced
from peagle.text import json_object
from peagle.vllm.defaults import inferred_method
from peagle.vllm.environment import Value, engine_part, settings_in
from peagle_serve.contract import is_s3_uri

MAX_TIMEOUT_SECONDS = 3600
"""SageMaker's maximum of both timeouts; counts where a timeout is not set."""


class Served(Frozen):
    """The settings of one endpoint.

    ``pair`` is empty when unknown. ``k`` is 0 without speculation. ``instance_count`` is the number
    of instances of all variants that run, or that a plan starts; ``configured_count`` is set where
    the configuration in the account starts another number. ``copies`` are the engines on all
    instances together, ``None`` without an inference component. ``settings`` are vLLM's arguments
    without the dashes, ``variables`` the container's other variables, ``weights`` the S3 prefixes
    by folder below ``/opt/ml``. ``usd_per_hour`` is the price of all instances, ``None`` when
    unknown.
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
    copies: int | None = None
    configured_count: int | None = None
    max_model_len: int | None
    settings: dict[str, Value | None]
    variables: dict[str, str]
    weights: dict[str, str]
    startup_timeout_seconds: int | None
    download_timeout_seconds: int | None
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    network_isolation: bool = False
    kms_key: str | None = None
    usd_per_hour: float | None
    price_date: str | None = None

    @property
    def engines(self) -> int:
        """How many engines serve: the copies, or one on each instance."""
        return self.instance_count if self.copies is None else self.copies

    @property
    def per_instance(self) -> int:
        """How many copies fit on an instance; 1 where that is unknown."""
        instances = self.configured_count or self.instance_count
        return max(1, (self.copies or 1) // max(1, instances))

    @property
    def speculative_config(self) -> dict[str, Any]:
        """vLLM's ``--speculative-config``; empty without one."""
        return json_object(self.settings.get("speculative-config"))

    def with_instances(self, count: int) -> Served:
        """The same settings on ``count`` instances, and their price."""
        if count == self.instance_count:
            return self
        price = self.usd_per_hour
        if price is not None and self.instance_count:
            price = round(price / self.instance_count * count, 4)
        return self.model_copy(update={"instance_count": count, "usd_per_hour": price})


def served_by_plan(plan: Plan, filled: Mapping[str, str] | None = None) -> Served:
    """What ``plan`` serves once it is applied; ``filled`` replaces its placeholders."""
    model, config, _, *component = (
        with_replaced(one.parameters, filled or {}) for one in requests(plan)
    )
    return served_by_requests(plan, model, config, *component)


def served_by_requests(
    plan: Plan,
    model: Mapping[str, Any],
    config: Mapping[str, Any],
    component: Mapping[str, Any] | None = None,
) -> Served:
    """What ``plan`` serves with its complete CreateModel, CreateEndpointConfig, and for copies
    CreateInferenceComponent."""
    startup = component["Specification"]["StartupParameters"] if component else {}
    return Served(
        name=plan.name,
        region=plan.region,
        pair=plan.pair,
        vllm=plan.runtime.vllm,
        instance_count=plan.instance_count,
        copies=plan.engines if plan.copies else None,
        usd_per_hour=plan.price_per_hour_usd,
        price_date=plan.price_date,
        **settings_of(model, config, startup),
    )


def settings_of(
    model: Mapping[str, Any], config: Mapping[str, Any], startup: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of ``Served`` that CreateModel and CreateEndpointConfig contain, or their
    descriptions; ``startup`` are an inference component's StartupParameters."""
    container = model.get("PrimaryContainer") or (model.get("Containers") or [{}])[0]
    variant = {**config["ProductionVariants"][0], **(startup or {})}
    environment = container.get("Environment") or {}
    settings = settings_in(environment)
    speculative = json_object(settings.get("speculative-config"))
    k, drafter = speculative.get("num_speculative_tokens"), speculative.get("model")
    method = speculative.get("method") or (inferred_method(str(drafter)) if drafter else None)
    length = settings.get("max-model-len")
    engine = engine_part(environment)
    vpc = model.get("VpcConfig") or {}
    return {
        "method": method if isinstance(method, str) else None,
        "k": k if type(k) is int and k >= 0 else 0,
        "image": container.get("Image", ""),
        "ami": variant.get("InferenceAmiVersion"),
        "instance_type": variant.get("InstanceType", ""),
        "max_model_len": length if type(length) is int else None,
        "settings": settings,
        "variables": {key: value for key, value in environment.items() if key not in engine},
        "weights": _weights(container),
        "startup_timeout_seconds": variant.get("ContainerStartupHealthCheckTimeoutInSeconds"),
        "download_timeout_seconds": variant.get("ModelDataDownloadTimeoutInSeconds"),
        "subnets": tuple(sorted(vpc.get("Subnets") or ())),
        "security_groups": tuple(sorted(vpc.get("SecurityGroupIds") or ())),
        "network_isolation": bool(model.get("EnableNetworkIsolation")),
        "kms_key": config.get("KmsKeyId"),
    }


def _weights(container: Mapping[str, Any]) -> dict[str, str]:
    sources = {"model": container.get("ModelDataSource")} | {
        f"additional-model-data-sources/{source['ChannelName']}": source
        for source in container.get("AdditionalModelDataSources") or []
    }
    return {
        folder: source["S3DataSource"]["S3Uri"]
        for folder, source in sources.items()
        if source and "S3DataSource" in source
    }


def weight_prefixes(served: Served) -> Iterator[str]:
    """The S3 prefixes that are mounted or streamed, each ending with a slash."""
    streamed = (served.settings.get("model"), served.speculative_config.get("model"))
    for place in (*served.weights.values(), *streamed):
        if isinstance(place, str) and is_s3_uri(place):
            yield f"{place.rstrip('/')}/"


def start_seconds(served: Served) -> int:
    """How long SageMaker waits for the download of mounted weights and the start-up together, in
    seconds."""
    timeouts = [served.startup_timeout_seconds]
    if served.weights:
        timeouts.append(served.download_timeout_seconds)
    return sum(MAX_TIMEOUT_SECONDS if one is None else one for one in timeouts)
