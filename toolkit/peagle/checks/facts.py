"""The parts of an image's name, and what a container reaches: facts that are not of one rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from peagle.catalog.schema import Architecture
from peagle.catalog.tables import RuntimeTable
from peagle.text import json_object
from peagle_serve.contract import HUB_ID, ML_ROOT, MODEL, SPECULATION, is_s3_uri

_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9\-]+)\.[a-z0-9.\-]+/"
    r"(?P<repository>[^:@\s]+)(?::(?P<tag>[^@\s]+))?(?:@(?P<digest>\S+))?"
)
_TAG = re.compile(r":v?(\d+\.\d+\.\d+)(?![\d.])")


class EcrImage(NamedTuple):
    """An image in ECR; ``tag`` and ``digest`` are ``None`` where the name has none."""

    account: str
    region: str
    repository: str
    tag: str | None
    digest: str | None = None


def parse_ecr_image(image: str | None) -> EcrImage | None:
    """The parts of the name; ``None`` for no image or one of another registry."""
    match = _ECR.fullmatch(image or "")
    return EcrImage(**match.groupdict()) if match else None


def is_aws_image(image: str | None, runtimes: RuntimeTable) -> bool:
    """Whether the image is in a registry of AWS's own, so without the toolkit's entrypoint."""
    ecr_image = parse_ecr_image(image)
    return ecr_image is not None and ecr_image.account in runtimes.accounts.values()


def digest_in(image: str) -> str | None:
    """``sha256:...`` of an image that is named with its digest; else ``None``."""
    name, _, digest = image.partition("@")
    return digest if name and digest.startswith("sha256:") else None


def parse_tag_version(image: str) -> str | None:
    """The vLLM version with which the tag begins, such as ``0.28.0``; ``None`` without one."""
    match = _TAG.search(image)
    return match[1] if match else None


def needs_vocabulary(architecture: Architecture) -> bool:
    """Whether the engine reads the target's vocabulary from a file that is not in its checkpoint:
    that of GPT-OSS, which it downloads unless a variable names its folder."""
    return architecture.class_name.startswith("GptOss")


class Destinations(NamedTuple):
    """What a container of the user's own VPC reaches from there, in words; empty for nothing.

    ``internet`` are hosts without an endpoint of AWS in the VPC.
    """

    s3: str
    internet: str


def destinations(environment: Mapping[str, str], isolated: bool) -> Destinations:
    """What the container with that environment reaches. SageMaker mounts weights through the VPC
    also for a container that is ``isolated``."""
    drafter = json_object(environment.get(SPECULATION)).get("model")
    models = [str(model) for model in (environment.get(MODEL), drafter) if model]
    in_s3 = any(is_s3_uri(model) or model.startswith(ML_ROOT) for model in models)
    from_hub = not isolated and any(HUB_ID.fullmatch(model) for model in models)
    return Destinations(
        s3="S3 (the weights)" if in_s3 else "",
        internet="huggingface.co (the weights)" if from_hub else "",
    )
