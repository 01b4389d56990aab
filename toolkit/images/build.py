"""From a plan to an image of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolkit.errors import EngineError
from toolkit.images import baking
from toolkit.images.archive import Member, member_of, tar
from toolkit.images.client import Docker
from toolkit.images.show import Image, show
from toolkit.planning.models import Plan
from toolkit.rendering.baking import Copied
from toolkit.rendering.image import LAYER_LIMIT_BYTES, Recipe, content_digest, context_files

Progress = Callable[[str], object]

_DIGITS = 12
_GPU_PLATFORM = {"DOCKER_DEFAULT_PLATFORM": "linux/amd64"}
"""Of AWS's images, and of all GPU instances of SageMaker that the catalogue knows."""


@dataclass(frozen=True)
class Built:
    """A built image, and how long building took, in seconds."""

    image: Image
    seconds: float


def image_name(plan: Plan, recipe: Recipe) -> str:
    """``peagle-tiny:0.28.0-cpu-<digest of what is inside>``: another content, another tag, so that
    a repository whose tags never change can hold every one of them; and plans that differ in
    nothing that is inside share an image."""
    digest = content_digest(plan, recipe)[:_DIGITS]
    return f"{repository_of(plan)}:{plan.runtime.vllm}-{recipe.runtime}-{digest}"


def named_by_content(image: Image) -> bool:
    """Whether the image has such a name: then another one of that name is the same."""
    return bool(image.content) and image.name.endswith(f"-{image.content[:_DIGITS]}")


def repository_of(plan: Plan) -> str:
    """The repository of a target's images: its short name, as a registry takes it."""
    word = "".join(c if c.isascii() and c.isalnum() else "-" for c in plan.target.id.lower())
    stem = word.partition("-")[2] if "/" in plan.target.id else word
    stem = "-".join(part for part in stem.split("-") if part)
    return stem if stem.startswith("peagle-") else f"peagle-{stem}"


def context(plan: Plan, recipe: Recipe) -> list[Member]:
    """The build context, weights included where they are baked in from folders.

    Raises EngineError should the layer ever outgrow its limit.
    """
    files = [member_of(file.path, file.content) for file in context_files(plan, recipe)]
    small = sum(file.size for file in files)
    if small > LAYER_LIMIT_BYTES:
        raise EngineError(f"the layer beside weights has {small} bytes", "report this")
    copied = [one for one in recipe.weights if isinstance(one, Copied)]
    return [*files, *(member for one in copied for member in baking.members(one))]


def archive(plan: Plan, recipe: Recipe) -> Iterator[bytes]:
    """The build context as a tar: same plan, same recipe, same bytes."""
    return tar(context(plan, recipe))


def build(
    docker: Docker,
    plan: Plan,
    recipe: Recipe,
    tag: str | None = None,
    progress: Progress = lambda line: None,
) -> Built:
    """Build the image and name it ``tag`` (else ``image_name``). Raises what Docker says."""
    name = tag or image_name(plan, recipe)
    begun = time.monotonic()
    engine = for_gpus(docker) if recipe.runtime == "gpu" else docker
    engine.stream(
        "build", "--force-rm", "--tag", name, "-",
        doing=f"building {name}", given=archive(plan, recipe), each_line=progress,
    )  # fmt: skip
    return Built(show(docker, name), time.monotonic() - begun)


def for_gpus(docker: Docker) -> Docker:
    """The engine, when it fetches and builds images for machines with GPUs."""
    return Docker({**_GPU_PLATFORM, **docker.environment})
