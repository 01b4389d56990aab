"""Removing an image, and what to end first where containers use it."""

from __future__ import annotations

from toolkit.errors import EngineError, UserError
from toolkit.images import Docker, Image, remove, users
from toolkit.local import records
from toolkit.local.containers import container_name


def remove_unused(docker: Docker, name: str) -> Image:
    """Remove the image; what it was. Raises UserError with the commands that end what uses it."""
    try:
        return remove(docker, name)
    except EngineError as error:
        containers = users(docker, name)
        if not containers:
            raise
        engines = _engines()
        called = [engines.get(container, container) for container in containers]
        ends = [_ends(container, engines.get(container)) for container in containers]
        raise UserError(f"{name} is in use by {', '.join(called)}", "; ".join(ends)) from error


def _engines() -> dict[str, str]:
    """Container -> the engine of ``peagle local`` that runs in it."""
    found = records.listing()
    return {one.process.container: one.name for one in found if one.process.container}


def _ends(container: str, engine: str | None) -> str:
    if engine:
        return f"end it first: peagle local down {engine}"
    if _is_in_sandbox(container):
        return "an endpoint of the sandbox runs in it: destroy that, or peagle sandbox stop"
    return f"end it first: docker rm --force {container}"


def _is_in_sandbox(container: str) -> bool:
    """Whether the sandbox of this home started it."""
    before, after = container_name("sandbox", " ").split(" ")
    return container.startswith(before) and container.endswith(after)
