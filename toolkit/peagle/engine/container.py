"""One engine in a container of this machine, with the environment and mounts of SageMaker.

An attached ``docker run`` starts the container: its output is the log, it ends with the container,
and it forwards SIGTERM to the engine. The same container can be written as a compose file.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peagle.engine.process import LOOPBACK, EngineProcess, remove_container, start_program
from peagle.errors import UserError
from peagle.images import Docker, Image, list_images, show_image
from peagle.images.inspect import check_pair
from peagle.planning.plan import Plan
from peagle.render.formats.compose import (
    CACHE_VOLUME,
    HEALTH_COMMAND,
    SHARED_MEMORY,
    TMPFS,
    ComposeService,
    compose_text,
)
from peagle.render.image import CACHE_FOLDER, RuntimeKind, serve_digest
from peagle.store import home
from peagle_serve.contract import COLLECT, DEFAULT_PORT, WARM_MODE_VARIABLE

START_SECONDS = 3600
"""SageMaker's longest start: until then, an engine that does not answer yet is starting."""

_OWN = ("PATH", "HOME")
"""Variables of the ``docker`` command; the container gets its own from the image."""


@dataclass(frozen=True)
class Container:
    """A container to run; ``mounts`` maps a path in the container to a folder of this machine."""

    name: str
    image: str
    environment: Mapping[str, str]
    mounts: Mapping[str, Path]
    port: int
    gpus: bool = False


def container_name(kind: str, name: str) -> str:
    """A name that is unique to this ``$PEAGLE_HOME``."""
    digest = hashlib.sha256(str(home()).encode()).hexdigest()[:8]
    return f"peagle-{kind}-{name}-{digest}"


def run_arguments(container: Container) -> list[str]:
    """The arguments of ``docker``. All users can read an argv, so it has the names of variables
    only; Docker takes the values from its own environment."""
    arguments = ["run", "--rm", "--name", container.name]
    arguments += ["--publish", f"{LOOPBACK}:{container.port}:{DEFAULT_PORT}"]
    arguments += ["--read-only", "--tmpfs", TMPFS, "--shm-size", SHARED_MEMORY]
    arguments += ["--mount", f"type=volume,{_volume(container)}dst={CACHE_FOLDER}"]
    arguments += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    arguments += ["--health-cmd", shlex.join(HEALTH_COMMAND), "--health-interval", "10s",
                  "--health-start-period", f"{START_SECONDS}s"]  # fmt: skip
    arguments += ["--gpus", "all"] if container.gpus else []
    for path, folder in sorted(container.mounts.items()):
        arguments += ["--mount", _bind(folder, path)]
    for name in sorted(container.environment):
        arguments += ["--env", name]
    return [*arguments, container.image, "serve"]


def start_container(
    docker: Docker,
    container: Container,
    log: Path,
    record: Callable[[EngineProcess], object] = lambda process: None,
) -> EngineProcess:
    """Start it, after removing an earlier container of that name."""
    for name in container.environment:
        if name in _OWN or name.startswith("DOCKER_"):
            raise UserError(
                f"{name} cannot be set for a container",
                "remove it from the plan",
                "reserved-variable",
            )
    remove_container(container.name)
    argv = docker.argv(*run_arguments(container))
    variables = {**docker.variables(), **container.environment}
    return start_program(argv, variables, container.port, log, record, container.name)


def find_image(
    docker: Docker, plan: Plan, runtime: RuntimeKind, named: str | None = None,
    command: Sequence[str] = (),
) -> Image | None:  # fmt: skip
    """The image for the plan, or ``None``: ``named``, else the newest image of its pair, version
    and runtime with this toolkit's entrypoint and without baked weights, which might differ from
    the plan's. ``command`` builds one.

    Raises UserError if ``named`` was built for another pair or runtime.
    """
    if named is None:
        images = list_images(docker, pair=plan.pair, runtime=runtime, vllm=plan.runtime.vllm,
                        serve=serve_digest(), weights="mounted")  # fmt: skip
        return images[0] if images else None
    image = show_image(docker, named)
    check_pair(image, plan.pair, command)
    if image.runtime != runtime:
        fix = "add --gpus" if image.runtime == "gpu" else "omit --gpus"
        raise UserError(
            f"the image {named} is a {image.runtime} image", fix, "image-of-another-runtime"
        )
    return image


def _volume(container: Container) -> str:
    """The shared cache volume; an anonymous one for a container that collects.

    Collecting empties a cache folder that other containers may use. The path stays the same, as
    some caches (Triton's) contain absolute paths.
    """
    collects = container.environment.get(WARM_MODE_VARIABLE) == COLLECT
    return "" if collects else f"src={CACHE_VOLUME},"


def _bind(folder: Path, path: str) -> str:
    """A bind mount in Docker's notation, one line of CSV."""
    source = str(folder.resolve()).replace('"', '""')
    return f'type=bind,"src={source}",dst={path},readonly'


_HEADING = """\
{name}: the same as `peagle local up --engine docker`.
Start it with Docker Compose: --file FILE up
"""


def compose_file(container: Container) -> str:
    """The text of a compose file for the container."""
    service = ComposeService(
        name=container.name,
        image=container.image,
        environment=container.environment,
        mounts={path: str(folder.resolve()) for path, folder in container.mounts.items()},
        address=f"{LOOPBACK}:{container.port}",
        start_seconds=START_SECONDS,
        gpus="all" if container.gpus else None,
    )
    return compose_text(service, _HEADING.format(name=container.name))
