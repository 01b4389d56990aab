"""Limits that AWS's documentation states and its service models do not.

Each rule is a function of the parameters and the region; the page in brackets documents it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from peagle.request_validation.model import Invalid
from peagle.s3uri import SCHEME, S3Uri
from peagle.vllm.environment import MAX_TOTAL_BYTES

Parameters = Mapping[str, Any]
Rule = Callable[[Parameters, str], Iterator[Invalid]]

_BUCKET = re.compile(r"(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9.\-]{1,61})[a-z0-9]")
_ECR = re.compile(r"\d{12}\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9\-]+)\.")
_GPU_AMI = re.compile(r"-gpu-\d")
_GPU_FAMILY = re.compile(r"ml\.(?:g|p)\d")
_NEURON_FAMILY = re.compile(r"ml\.(?:inf|trn)\d")
_MOST_TAGS = 50
_ROLLING_PERCENT = (5, 50)


def create_model(parameters: Parameters, region: str) -> Iterator[Invalid]:
    """CreateModel (API_CreateModel, API_ContainerDefinition, API_S3ModelDataSource)."""
    several = parameters.get("Containers")
    if bool(parameters.get("PrimaryContainer")) == bool(several):
        message = "exactly one of PrimaryContainer and Containers must be given"
        yield Invalid("", message, "keep one of them")
    containers = list(_containers(parameters))
    for path, container in containers:
        yield from _container(path, container, region)
    size = sum(
        len(str(key).encode()) + len(str(value).encode())
        for _, container in containers
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
        yield Invalid("PrimaryContainer.Environment" if not several else "Containers", message,
                      "remove or shorten engine arguments", aws_message)  # fmt: skip


def _containers(parameters: Parameters) -> Iterator[tuple[str, Parameters]]:
    if parameters.get("PrimaryContainer"):
        yield "PrimaryContainer", _mapping(parameters["PrimaryContainer"])
    for number, container in enumerate(_sequence(parameters.get("Containers"))):
        yield f"Containers[{number}]", _mapping(container)


def _container(path: str, container: Parameters, region: str) -> Iterator[Invalid]:
    if not (container.get("Image") or container.get("ModelPackageName")):
        yield Invalid(path, "neither Image nor ModelPackageName is given", "give Image")
    if container.get("ModelDataUrl") and container.get("ModelDataSource"):
        message = "ModelDataUrl and ModelDataSource exclude each other"
        yield Invalid(path, message, "keep ModelDataSource")
    found = _ECR.match(str(container.get("Image") or ""))
    if found and found["region"] != region:
        message = f"the image is in {found['region']}, the endpoint in {region}"
        yield Invalid(f"{path}.Image", message, f"use the image in {region}")
    main = _mapping(_mapping(container.get("ModelDataSource")).get("S3DataSource"))
    yield from _s3_source(f"{path}.ModelDataSource.S3DataSource", main)
    channels = [_mapping(one) for one in _sequence(container.get("AdditionalModelDataSources"))]
    for number, one in enumerate(channels):
        here = f"{path}.AdditionalModelDataSources[{number}].S3DataSource"
        yield from _s3_source(here, _mapping(one.get("S3DataSource")))
    names = [one.get("ChannelName") for one in channels]
    yield from _twice(names, f"{path}.AdditionalModelDataSources", "ChannelName")


def _s3_source(path: str, source: Parameters) -> Iterator[Invalid]:
    uri = source.get("S3Uri")
    if not isinstance(uri, str):
        return
    whole = source.get("S3DataType") == "S3Prefix"
    if not uri.startswith(SCHEME):
        yield Invalid(f"{path}.S3Uri", f"{uri!r} is not an s3:// URI", "write s3://bucket/prefix/")
    elif "//" in f"/{S3Uri.parse(uri).key}":
        message = f"{uri!r} has an empty part, which matches no object"
        yield Invalid(f"{path}.S3Uri", message, "write single slashes")
    elif whole and not uri.endswith("/"):
        message = f"{uri!r} is a prefix and must end in a slash"
        yield Invalid(f"{path}.S3Uri", message, f"write {uri}/")
    elif source.get("S3DataType") == "S3Object" and uri.endswith("/"):
        message = f"{uri!r} is a prefix, and S3Object asks for one object"
        yield Invalid(f"{path}.S3Uri", message, "use S3DataType S3Prefix")
    if whole and source.get("CompressionType") == "Gzip":
        message = "a prefix cannot be compressed"
        yield Invalid(f"{path}.CompressionType", message, "use None, or S3Object for a tar.gz")


def create_endpoint_config(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """CreateEndpointConfig (API_ProductionVariant)."""
    lists = ("ProductionVariants", "ShadowProductionVariants")
    names: list[Any] = []
    for key in lists:
        for number, entry in enumerate(_sequence(parameters.get(key))):
            variant = _mapping(entry)
            names.append(variant.get("VariantName"))
            yield from _variant(f"{key}[{number}]", variant)
            if not variant.get("ModelName") and not parameters.get("ExecutionRoleArn"):
                message = "without ModelName it is for inference components, which need a role"
                yield Invalid(f"{key}[{number}]", message, "give ModelName, or ExecutionRoleArn")
    yield from _twice(names, lists[0], "VariantName")


def _variant(path: str, variant: Parameters) -> Iterator[Invalid]:
    kinds = ("InstanceType", "ServerlessConfig", "InstancePools")
    if sum(bool(variant.get(kind)) for kind in kinds) != 1:
        message = f"exactly one of {', '.join(kinds)} must be given"
        yield Invalid(path, message, "give InstanceType")
    yield from _ami(path, variant)
    routing = _mapping(variant.get("RoutingConfig"))
    if "PrefixAwareRoutingConfig" in routing and routing.get("RoutingStrategy") != "PREFIX_AWARE":
        message = f"it belongs to PREFIX_AWARE, not to {routing.get('RoutingStrategy')}"
        yield Invalid(f"{path}.RoutingConfig.PrefixAwareRoutingConfig", message, "remove it")
    scaling = _mapping(variant.get("ManagedInstanceScaling"))
    yield from _ordered(f"{path}.ManagedInstanceScaling", scaling,
                        "MinInstanceCount", "MaxInstanceCount")  # fmt: skip


def _ami(path: str, variant: Parameters) -> Iterator[Invalid]:
    """An AMI holds the drivers of one kind of accelerator (API_ProductionVariant)."""
    ami, kind = str(variant.get("InferenceAmiVersion") or ""), str(variant.get("InstanceType", ""))
    if not ami or not kind:
        return
    family = _GPU_FAMILY if _GPU_AMI.search(ami) else _NEURON_FAMILY if "neuron" in ami else None
    if family is not None and not family.match(kind):
        has = "NVIDIA" if family is _GPU_FAMILY else "Neuron"
        message = f"{ami} holds {has} drivers, which {kind} cannot use"
        yield Invalid(f"{path}.InferenceAmiVersion", message, "leave it out")


def update_endpoint(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """CreateEndpoint and UpdateEndpoint (API_DeploymentConfig, API_RollingUpdatePolicy)."""
    config = _mapping(parameters.get("DeploymentConfig"))
    if config.get("BlueGreenUpdatePolicy") and config.get("RollingUpdatePolicy"):
        message = "BlueGreenUpdatePolicy and RollingUpdatePolicy exclude each other"
        yield Invalid("DeploymentConfig", message, "keep one of them")
    for key in ("MaximumBatchSize", "RollbackMaximumBatchSize"):
        batch = _mapping(_mapping(config.get("RollingUpdatePolicy")).get(key))
        value, (low, high) = batch.get("Value"), _ROLLING_PERCENT
        top = 100 if key.startswith("Rollback") else high
        percent = batch.get("Type") == "CAPACITY_PERCENT" and isinstance(value, int)
        if percent and not low <= value <= top:  # type: ignore[operator]
            message = f"is {value} percent; allowed: from {low} to {top}"
            yield Invalid(f"DeploymentConfig.RollingUpdatePolicy.{key}.Value", message, "")


def create_bucket(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """CreateBucket (S3 user guide, bucket naming rules)."""
    name = parameters.get("Bucket")
    if isinstance(name, str) and (not _BUCKET.fullmatch(name) or ".." in name):
        message = f"{name!r} cannot be the name of a bucket"
        fix = "3 to 63 lower-case letters, digits, hyphens and dots; not an IP address"
        yield Invalid("Bucket", message, fix)


def put_bucket_tagging(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """PutBucketTagging (S3 API reference)."""
    yield from _tags(_mapping(parameters.get("Tagging")).get("TagSet"), "Tagging.TagSet")


def register_scalable_target(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """RegisterScalableTarget (Application Auto Scaling API reference)."""
    yield from _ordered("", parameters, "MinCapacity", "MaxCapacity")


def tags(parameters: Parameters, _region: str) -> Iterator[Invalid]:
    """Tags of any call that has them (AWS tagging reference)."""
    yield from _tags(parameters.get("Tags"), "Tags")


RULES: dict[tuple[str, str], Rule] = {
    ("sagemaker", "create_model"): create_model,
    ("sagemaker", "create_endpoint_config"): create_endpoint_config,
    ("sagemaker", "create_endpoint"): update_endpoint,
    ("sagemaker", "update_endpoint"): update_endpoint,
    ("s3", "create_bucket"): create_bucket,
    ("s3", "put_bucket_tagging"): put_bucket_tagging,
    ("application-autoscaling", "register_scalable_target"): register_scalable_target,
}
"""Service and operation -> what its documentation asks for."""


def against_documentation(
    service: str, operation: str, parameters: Parameters, region: str
) -> list[Invalid]:
    """Everything in ``parameters`` that AWS's documentation forbids."""
    found = list(tags(parameters, region))
    rule = RULES.get((service, operation))
    return [*(rule(parameters, region) if rule else ()), *found]


