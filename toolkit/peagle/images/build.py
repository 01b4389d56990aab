"""From a plan to an image of this machine.

The CPU engine as an image: a base with a Python, and vLLM from the locked list on top.

The packages are those that `peagle engine install` has put on this machine, each checked against
its hash then: the image has, file for file, what the process engine runs, and the build needs no
network. Made once for a base and a locked list; every CPU image is FROM it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from peagle.errors import EngineError, NotFound, UserError
from peagle.images import bake as baking
from peagle.images.context import Member, fetched, member_of, members_of, tar, tar_member
from peagle.images.docker import Docker
from peagle.images.inspect import Image, show
from peagle.planning.plan import Plan
from peagle.render.image import LAYER_LIMIT_BYTES, Copied, Recipe, content_digest, context_files
from peagle.render.image_names import split_image

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


REPOSITORY = "peagle-engine-cpu"

_ENGINE = "/opt/peagle-engine"
_TRY = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
_LIBRARIES = (
    "import ctypes, subprocess as s, sys\n"
    "try: ctypes.CDLL('libnuma.so.1'); sys.exit()\n"
    "except OSError: pass\n"
    "s.run(['apt-get', 'update'], check=True)\n"
    "s.run(['apt-get', 'install', '-y', '--no-install-recommends', 'libnuma1'], check=True)\n"
    "s.run(['find', '/var/lib/apt/lists', '-type', 'f', '-delete'], check=True)\n"
)
"""Brings what the engine needs of the system, where the base has not got it."""

_DOCKERFILE = f"""\
ARG BASE
FROM ${{BASE}}
ARG BASE
LABEL org.opencontainers.image.base.name="${{BASE}}"
RUN {json.dumps(["python3", "-c", _LIBRARIES])}
RUN ["python3", "-m", "venv", "--without-pip", "{_ENGINE}"]
ADD engine.tar {_ENGINE}/
ENV PATH="{_ENGINE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \\
    PYTHONPYCACHEPREFIX="/var/cache/peagle/bytecode"
"""
"""The engine's bytecode goes to the cache: the packages come without it, and lie on a file system
that cannot be written."""


@dataclass(frozen=True)
class Packages:
    """An installed engine: ``folder`` is its site-packages, ``python`` is ``3.11``, ``lock`` the
    digest of the locked list that it was installed from."""

    vllm: str
    python: str
    folder: Path
    lock: str


def engine_image(
    docker: Docker, base: str, packages: Packages, progress: Progress = lambda line: None
) -> str:
    """The name of the image with that engine on ``base``; built unless it is there.

    ``base`` must have Python of the engine's version, with venv; it is fetched if need be.
    Raises UserError when it has not, or is no image's name, and what building raises.
    """
    split_image(base)
    base_id = str(fetched(docker, base, progress).get("Id", ""))
    name = engine_image_name(base_id, packages)
    if docker.inspect("image", name) is None:
        _check_base(docker, base, packages)
        progress(f"making {name} (2 GB, once for this base and engine)")
        context = tar(context_of(packages))
        docker.stream("build", "--force-rm", "--build-arg", f"BASE={base}", "--tag", name, "-",
                      doing=f"building {name}", given=context, each_line=progress)  # fmt: skip
    return name


def engine_image_name(base_id: str, packages: Packages) -> str:
    """Repository and tag: the version, and a digest of everything that the image is made from."""
    made_from = "\0".join((base_id, packages.lock, packages.python, _DOCKERFILE))
    digest = hashlib.sha256(made_from.encode()).hexdigest()[:12]
    return f"{REPOSITORY}:{packages.vllm}-{digest}"


def context_of(packages: Packages) -> list[Member]:
    """The Dockerfile, and the packages as one archive: a builder unpacks 32,000 files quicker
    than it copies them."""
    inside = f"lib/python{packages.python}/site-packages"
    files = members_of(packages.folder, inside, skip=_is_bytecode)
    return [member_of("Dockerfile", _DOCKERFILE.encode()), tar_member("engine.tar", files)]


def _is_bytecode(path: Path) -> bool:
    return "__pycache__" in path.parts


def _check_base(docker: Docker, base: str, packages: Packages) -> None:
    """Raise UserError for a base without a Python, or with another one than the engine's."""
    needed = f"it needs Python {packages.python} with venv"
    asking = ("run", "--rm", "--network", "none", "--entrypoint", "python3", base, "-c", _TRY)
    try:
        said = docker.run(*asking, doing=f"trying {base}").strip()
    except (EngineError, NotFound) as error:
        wrong = f"the base {base} cannot run the engine: {error.message}"
        raise UserError(wrong, needed) from error
    if said != packages.python:
        raise UserError(
            f"the base {base} has Python {said}, and the engine here is for {packages.python}",
            "give another --base, or: peagle engine install --python with that version",
        )
