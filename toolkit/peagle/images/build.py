"""Build the image of a plan on this machine.

Images for CPUs are FROM an engine image, which is built once per base and lock file: a base with
Python, and the packages of `peagle engine install`. So the container runs the same files as the
process, and the build needs no network.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from peagle.errors import EngineError, Fix, NotFound, UserError
from peagle.findings import Finding
from peagle.images import bake as baking
from peagle.images.context import Member, member_of, members_of, pulled, tar, tar_member
from peagle.images.docker import Docker, Progress
from peagle.images.inspect import Image, show_image
from peagle.planning.plan import Plan
from peagle.planning.runtime import LOG_STATS_OFF
from peagle.render.image import LAYER_LIMIT_BYTES, Copied, Recipe, content_digest, context_files
from peagle.render.image_names import split_image

_DIGITS = 12
_ABOUT_REGISTRY = frozenset({"image-not-in-ecr", "image-in-another-region"})
_GPU_PLATFORM = {"DOCKER_DEFAULT_PLATFORM": "linux/amd64"}
"""The platform of AWS's images and of all SageMaker GPU instances in the catalogue."""


@dataclass(frozen=True)
class Built:
    image: Image
    seconds: float


def image_name(plan: Plan, recipe: Recipe) -> str:
    """``peagle-tiny:0.28.0-cpu-<digest of the content>``.

    Each content has its own tag, so a repository with immutable tags can hold all of them; plans
    with the same content share an image.
    """
    digest = content_digest(plan, recipe)[:_DIGITS]
    return f"{repository_of(plan)}:{plan.runtime.vllm}-{recipe.runtime}-{digest}"


def named_by_content(image: Image) -> bool:
    """Whether the image has a name of ``image_name``: images of that name have the same content."""
    return bool(image.content) and image.name.endswith(f"-{image.content[:_DIGITS]}")


def repository_of(plan: Plan) -> str:
    """The repository of a target's images: its short name in a registry's spelling."""
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in plan.target.id.lower())
    stem = name.partition("-")[2] if "/" in plan.target.id else name
    stem = "-".join(part for part in stem.split("-") if part)
    return stem if stem.startswith("peagle-") else f"peagle-{stem}"


def context(plan: Plan, recipe: Recipe) -> list[Member]:
    """The build context, with the baked weights of local folders.

    Raises EngineError when the layer exceeds its limit.
    """
    files = [member_of(file.path, file.content) for file in context_files(plan, recipe)]
    small = sum(file.size for file in files)
    if small > LAYER_LIMIT_BYTES:
        raise EngineError(f"the layer without weights has {small} bytes", "report this bug")
    copied = [one for one in recipe.weights if isinstance(one, Copied)]
    return [*files, *(member for one in copied for member in baking.members(one))]


def build(
    docker: Docker,
    plan: Plan,
    recipe: Recipe,
    tag: str | None = None,
    progress: Progress = lambda line: None,
) -> Built:
    """Build the image with the name ``tag``, else ``image_name``. Raises as ``Docker.stream``."""
    name = tag or image_name(plan, recipe)
    begun = time.monotonic()
    engine = for_gpus(docker) if recipe.runtime == "gpu" else docker
    engine.stream(
        "build", "--force-rm", "--tag", name, "-",
        doing=f"building {name}", given=tar(context(plan, recipe)), each_line=progress,
    )  # fmt: skip
    return Built(show_image(docker, name), time.monotonic() - begun)


def for_gpus(docker: Docker) -> Docker:
    """The Docker engine, for images of machines with GPUs."""
    return Docker({**_GPU_PLATFORM, **docker.environment})


REPOSITORY = "peagle-engine-cpu"

