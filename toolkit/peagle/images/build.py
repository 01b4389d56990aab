"""Build the image of a plan on this machine, and push it without writing credentials to disk.

Images for CPUs are FROM an engine image, which is built once per base and lock file: a base with
Python, and the packages of `peagle engine install`. So the container runs the same files as the
process, and the build needs no network. ``docker login`` stores credentials in a file; instead, a
credential helper gives them to Docker from the environment of the one command that pushes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peagle.errors import EngineError, NotFound, UserError
from peagle.findings import Finding
from peagle.images.context import (
    Member,
    digests_of,
    explain_full_disk,
    member_of,
    members,
    members_of,
    pulled,
    tar,
    tar_member,
)
from peagle.images.docker import Docker, Image, Progress, show_image
from peagle.planning.plan import Plan
from peagle.planning.runtime import LOG_STATS_OFF
from peagle.render.image import (
    DIGITS,
    LAYER_LIMIT_BYTES,
    Copied,
    Recipe,
    context_files,
    has_host,
    image_name,
    split_image,
    without_tag,
)
from peagle_serve import json_reader

_ABOUT_REGISTRY = frozenset({"image-not-in-ecr", "image-not-in-region", "image-by-tag"})
_OF_SAGEMAKER = frozenset(
    {
        "ami-unverified", "baking-too-short", "cache-below-concurrency", "captured-data-kept",
        "context-shortened", "conversations-spread", "copies-cost-less", "gpus-idle",
        "host-memory-below-weights",
        "instance-region-unknown", "instance-scarce", "k-below-fastest", "limit-before-start",
        "no-alarm-topic", "no-ttft-alarm", "prefix-cache-off", "prefix-cache-too-small",
        "price-not-from-aws", "price-not-listed", "price-of-another-region", "price-snapshot",
        "price-unknown", "queue-unbounded", "rollout-of-one", "scale-to-zero-refused",
        "scaling-target-high", "several-instances", "slo-unverified", "speculation-costs-more",
        "speculation-loses", "speed-unverified", "verdict-other-gpus", "vpc-routes",
        "weights-streamed",
    }
)  # fmt: skip
"""Warnings and notes about what a local engine does not have: the instance that is planned, its
memory, speed and price, and what SageMaker does with it."""

_DOWNLOAD_TIMEOUT = "download_timeout_seconds"
"""``where`` of the findings about the download by SageMaker; those about the startup concern a
local engine too."""

_GPU_PLATFORM = {"DOCKER_DEFAULT_PLATFORM": "linux/amd64"}
"""The platform of AWS's images and of all SageMaker GPU instances in the catalogue."""


@dataclass(frozen=True)
class Built:
    image: Image
    seconds: float


def named_by_content(image: Image) -> bool:
    """Whether the image has a name of ``image_name``: images of that name have the same content."""
    return bool(image.content) and image.name.endswith(f"-{image.content[:DIGITS]}")


def context(plan: Plan, recipe: Recipe) -> list[Member]:
    """The build context, with the baked weights of local folders. Raises EngineError when the layer
    exceeds its limit."""
    files = [member_of(file.path, file.content) for file in context_files(plan, recipe)]
    small = sum(file.size for file in files)
    if small > LAYER_LIMIT_BYTES:
        raise EngineError(f"the layer without weights has {small} bytes", "report this bug")
    copied = [weights for weights in recipe.weights if isinstance(weights, Copied)]
    return [*files, *(member for weights in copied for member in members(weights))]


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


def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


_DOCKERFILE = _template("engine.Dockerfile")
"""It installs the engine's system library unless the base has it. The packages come without
bytecode, and containers may not write it: the build imports what every start imports, which takes a
start 18 s of processor time less."""


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
    """The name of the image with that engine on ``base``, which is built unless it exists. Raises
    UserError unless ``base`` is an image with venv and the engine's version of Python; and as
    ``Docker.run``."""
    split_image(base)
    base_id = str(pulled(docker, base, progress).get("Id", ""))
    name = engine_image_name(base_id, packages)
    if docker.inspect("image", name) is not None:
        return name
    print_version = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        version = docker.run(
            "run", "--rm", "--network", "none", "--entrypoint", "python3", base,
            "-c", print_version, doing=f"running Python in {base}",
        ).strip()  # fmt: skip
        problem = f"it has Python {version}" if version != packages.python else ""
    except (EngineError, NotFound) as error:
        problem = error.message
    if problem:
        raise UserError(
            f"the base {base} cannot run the engine: {problem}",
            f"choose a --base with Python {packages.python} and venv, or install the engine for "
            "another Python",
            "unusable-base",
        )
    progress(f"building {name} (2 GB, once for this base and engine)")
    docker.stream("build", "--force-rm", "--build-arg", f"BASE={base}", "--tag", name, "-",
                  doing=f"building {name}", given=tar(context_of(packages)),
                  each_line=progress)  # fmt: skip
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


