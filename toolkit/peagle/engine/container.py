"""One engine in a container of this machine: the image, the environment and the mounts that
SageMaker would give it, with less that it may do.

The container is started by a ``docker run`` that stays attached to it: its output is the log, its
end is the container's end, and SIGTERM goes through it to the engine.

A container of ``peagle local`` as a compose file that does the same.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from peagle.engine.process import LOOPBACK, EngineProcess, remove_container, start_program
from peagle.errors import UserError
from peagle.images import Docker, Image, images, show
from peagle.images.inspect import check_pair
from peagle.planning.plan import Plan
from peagle.render.image import CACHE_FOLDER, RuntimeKind, serve_digest
from peagle.store import home
from peagle_serve.contract import COLLECT, WARM_MODE_VARIABLE

PORT = 8080
"""The port that the container listens on, as SageMaker has it."""

SHARED_MEMORY = "1g"
"""Ranks of one engine talk through it; Docker's own default of 64 MB ends NCCL."""

CACHE_VOLUME = "peagle-cache"
"""What the containers of this Docker engine compile and download outlives them here."""

TMPFS = "/tmp:exec,mode=1777"
"""Compiled code is loaded from there, which Docker forbids unless it is told."""

_HEALTH = (
    "import urllib.request as r; "
    f"r.build_opener(r.ProxyHandler({{}})).open('http://127.0.0.1:{PORT}/ping', timeout=5)"
)
HEALTH_COMMAND = ("python3", "-c", _HEALTH)
"""Docker's own look at /ping."""

START_PERIOD = "3600s"
"""Until then an engine that does not answer yet counts as starting: SageMaker's longest."""

_OWN = ("PATH", "HOME")
"""Variables that the ``docker`` command needs itself, and the container gets from its image."""


@dataclass(frozen=True)
class Container:
    """What to run: ``mounts`` is path in the container -> folder of this machine."""

    name: str
    image: str
    environment: Mapping[str, str]
    mounts: Mapping[str, Path]
    port: int
    gpus: bool = False


def container_name(kind: str, name: str) -> str:
    """A name that no other home of this machine uses."""
    digest = hashlib.sha256(str(home()).encode()).hexdigest()[:8]
    return f"peagle-{kind}-{name}-{digest}"


def run_arguments(container: Container) -> list[str]:
    """``docker``'s arguments. Values of the environment are not among them: argv can be seen by
    everybody, so Docker takes them from its own environment."""
    given = ["run", "--rm", "--name", container.name]
    given += ["--publish", f"{LOOPBACK}:{container.port}:{PORT}"]
    given += ["--read-only", "--tmpfs", TMPFS, "--shm-size", SHARED_MEMORY]
    given += ["--mount", f"type=volume,{_volume(container)}dst={CACHE_FOLDER}"]
    given += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    given += ["--health-cmd", shlex.join(HEALTH_COMMAND), "--health-interval", "10s",
              "--health-start-period", START_PERIOD]  # fmt: skip
    given += ["--gpus", "all"] if container.gpus else []
    for path, folder in sorted(container.mounts.items()):
        given += ["--mount", _bind(folder, path)]
    for name in sorted(container.environment):
        given += ["--env", name]
    return [*given, container.image, "serve"]


def start_container(
    docker: Docker,
    container: Container,
    log: Path,
    record: Callable[[EngineProcess], object] = lambda process: None,
) -> EngineProcess:
    """Start it, after removing what an earlier one of that name left."""
    for name in container.environment:
        if name in _OWN or name.startswith("DOCKER_"):
            raise UserError(f"{name} cannot be set for a container", "leave it out of the plan")
    remove_container(container.name)
    argv = docker.argv(*run_arguments(container))
    variables = {**docker.variables(), **container.environment}
    return start_program(argv, variables, container.port, log, record, container.name)


def find_image(
    docker: Docker, plan: Plan, runtime: RuntimeKind, named: str | None = None,
    command: str = "peagle image build PAIR",
) -> Image | None:  # fmt: skip
    """The image for the plan: the one ``named``, else the newest of its pair, version and runtime
    with today's entrypoint and without weights, which may be others than the plan's; ``None`` if
    there is none. ``command`` builds it.

    Raises UserError for a named one that was built for another pair or runtime.
    """
    if named is None:
        found = images(docker, pair=plan.pair, runtime=runtime, vllm=plan.runtime.vllm,
                       serve=serve_digest(), weights="mounted")  # fmt: skip
        return found[0] if found else None
    image = show(docker, named)
    check_pair(image, plan.pair, command)
    if image.runtime != runtime:
        other = "with --gpus" if image.runtime == "gpu" else "without --gpus"
        raise UserError(f"the image {named} is for the {image.runtime}", f"start it {other}")
    return image


def _volume(container: Container) -> str:
    """The shared one; none that has a name for a container that collects. That empties the folder
    of its key, from which others may run, so its volume is new and goes with it. The path is the
    same: some caches (Triton's) hold absolute ones."""
    collects = container.environment.get(WARM_MODE_VARIABLE) == COLLECT
    return "" if collects else f"src={CACHE_VOLUME},"


def _bind(folder: Path, path: str) -> str:
    """A bind mount in Docker's notation, which is one line of a CSV file."""
    source = str(folder.resolve()).replace('"', '""')
    return f'type=bind,"src={source}",dst={path},readonly'


_CACHE = "cache"
_HEADING = """\
# {name}: the same as `peagle local up --engine docker`.
# Start it with Docker Compose: --file FILE up
"""


def compose_file(container: Container) -> str:
    """The compose file's text, for Compose 1.29 and later.

    The service bears the container's name, so that two such files may lie in one folder, which
    names their project. The cache is the one of ``peagle local``.
    """
    document = {
        "services": {container.name: _service(container)},
        "volumes": {_CACHE: {"name": CACHE_VOLUME}},
    }
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100_000)
    return _HEADING.format(name=container.name) + body


def _service(container: Container) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": container.image,
        "command": ["serve"],
        "environment": {n: _plain(v) for n, v in sorted(container.environment.items())},
        "ports": [f"{LOOPBACK}:{container.port}:{PORT}"],
        "read_only": True,
        "tmpfs": [TMPFS],
        "shm_size": SHARED_MEMORY,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "volumes": [
            {"type": "volume", "source": _CACHE, "target": CACHE_FOLDER},
            *(
                {
                    "type": "bind",
                    "source": _plain(str(folder.resolve())),
                    "target": path,
                    "read_only": True,
                }
                for path, folder in sorted(container.mounts.items())
            ),
        ],
        "healthcheck": {
            "test": ["CMD-SHELL", _plain(shlex.join(HEALTH_COMMAND))],
            "interval": "10s",
            "start_period": START_PERIOD,
        },
        "stop_grace_period": "120s",
    }
    if container.gpus:
        device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service


def _plain(value: str) -> str:
    """Compose reads ``$`` as a variable's beginning, and ``$$`` as itself."""
    return value.replace("$", "$$")