def _tags(value: Any, path: str) -> Iterator[Invalid]:
    if not isinstance(value, (list, tuple)):
        return
    if len(value) > _MOST_TAGS:
        yield Invalid(path, f"has {len(value)} entries; allowed: at most {_MOST_TAGS}", "")
    entries = [_mapping(tag) for tag in value]
    for number, tag in enumerate(entries):
        if str(tag.get("Key", "")).lower().startswith("aws:"):
            message = f"{tag['Key']!r}: names that begin with aws: are AWS's own"
            yield Invalid(f"{path}[{number}].Key", message, "choose another name")
    yield from _twice([tag.get("Key") for tag in entries], path, "Key")


def _twice(names: Sequence[Any], path: str, key: str) -> Iterator[Invalid]:
    for name, count in Counter(str(name) for name in names if name).items():
        if count > 1:
            yield Invalid(path, f"{count} entries have the {key} {name!r}", "make each unique")


def _ordered(path: str, values: Parameters, low: str, high: str) -> Iterator[Invalid]:
    least, most = values.get(low), values.get(high)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        where = f"{path}.{low}" if path else low
        yield Invalid(where, f"is {least}, and {high} is {most}", f"make {high} the larger one")


def _mapping(value: Any) -> Parameters:
    """``value``, or nothing where the service model reports its type."""
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()
