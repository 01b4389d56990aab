"""The plan as three calls of the SageMaker API, in the order in which they are made.

The role and the bucket are known only when the plan is applied; the placeholders
``${ExecutionRoleArn}`` and ``${ModelBucket}`` stand for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from toolkit.planning.models import EXECUTION_ROLE, Mount, Plan
from toolkit.planning.names import MAX_NAME_LENGTH
from toolkit.rendering.models import Request

VARIANT = "AllTraffic"
"""The only production variant."""

PAIR_TAG = "peagle:pair"
_SERVICE = "sagemaker"
_HASH_DIGITS = 8


def requests(plan: Plan) -> tuple[Request, ...]:
    """CreateModel, CreateEndpointConfig and CreateEndpoint.

    Model and configuration carry a hash of everything they ask for: the same plan gives the same
    names, and a changed one new resources, which is how an endpoint is updated.
    """
    nameless = _requests(plan, "", [])
    canonical = json.dumps([r.parameters for r in nameless], sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_DIGITS]
    stem = plan.name[: MAX_NAME_LENGTH - _HASH_DIGITS - 1].rstrip("-")
    tags = [
        {"Key": "peagle:deployment", "Value": plan.name},
        {"Key": PAIR_TAG, "Value": tag_value(plan.pair)},
        {"Key": "peagle:plan", "Value": digest},
    ]
    return _requests(plan, f"{stem}-{digest}", tags)


def tag_value(text: str) -> str:
    """``text`` as SageMaker takes it for a tag: 256 of letters, digits, spaces and ``_.:/=+-@``."""
    allowed = (c if c.isalnum() or c in " _.:/=+-@" else "_" for c in text)
    return "".join(allowed)[:256]


def s3_source(mount: Mount) -> dict[str, Any]:
    """A mount as SageMaker's S3DataSource."""
    return {"S3Uri": mount.s3_uri, "S3DataType": "S3Prefix", "CompressionType": "None"}


def _requests(plan: Plan, name: str, tags: list[dict[str, str]]) -> tuple[Request, ...]:
    model = {
        "ModelName": name,
        "PrimaryContainer": _container(plan),
        "ExecutionRoleArn": EXECUTION_ROLE,
        "Tags": tags,
    }
    config = {
        "EndpointConfigName": name,
        "ProductionVariants": [_variant(plan, name)],
        "Tags": tags,
    }
    endpoint = {
        "EndpointName": plan.name if name else "",
        "EndpointConfigName": name,
        "Tags": tags,
    }
    return (
        Request(_SERVICE, "create_model", model),
        Request(_SERVICE, "create_endpoint_config", config),
        Request(_SERVICE, "create_endpoint", endpoint),
    )


def _container(plan: Plan) -> dict[str, Any]:
    container: dict[str, Any] = {
        "Image": plan.runtime.image,
        "Environment": dict(plan.environment),
    }
    for mount in plan.mounts:
        if mount.channel is None:
            container["ModelDataSource"] = {"S3DataSource": s3_source(mount)}
    additional = [
        {"ChannelName": mount.channel, "S3DataSource": s3_source(mount)}
        for mount in plan.mounts
        if mount.channel is not None
    ]
    return container | ({"AdditionalModelDataSources": additional} if additional else {})


def _variant(plan: Plan, model: str) -> dict[str, Any]:
    return {
        "VariantName": VARIANT,
        "ModelName": model,
        "InitialInstanceCount": plan.instance_count,
        "InstanceType": plan.instance_type,
        "InitialVariantWeight": 1.0,
        "ContainerStartupHealthCheckTimeoutInSeconds": plan.startup_timeout_seconds,
        **dict(_optional(plan)),
    }


def _optional(plan: Plan) -> Iterator[tuple[str, Any]]:
    """What a variant says only when there is something to say."""
    if plan.mounts:
        yield "ModelDataDownloadTimeoutInSeconds", plan.download_timeout_seconds
    if plan.runtime.ami is not None:
        yield "InferenceAmiVersion", plan.runtime.ami
    if plan.instance_count > 1:
        yield "RoutingConfig", {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
