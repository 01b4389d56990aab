"""A container of ``peagle local`` as a compose file that does the same."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from toolkit.local.containers import (
    CACHE_VOLUME,
    HEALTH_COMMAND,
    PORT,
    SHARED_MEMORY,
    START_PERIOD,
    TMPFS,
    Container,
)
from toolkit.local.process import LOOPBACK
from toolkit.rendering.image import CACHE_FOLDER

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