def findings_with_own_image(plan: Plan) -> tuple[Finding, ...]:
    """The plan's findings for an image of this toolkit, which exposes speculation counters."""
    return tuple(finding for finding in plan.findings if finding.code != LOG_STATS_OFF)


def findings_for_build(plan: Plan) -> tuple[Finding, ...]:
    """The findings for building an image: without notes, which are about serving it."""
    return tuple(finding for finding in findings_with_own_image(plan) if finding.level != "note")


def findings_on_this_machine(plan: Plan, engine_kind: str) -> tuple[Finding, ...]:
    """The findings for a local engine: all errors but those of ECR for a container, and what does
    not concern SageMaker, its instances or their prices."""
    left_out = _ABOUT_REGISTRY if engine_kind == "docker" else {"image-by-tag"}
    return tuple(
        finding
        for finding in findings_with_own_image(plan)
        if finding.code not in left_out
        and (
            finding.level == "error"
            or (finding.code not in _OF_SAGEMAKER and finding.where != _DOWNLOAD_TIMEOUT)
        )
    )


def findings_of_format(plan: Plan, format: str) -> tuple[Finding, ...]:
    """The plan's findings for its files in that format of `peagle render`."""
    if format == "compose":
        return findings_on_this_machine(plan, "docker")
    return findings_with_own_image(plan) if format == "dockerfile" else plan.findings


_HELPER = "peagle"
_VARIABLE = "PEAGLE_REGISTRY_LOGINS"
_KEPT = ("contexts", "cli-plugins", "buildx")
"""The parts of the user's Docker configuration that a command needs: the engine's address and the
builder. The user's own logins are not copied."""


@dataclass(frozen=True)
class Login:
    """Credentials for the registry ``host``."""

    host: str
    user: str
    password: str = field(repr=False)


@contextlib.contextmanager
def logged_in(docker: Docker, logins: Sequence[Login]) -> Iterator[Docker]:
    """A Docker engine with these logins instead of the user's; without logins, ``docker``."""
    if not logins:
        yield docker
        return
    with tempfile.TemporaryDirectory(prefix="peagle-docker-") as name:
        folder = Path(name)
        with explain_full_disk("Docker's configuration for one command"):
            _configure(folder, [login.host for login in logins])
        credentials = {login.host: (login.user, login.password) for login in logins}
        path = os.pathsep.join((str(folder / "bin"), os.environ.get("PATH", os.defpath)))
        yield Docker(
            {**docker.environment, "DOCKER_CONFIG": str(folder), "PATH": path,
             _VARIABLE: json.dumps(credentials)}
        )  # fmt: skip


def push(
    docker: Docker,
    name: str,
    address: str,
    logins: Sequence[Login] = (),
    progress: Progress = lambda line: None,
) -> str:
    """Push the image ``name`` as ``address``; returns the address with its digest. Raises
    CloudError when the registry rejects the image or the tag exists, and as ``Docker.run``."""
    doing = f"pushing {address}"
    repository = repository_part(address)
    docker.run("tag", name, address, doing=doing)
    with logged_in(docker, logins) as engine:
        engine.stream("push", address, doing=doing, each_line=progress)
    digests = digests_of(docker.inspect("image", address) or {}, repository)
    return f"{repository}@{digests[-1]}" if digests else address


def repository_part(address: str) -> str:
    """``host:5000/name`` of ``host:5000/name:tag``. Raises UserError without a registry's host."""
    if not has_host(address):
        fix = "use registry.example.com/name:tag"
        raise UserError(f"{address!r} has no registry", fix, "no-registry")
    return without_tag(address)


def _configure(folder: Path, hosts: Sequence[str]) -> None:
    """A Docker configuration with names of registries and without secrets."""
    docker_config = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))
    for kept in _KEPT:
        if (docker_config / kept).is_dir():
            (folder / kept).symlink_to(docker_config / kept)
    document: dict[str, object] = {"credHelpers": dict.fromkeys(hosts, _HELPER)}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        config = json_reader.read_file(docker_config / "config.json")
        document["currentContext"] = str(config["currentContext"])
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    helper = folder / "bin" / f"docker-credential-{_HELPER}"
    helper.parent.mkdir()
    source = folder / "helper.py"
    source.write_text(_template("credential-helper.py.txt"), encoding="utf-8")
    command = shlex.join([sys.executable, "-I", str(source)])
    helper.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    helper.chmod(0o700)
