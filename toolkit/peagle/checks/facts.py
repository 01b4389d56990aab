"""What several rules use: fixes, parts of messages, and the parts of an image's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from peagle.case import Case
from peagle.catalog.schema import Architecture
from peagle.catalog.tables import RuntimeTable
from peagle.checkpoints.heads import Head
from peagle.text import json_object
from peagle_serve.contract import HUB_ID, ML_ROOT, MODEL, PREFIX, SPECULATION, is_s3_uri
from peagle_serve.environment import flag_of
from peagle_serve.heads import AUX_LAYERS, DEFAULT_AUXILIARY, problems

OTHER_HEAD = "use a head trained for this target"
COPY_AGAIN = "copy the head again, or export it again"
COPY_CONFIG = "copy the head again, including config.json"
"""Fixes."""


def layers_key(head: Head, count: int) -> str:
    """The key of the head's config.json that lists ``count`` auxiliary layers, such that vLLM also
    builds ``fc`` for as many (0.28.0, llama_eagle3.py, qwen3_eagle3.py, speculators/algos.py)."""
    if not head.config.speculators_format:
        return f"eagle_config.{AUX_LAYERS}"
    if head.config.model_type == "qwen3" or count == DEFAULT_AUXILIARY:
        return AUX_LAYERS
    return f"transformer_layer_config.eagle_config.{AUX_LAYERS}"


def other_shape(head: Head, name: str, expected: object) -> str:
    """The message that the shape of a tensor is not the one that config.json requires."""
    return f"{name} has shape {list(head.shape(name) or ())}; config.json requires {expected}"


def pair_problem(case: Case, head: Head, code: str) -> Mapping[str, object] | None:
    """The values of a problem that the container finds too, if the case has it."""
    shape = case.architecture
    target = {"num_hidden_layers": shape.layers, "hidden_size": shape.hidden_size,
              "vocab_size": shape.vocab_size}  # fmt: skip
    head_problems = problems(head, target, case.is_parallel)
    return next((problem.values for problem in head_problems if problem.code == code), None)


def option_of(variable: str) -> str:
    """The option that sets a variable of the container: ``--set NAME`` or ``--env NAME``."""
    is_argument = variable.startswith(PREFIX)
    return f"--set {flag_of(variable)[2:]}" if is_argument else f"--env {variable}"


def sibling_pair(case: Case, *, parallel: bool) -> str:
    """The name of this target's pair with a P-EAGLE (``parallel``) or EAGLE-3 drafter."""
    for drafter in case.target.drafters:
        if drafter.method == "eagle3" and drafter.parallel_drafting == parallel:
            return f"{case.target.short_name}+{drafter.name}"
    kind = "a P-EAGLE" if parallel else "an EAGLE-3"
    return f"{case.target.short_name} with {kind} drafter"


_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9\-]+)\.[a-z0-9.\-]+/"
    r"(?P<repository>[^:@\s]+)(?::(?P<tag>[^@\s]+))?(?:@(?P<digest>\S+))?"
)
_TAG = re.compile(r":v?(?P<vllm>\d+\.\d+\.\d+)(?![\d.])(?:\S*?[.\-]cu(?P<cuda>\d{3}))?")


@dataclass(frozen=True)
class EcrImage:
    """An image in ECR; ``tag`` and ``digest`` are ``None`` where the name has none."""

    account: str
    region: str
    repository: str
    tag: str | None
    digest: str | None = None


def is_aws_image(image: str | None, runtimes: RuntimeTable) -> bool:
    """Whether the image is in a registry of AWS's own, so without the toolkit's entrypoint."""
    ecr_image = parse_ecr_image(image)
    return ecr_image is not None and ecr_image.account in runtimes.accounts.values()


def needs_vocabulary(architecture: Architecture) -> bool:
    """Whether the engine reads the target's vocabulary from a file that is not in its checkpoint:
    that of GPT-OSS, which it downloads unless a variable names its folder."""
    return architecture.class_name.startswith("GptOss")


@dataclass(frozen=True)
class Destinations:
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
    streamed = any(map(is_s3_uri, models))
    mounted = any(model.startswith(ML_ROOT) for model in models)
    hosts = ["huggingface.co"] if any(HUB_ID.fullmatch(model) for model in models) else []
    return Destinations(
        s3="S3 (the weights)" if streamed or mounted else "",
        internet="" if isolated else " and ".join(f"{host} (the weights)" for host in hosts),
    )


@dataclass(frozen=True)
class TagVersions:
    """The versions in a tag; ``cuda`` as ``13.0``, ``None`` if absent."""

    vllm: str
    cuda: str | None


def parse_ecr_image(image: str | None) -> EcrImage | None:
    """The parts of the name; ``None`` for no image or one of another registry."""
    match = _ECR.fullmatch(image or "")
    return EcrImage(**match.groupdict()) if match else None


def digest_in(image: str) -> str | None:
    """``sha256:...`` of an image that is named with its digest; else ``None``."""
    name, _, digest = image.partition("@")
    return digest if name and digest.startswith("sha256:") else None


def parse_tag_versions(image: str) -> TagVersions | None:
    """The versions in the tag, or ``None`` unless it begins with a version such as ``0.28.0``."""
    match = _TAG.search(image)
    if match is None:
        return None
    cuda = match["cuda"]
    return TagVersions(match["vllm"], f"{cuda[:2]}.{cuda[2]}" if cuda else None)
