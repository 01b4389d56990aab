"""The end of a container, also of one whose ``docker`` command was killed."""

from __future__ import annotations

import contextlib

from toolkit.errors import DockerMissing, EngineError, NotFound
from toolkit.images import Docker


def remove_container(name: str) -> None:
    """Remove the container if it is there. Where no Docker engine answers, nothing runs in it."""
    with contextlib.suppress(DockerMissing, NotFound, EngineError):
        Docker().run("rm", "--force", "--volumes", name, doing=f"removing {name}")