_ENGINE = "/opt/peagle-engine"
_PRINT_VERSION = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
_LIBRARIES = (
    "import ctypes, subprocess as s, sys\n"
    "try: ctypes.CDLL('libnuma.so.1'); sys.exit()\n"
    "except OSError: pass\n"
    "s.run(['apt-get', 'update'], check=True)\n"
    "s.run(['apt-get', 'install', '-y', '--no-install-recommends', 'libnuma1'], check=True)\n"
    "s.run(['find', '/var/lib/apt/lists', '-type', 'f', '-delete'], check=True)\n"
)
"""Installs the engine's system library unless the base has it."""

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
"""The packages come without bytecode and on a read-only file system, so it goes to the cache."""


@dataclass(frozen=True)
class Packages:
    """An installed engine: ``folder`` is its site-packages, ``python`` is ``3.11``, ``lock`` the
    digest of the lock file that it was installed from."""

    vllm: str
    python: str
    folder: Path
    lock: str


def engine_image(
    docker: Docker, base: str, packages: Packages, progress: Progress = lambda line: None
) -> str:
    """The name of the image with that engine on ``base``, which is built unless it exists.

    Raises UserError unless ``base`` is an image with venv and the engine's version of Python; and
    as ``Docker.run``.
    """
    split_image(base)
    base_id = str(pulled(docker, base, progress).get("Id", ""))
    name = engine_image_name(base_id, packages)
    if docker.inspect("image", name) is None:
        _check_base(docker, base, packages)
        progress(f"building {name} (2 GB, once for this base and engine)")
        context = tar(context_of(packages))
        docker.stream("build", "--force-rm", "--build-arg", f"BASE={base}", "--tag", name, "-",
                      doing=f"building {name}", given=context, each_line=progress)  # fmt: skip
    return name


def engine_image_name(base_id: str, packages: Packages) -> str:
    """Repository and tag: the version, and a digest of all inputs of the image."""
    inputs = "\0".join((base_id, packages.lock, packages.python, _DOCKERFILE))
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:12]
    return f"{REPOSITORY}:{packages.vllm}-{digest}"


def context_of(packages: Packages) -> list[Member]:
    """The Dockerfile, and the packages as one archive: builders unpack 32,000 files faster than
    they copy them."""
    inside = f"lib/python{packages.python}/site-packages"
    files = members_of(packages.folder, inside, skip=lambda path: "__pycache__" in path.parts)
    return [member_of("Dockerfile", _DOCKERFILE.encode()), tar_member("engine.tar", files)]


def _check_base(docker: Docker, base: str, packages: Packages) -> None:
    """Raise UserError for a base without the engine's version of Python."""
    try:
        version = docker.run(
            "run", "--rm", "--network", "none", "--entrypoint", "python3", base,
            "-c", _PRINT_VERSION,
            doing=f"running Python in {base}",
        ).strip()  # fmt: skip
    except (EngineError, NotFound) as error:
        raise UserError(
            f"the base {base} cannot run the engine: {error.message}",
            f"choose a --base with Python {packages.python} and venv",
            "unusable-base",
        ) from error
    if version != packages.python:
        raise UserError(
            f"the base {base} has Python {version}, but the installed engine is for "
            f"{packages.python}",
            Fix(
                f"choose another --base, or install the engine for Python {version}",
                ("peagle", "engine", "install", "--python", "PATH"),
            ),
            "unusable-base",
        )


def findings_with_own_image(plan: Plan) -> tuple[Finding, ...]:
    """The plan's findings for an image of this toolkit, which exposes speculation counters."""
    return tuple(one for one in plan.findings if one.code != LOG_STATS_OFF)


def findings_for_build(plan: Plan) -> tuple[Finding, ...]:
    """The findings for building an image: without notes, which are about serving it."""
    return tuple(one for one in findings_with_own_image(plan) if one.level != "note")


def findings_on_this_machine(plan: Plan, engine_kind: str) -> tuple[Finding, ...]:
    """The findings for a local engine, whose container image need not be in ECR."""
    left_out = _ABOUT_REGISTRY if engine_kind == "docker" else ()
    return tuple(one for one in findings_with_own_image(plan) if one.code not in left_out)
