"""Limits that AWS's documentation states and its service models do not.

Each check is a function of the parameters and the region; the page in brackets documents it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from peagle.checks.facts import parse_ecr_image
from peagle.request_validation.model import Invalid
from peagle.s3uri import BUCKET_NAME, S3Uri
from peagle.vllm.environment import MAX_TOTAL_BYTES
from peagle_serve.contract import S3_SCHEME

Parameters = Mapping[str, Any]
ParameterCheck = Callable[[Parameters, str], Iterator[Invalid]]

_DRIVERS = {
    "NVIDIA": (re.compile(r"-gpu-\d"), re.compile(r"ml\.(?:g|p)\d")),
    "Neuron": (re.compile(r"neuron"), re.compile(r"ml\.(?:inf|trn)\d")),
}
"""Drivers -> the AMIs that hold them, and the instance types that can use them."""

_MAX_TAGS = 50
_MIN_ROLLING_PERCENT = 5
_ROLLING_PERCENT = {"MaximumBatchSize": 50, "RollbackMaximumBatchSize": 100}
"""The largest batch of a rolling update, in percent of the instances."""

_HOUR, _MAX_EVALUATION, _MAX_HOURLY_EVALUATION = 3600, 86_400, 604_800
"""Seconds: an hour, and all periods of an alarm together, with periods below and from an hour."""


def create_model(parameters: Parameters, region: str) -> Iterator[Invalid]:
    """CreateModel (API_CreateModel, API_ContainerDefinition, API_S3ModelDataSource)."""
    several = parameters.get("Containers")
    if bool(parameters.get("PrimaryContainer")) == bool(several):
        message = "exactly one of PrimaryContainer and Containers must be given"
        yield Invalid("", message, "keep one of them")
    containers = {f"Containers[{n}]": _mapping(one) for n, one in enumerate(_sequence(several))}
    if parameters.get("PrimaryContainer"):
        containers["PrimaryContainer"] = _mapping(parameters["PrimaryContainer"])
    for path, container in containers.items():
        yield from _container(path, container, region)
    size = sum(
        len(str(key).encode(errors="replace")) + len(str(value).encode(errors="replace"))
        for container in containers.values()
        for key, value in _mapping(container.get("Environment")).items()
    )
    if size > MAX_TOTAL_BYTES:
        message = (
            f"all keys and values of all containers have {size:,} bytes; allowed: {MAX_TOTAL_BYTES}"
        )
        aws_message = (
            f"Value of {size} bytes at 'environment' failed to satisfy constraint: "
            f"Member must have length less than or equal to {MAX_TOTAL_BYTES}"
        )
        where = "Containers" if several else "PrimaryContainer.Environment"
        yield Invalid(where, message, "remove or shorten engine arguments", aws_message)


def _container(path: str, container: Parameters, region: str) -> Iterator[Invalid]:
    if not (container.get("Image") or container.get("ModelPackageName")):
        yield Invalid(path, "Image or ModelPackageName is required", "give Image")
    if container.get("ModelDataUrl") and container.get("ModelDataSource"):
        message = "ModelDataUrl and ModelDataSource are mutually exclusive"
        yield Invalid(path, message, "keep ModelDataSource")
    image = parse_ecr_image(str(container.get("Image") or ""))
    if image and image.region != region:
        message = f"the image is in {image.region}, the endpoint in {region}"
        yield Invalid(f"{path}.Image", message, f"use the image in {region}")
    sources = f"{path}.AdditionalModelDataSources"
    channels = [_mapping(one) for one in _sequence(container.get("AdditionalModelDataSources"))]
    mounts = {f"{path}.ModelDataSource": _mapping(container.get("ModelDataSource"))}
    mounts |= {f"{sources}[{number}]": channel for number, channel in enumerate(channels)}
    for where, mount in mounts.items():
        yield from _s3_source(f"{where}.S3DataSource", _mapping(mount.get("S3DataSource")))
    yield from _duplicates(sources, "ChannelName", channels)
    for number, channel in enumerate(channels):
        if channel.get("ChannelName") in (".", ".."):
            where = f"{sources}[{number}].ChannelName"
            message = f"{channel['ChannelName']!r} names no folder below /opt/ml"
            yield Invalid(where, message, "use letters and digits")


def _s3_source(path: str, source: Parameters) -> Iterator[Invalid]:
    uri, is_prefix = source.get("S3Uri"), source.get("S3DataType") == "S3Prefix"
    if not isinstance(uri, str):
        return
    if not uri.startswith(S3_SCHEME):
        yield Invalid(f"{path}.S3Uri", f"{uri!r} is not an s3:// URI", "write s3://bucket/prefix/")
    elif "//" in f"/{S3Uri.parse(uri).key}":
        message = f"{uri!r} has an empty part, which matches no object"
        yield Invalid(f"{path}.S3Uri", message, "write single slashes")
    elif is_prefix and not uri.endswith("/"):
        message = f"{uri!r} is a prefix and must end in a slash"
        yield Invalid(f"{path}.S3Uri", message, f"write {uri}/")
    elif source.get("S3DataType") == "S3Object" and uri.endswith("/"):
        message = f"{uri!r} is a prefix, but S3Object needs one object"
        yield Invalid(f"{path}.S3Uri", message, "use S3DataType S3Prefix")
    if is_prefix and source.get("CompressionType") == "Gzip":
        message = "a prefix cannot be compressed"
        yield Invalid(f"{path}.CompressionType", message, "use None, or S3Object for a tar.gz")


def create_endpoint_config(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """CreateEndpointConfig (API_ProductionVariant)."""
    variants = {
        f"{key}[{number}]": _mapping(variant)
        for key in ("ProductionVariants", "ShadowProductionVariants")
        for number, variant in enumerate(_sequence(parameters.get(key)))
    }
    for path, variant in variants.items():
        yield from _variant(path, variant)
        if not variant.get("ModelName") and not parameters.get("ExecutionRoleArn"):
            message = "a variant without ModelName needs ExecutionRoleArn"
            yield Invalid(path, message, "add ModelName or ExecutionRoleArn")
    yield from _duplicates("ProductionVariants", "VariantName", variants.values())


def _variant(path: str, variant: Parameters) -> Iterator[Invalid]:
    kinds = ("InstanceType", "ServerlessConfig", "InstancePools")
    if sum(bool(variant.get(kind)) for kind in kinds) != 1:
        message = f"exactly one of {', '.join(kinds)} must be given"
        yield Invalid(path, message, "give InstanceType")
    # An AMI holds the drivers of one kind of accelerator.
    ami, kind = str(variant.get("InferenceAmiVersion") or ""), str(variant.get("InstanceType", ""))
    drivers = next((name for name, (amis, _) in _DRIVERS.items() if amis.search(ami)), None)
    if drivers and kind and not _DRIVERS[drivers][1].match(kind):
        message = f"{ami} contains {drivers} drivers, which {kind} cannot use"
        yield Invalid(f"{path}.InferenceAmiVersion", message, "omit it")
    routing = _mapping(variant.get("RoutingConfig"))
    if "PrefixAwareRoutingConfig" in routing and routing.get("RoutingStrategy") != "PREFIX_AWARE":
        found = routing.get("RoutingStrategy")
        message = f"requires RoutingStrategy PREFIX_AWARE, found {found}"
        yield Invalid(f"{path}.RoutingConfig.PrefixAwareRoutingConfig", message, "remove it")
    scaling = _mapping(variant.get("ManagedInstanceScaling"))
    where = f"{path}.ManagedInstanceScaling.MinInstanceCount"
    yield from _ordered(where, scaling, "MinInstanceCount", "MaxInstanceCount")


def update_endpoint(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """CreateEndpoint and UpdateEndpoint (API_DeploymentConfig, API_RollingUpdatePolicy)."""
    config = _mapping(parameters.get("DeploymentConfig"))
    if config.get("BlueGreenUpdatePolicy") and config.get("RollingUpdatePolicy"):
        message = "BlueGreenUpdatePolicy and RollingUpdatePolicy are mutually exclusive"
        yield Invalid("DeploymentConfig", message, "keep one of them")
    for key, most in _ROLLING_PERCENT.items():
        batch = _mapping(_mapping(config.get("RollingUpdatePolicy")).get(key))
        value = batch.get("Value")
        if batch.get("Type") != "CAPACITY_PERCENT" or not isinstance(value, int):
            continue
        if not _MIN_ROLLING_PERCENT <= value <= most:
            message = f"is {value} percent; allowed: from {_MIN_ROLLING_PERCENT} to {most}"
            yield Invalid(f"DeploymentConfig.RollingUpdatePolicy.{key}.Value", message, "")


def create_bucket(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """CreateBucket (S3 user guide, bucket naming rules)."""
    name = parameters.get("Bucket")
    if isinstance(name, str) and not S3Uri(name).has_bucket_name:
        message = f"{name!r} cannot be the name of a bucket"
        yield Invalid("Bucket", message, f"use {BUCKET_NAME}; not an IP address")


def put_bucket_tagging(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """PutBucketTagging (S3 API reference)."""
    yield from _tags(_mapping(parameters.get("Tagging")).get("TagSet"), "Tagging.TagSet")


def register_scalable_target(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """RegisterScalableTarget (Application Auto Scaling API reference)."""
    yield from _ordered("MinCapacity", parameters, "MinCapacity", "MaxCapacity")


def put_metric_alarm(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """PutMetricAlarm (CloudWatch API reference: EvaluationPeriods, MetricDataQuery)."""
    queries = [_mapping(one) for one in _sequence(parameters.get("Metrics"))]
    metrics = [_mapping(one.get("MetricStat")) for one in queries]
    periods = [one.get("Period") for one in (parameters, *metrics)]
    longest = max((one for one in periods if isinstance(one, int)), default=0)
    count = parameters.get("EvaluationPeriods")
    limit = _MAX_HOURLY_EVALUATION if longest >= _HOUR else _MAX_EVALUATION
    if isinstance(count, int) and count * longest > limit:
        message = f"{count} periods of {longest} s; allowed: {limit:,} s together"
        yield Invalid("EvaluationPeriods", message, "evaluate fewer or shorter periods")
    returned = sum(one.get("ReturnData", True) is True for one in queries)
    if queries and returned != 1:
        message = f"{returned} of {len(queries)} have ReturnData; allowed: exactly one"
        yield Invalid("Metrics", message, "")


_CHECKS: dict[tuple[str, str], ParameterCheck] = {
    ("sagemaker", "create_model"): create_model,
    ("sagemaker", "create_endpoint_config"): create_endpoint_config,
    ("sagemaker", "create_endpoint"): update_endpoint,
    ("sagemaker", "update_endpoint"): update_endpoint,
    ("s3", "create_bucket"): create_bucket,
    ("s3", "put_bucket_tagging"): put_bucket_tagging,
    ("application-autoscaling", "register_scalable_target"): register_scalable_target,
    ("cloudwatch", "put_metric_alarm"): put_metric_alarm,
}
"""Service and operation -> the check of its documented limits."""


def against_documentation(
    service: str, operation: str, parameters: Parameters, region: str
) -> Iterator[Invalid]:
    """Everything in ``parameters`` that AWS's documentation forbids."""
    check = _CHECKS.get((service, operation))
    if check is not None:
        yield from check(parameters, region)
    yield from _tags(parameters.get("Tags"), "Tags")


