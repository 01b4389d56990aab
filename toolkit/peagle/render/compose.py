"""One engine as a service of Docker Compose, 1.29 and later: a container with the environment and
the mounts of SageMaker, and no more rights than it needs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from peagle.render.files import yaml_text
from peagle.render.image import CACHE_FOLDER
from peagle_serve.contract import DEFAULT_PORT

SHARED_MEMORY = "1g"
"""For communication between ranks; NCCL fails with Docker's default of 64 MB."""

CACHE_VOLUME = "peagle-cache"
"""Keeps the compile caches and downloads of all containers of one Docker engine."""

TMPFS = "/tmp:exec,mode=1777"  # nosec B108 # the container's own, in memory
"""Docker mounts a tmpfs noexec by default; compiled code is loaded from here."""

_HEALTH = (
    "import urllib.request as r; "
    f"r.build_opener(r.ProxyHandler({{}})).open('http://127.0.0.1:{DEFAULT_PORT}/ping', timeout=5)"
)
HEALTH_COMMAND = ("python3", "-c", _HEALTH)
"""Docker's health check of /ping."""

_CACHE = "cache"
_NOT_IN_DEFAULT = frozenset("${}")


@dataclass(frozen=True)
class ComposeService:
    """``mounts`` maps a path in the container to a folder, which Compose reads relative to its
    file; ``build`` is the folder of the build context of ``image``. A variable that is ``None``
    gets the value that Compose's own environment has. ``address`` is where Compose publishes the
    port, with references to its variables; ``folder_variables`` name the variable with another
    folder for a path in the container. All other texts are literal.
    """

    name: str
    image: str
    environment: Mapping[str, str | None]
    mounts: Mapping[str, str]
    address: str
    start_seconds: int
    gpus: int | Literal["all"] | None = None
    build: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    folder_variables: Mapping[str, str] = field(default_factory=dict)


def compose_text(service: ComposeService, heading: str) -> str:
    """The text of the compose file, below comments.

    The service has a name of its own, as the folder names the project and may hold several such
    files. The cache volume is the one of ``peagle local``.
    """
    described = _literal(_described(service))
    described["ports"] = [f"{service.address}:{DEFAULT_PORT}"]
    for volume in described["volumes"]:
        variable = service.folder_variables.get(volume["target"])
        # Compose has no way to write a default with a brace or a variable's sign.
        if variable and not _NOT_IN_DEFAULT & set(volume["source"]):
            volume["source"] = f"${{{variable}:-{volume['source']}}}"
    document = {
        "services": {service.name: described},
        "volumes": {_CACHE: {"name": CACHE_VOLUME}},
    }
    return yaml_text([document], heading.splitlines())


def _described(service: ComposeService) -> dict[str, Any]:
    described: dict[str, Any] = {
        "image": service.image,
        **({"build": {"context": service.build}} if service.build is not None else {}),
        "command": ["serve"],
        **({"labels": dict(service.labels)} if service.labels else {}),
        "environment": dict(sorted(service.environment.items())),
        "ports": [],
        "read_only": True,
        "tmpfs": [TMPFS],
        "shm_size": SHARED_MEMORY,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "volumes": [
            {"type": "volume", "source": _CACHE, "target": CACHE_FOLDER},
            *(
                {"type": "bind", "source": folder, "target": path, "read_only": True}
                for path, folder in sorted(service.mounts.items())
            ),
        ],
        "healthcheck": {
            "test": ["CMD-SHELL", shlex.join(HEALTH_COMMAND)],
            "interval": "10s",
            "start_period": f"{service.start_seconds}s",
        },
        "stop_grace_period": "120s",
    }
    if service.gpus is not None:
        device = {"driver": "nvidia", "count": service.gpus, "capabilities": ["gpu"]}
        described["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return described


def _literal(value: Any) -> Any:
    """``value`` with ``$``, which begins a variable in a compose file, escaped in all texts."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value
