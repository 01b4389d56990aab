"""What the Docker of this machine can do beside building and running."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import EngineError, PeagleError
from toolkit.images.client import DOCKER, Docker

_NVIDIA = "nvidia"


@dataclass(frozen=True)
class Abilities:
    """``version`` of the engine, versions of the command's ``plugins`` (buildx, compose), and
    whether containers get ``gpus``."""

    version: str
    plugins: Mapping[str, str]
    gpus: bool


def abilities(docker: Docker) -> Abilities:
    """What `docker info` says. Raises DockerMissing when no engine answers."""
    docker.check()
    try:
        said: dict[str, Any] = json.loads(
            docker.run("info", "--format", "{{json .}}", doing="asking what it can do")
        )
        plugins = {one["Name"]: one.get("Version", "") for one in _listed(said, "Plugins")}
        devices = [one.get("ID", "") for one in said.get("DiscoveredDevices") or ()]
        gpus = _NVIDIA in (said.get("Runtimes") or {}) or any(_NVIDIA in one for one in devices)
        return Abilities(str(said.get("ServerVersion", "")), plugins, gpus)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError("docker info says nothing readable", "update Docker") from error


def compose_command(docker: Docker) -> str:
    """How Compose is called on this machine: Docker's plugin, or Debian's program of its own. As
    the plugin is called where neither is there."""
    program, plugin = "docker-compose", f"{DOCKER} compose"
    try:
        docker.run("compose", "version", doing="asking for Compose")
    except PeagleError:
        return program if shutil.which(program) else plugin
    return plugin


def _listed(said: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return (said.get("ClientInfo") or {}).get(key) or []