def _tags(value: Any, path: str) -> Iterator[Invalid]:
    """Tags of any call that has them (AWS tagging reference)."""
    entries = [_mapping(tag) for tag in _sequence(value)]
    if len(entries) > _MAX_TAGS:
        yield Invalid(path, f"has {len(entries)} entries; allowed: at most {_MAX_TAGS}", "")
    for number, tag in enumerate(entries):
        if str(tag.get("Key", "")).lower().startswith("aws:"):
            message = f"{tag['Key']!r}: names that begin with aws: are AWS's own"
            yield Invalid(f"{path}[{number}].Key", message, "choose another name")
    yield from _duplicates(path, "Key", entries)


def _duplicates(path: str, key: str, entries: Iterable[Parameters]) -> Iterator[Invalid]:
    names = Counter(str(entry[key]) for entry in entries if entry.get(key))
    for name, count in names.items():
        if count > 1:
            yield Invalid(path, f"{count} entries have the {key} {name!r}", "make each unique")


def _ordered(path: str, values: Parameters, low: str, high: str) -> Iterator[Invalid]:
    least, most = values.get(low), values.get(high)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield Invalid(path, f"is {least}, and {high} is {most}", f"make {high} the larger one")


def _mapping(value: Any) -> Parameters:
    """``value``; empty for another type, which the service model reports."""
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()
