"""What the name of an image says."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9\-]+)\.[a-z0-9.\-]+/"
    r"(?P<repository>[^:@\s]+)(?::(?P<tag>[^@\s]+))?(?:@\S+)?"
)
_TAG = re.compile(r":v?(?P<vllm>\d+\.\d+\.\d+)(?![\d.])(?:\S*?[.\-]cu(?P<cuda>\d{3}))?")


@dataclass(frozen=True)
class InEcr:
    """An image in ECR; ``tag`` is ``None`` where only a digest names it."""

    account: str
    region: str
    repository: str
    tag: str | None


@dataclass(frozen=True)
class InTag:
    """What a tag says of vLLM and CUDA; ``cuda`` as ``13.0``, ``None`` when it does not."""

    vllm: str
    cuda: str | None


def in_ecr(image: str) -> InEcr | None:
    """The parts of the name, or ``None`` for an image of another registry."""
    found = _ECR.fullmatch(image)
    return InEcr(**found.groupdict()) if found else None


def in_tag(image: str) -> InTag | None:
    """What the tag says, or ``None`` when it begins with no version such as ``0.28.0``."""
    found = _TAG.search(image)
    if found is None:
        return None
    cuda = found["cuda"]
    return InTag(found["vllm"], f"{cuda[:2]}.{cuda[2]}" if cuda else None)
