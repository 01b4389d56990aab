"""From a plan to an image of this machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.data import data_folder, weights_folder
from toolkit.errors import EngineError, UserError
from toolkit.images.archive import Member, member_of, members_of, tar
from toolkit.images.client import Docker
from toolkit.images.show import Image, show
from toolkit.planning.models import Plan
from toolkit.rendering.image import (
    LAYER_LIMIT_BYTES,
    Recipe,
    baked_folders,
    context_digest,
    context_files,
)

Progress = Callable[[str], object]

_DIGITS = 12
_BASE_PLATFORM = "linux/amd64"
"""Of AWS's images, and of all GPU instances of SageMaker that the catalogue knows."""


@dataclass(frozen=True)
class Built:
    """A built image, and how long building took, in seconds."""

    image: Image
    seconds: float


def image_name(plan: Plan, recipe: Recipe) -> str:
    """``peagle-tiny:0.28.0-cpu-<digest of the context>``: another content, another tag, so that
    a repository whose tags never change can hold every one of them."""
    digest = context_digest(plan, recipe)[:_DIGITS]
    return f"{repository_of(plan)}:{plan.runtime.vllm}-{recipe.runtime}-{digest}"


def repository_of(plan: Plan) -> str:
    """The repository of a target's images: its short name, as a registry takes it."""
    word = "".join(c if c.isascii() and c.isalnum() else "-" for c in plan.target.id.lower())
    stem = word.partition("-")[2] if "/" in plan.target.id else word
    stem = "-".join(part for part in stem.split("-") if part)
    return stem if stem.startswith("peagle-") else f"peagle-{stem}"


def context(plan: Plan, recipe: Recipe) -> list[Member]:
    """The build context, weights included where they are baked in from folders.

    Raises Unsupported for weights that cannot be baked in, UserError for a folder that is not
    there, and EngineError should the layer ever outgrow its limit.
    """
    files = [member_of(file.path, file.content) for file in context_files(plan, recipe)]
    small = sum(file.size for file in files)
    if small > LAYER_LIMIT_BYTES:
        raise EngineError(f"the layer beside weights has {small} bytes", "report this")
    folders = baked_folders(plan) if recipe.bake_weights else {}
    return [*files, *(one for into, where in folders.items() for one in _weights(into, where))]


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
    platform = {"DOCKER_DEFAULT_PLATFORM": _BASE_PLATFORM} if recipe.runtime == "gpu" else {}
    engine = Docker({**platform, **docker.environment})
    engine.stream(
        "build", "--force-rm", "--tag", name, "-",
        doing=f"building {name}", given=archive(plan, recipe), each_line=progress,
    )  # fmt: skip
    return Built(show(docker, name), time.monotonic() - begun)


def source_revision() -> str | None:
    """The commit of the toolkit's source; ``None`` for an installed package."""
    root = data_folder("containers").parent
    if not (root / ".git").exists():
        return None
    asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _weights(into: str, location: str) -> list[Member]:
    folder = Path(weights_folder(location))
    found = members_of(folder, into) if folder.is_dir() else []
    if not found:
        raise UserError(f"there are no weights in {folder}", "name a folder that holds them")
    return found
