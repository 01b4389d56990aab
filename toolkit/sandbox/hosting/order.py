"""What an endpoint asks to be run. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

from toolkit.rendering.requests import PAIR_TAG

DEFAULT_STARTUP_SECONDS = 600
"""How long a container may take to answer /ping when the request does not say. A choice of ours;
API_ProductionVariant gives the range 60-3600 and no default."""


class ModelLike(Protocol):
    """A model with its containers."""

    @property
    def all_containers(self) -> list[Mapping[str, Any]]: ...

    @property
    def tags(self) -> list[dict[str, str]]: ...


@dataclass(frozen=True)
class ModelData:
    """Weights on S3 and where the container finds them, below ``/opt/ml``.

    ``archive``: the object is a tar.gz that is unpacked there. Otherwise ``uri`` is a prefix, or,
    with ``single``, one object.
    """

    uri: str
    into: PurePosixPath
    archive: bool = False
    single: bool = False


@dataclass(frozen=True)
class Order:
    """An engine to start. ``remarks`` say what of the request the sandbox does not do.

    ``vllm`` is the version in the tag of ``image``, if it names one; ``pair`` is what the model's
    tags say that it serves, as everything that the toolkit renders says it.
    """

    region: str
    endpoint: str
    variant: str
    environment: Mapping[str, str]
    model_data: tuple[ModelData, ...]
    startup_seconds: int
    remarks: tuple[str, ...] = ()
    vllm: str | None = None
    image: str = ""
    pair: str = ""


def order_of(
    region: str, endpoint: str, variants: Sequence[Mapping[str, Any]], model: ModelLike
) -> Order:
    """The order for the first of ``variants``, which serves ``model``."""
    variant, container = variants[0], model.all_containers[0]
    return Order(
        region=region,
        endpoint=endpoint,
        variant=variant["VariantName"],
        environment=dict(container.get("Environment") or {}),
        model_data=tuple(model_data_of(container)),
        startup_seconds=int(
            variant.get("ContainerStartupHealthCheckTimeoutInSeconds") or DEFAULT_STARTUP_SECONDS
        ),
        remarks=tuple(_remarks(variants, model)),
        vllm=_version_of(container.get("Image", "")),
        image=container.get("Image", ""),
        pair=next((tag["Value"] for tag in model.tags if tag["Key"] == PAIR_TAG), ""),
    )


def model_data_of(container: Mapping[str, Any]) -> list[ModelData]:
    """What SageMaker would put below ``/opt/ml`` before it starts the container."""
    root = PurePosixPath("model")
    found: list[ModelData] = []
    if container.get("ModelDataUrl"):
        found.append(ModelData(container["ModelDataUrl"], root, archive=True))
    if container.get("ModelDataSource"):
        found.append(_source(container["ModelDataSource"], root))
    for source in container.get("AdditionalModelDataSources") or []:
        channel = PurePosixPath("additional-model-data-sources", source["ChannelName"])
        found.append(_source(source, channel))
    return found


def _version_of(image: str) -> str | None:
    found = re.search(r":(\d+\.\d+\.\d+)(-|$)", image)
    return found[1] if found else None


def _source(source: Mapping[str, Any], into: PurePosixPath) -> ModelData:
    data = source["S3DataSource"]
    return ModelData(
        uri=data["S3Uri"],
        into=into,
        archive=data["CompressionType"] == "Gzip",
        single=data["S3DataType"] == "S3Object",
    )


def _remarks(variants: Sequence[Mapping[str, Any]], model: ModelLike) -> list[str]:
    remarks = [
        f"variant {other['VariantName']} is not started: the sandbox runs the first one only"
        for other in variants[1:]
    ]
    if int(variants[0].get("InitialInstanceCount") or 1) > 1:
        remarks.append(f"one engine stands for {variants[0]['InitialInstanceCount']} instances")
    if len(model.all_containers) > 1:
        remarks.append("only the first container is started")
    return remarks
