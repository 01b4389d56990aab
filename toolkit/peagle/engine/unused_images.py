"""Remove an image that no container uses; else the commands that stop its containers."""

from __future__ import annotations

import shlex

from peagle.engine.container import container_name
from peagle.engine.state import local_engines
from peagle.errors import EngineError, Fix, UserError
from peagle.images import Docker, Image
from peagle.images.inspect import containers_of, remove_image


def remove_unused_image(docker: Docker, name: str) -> Image:
    """Remove the image from this machine and return it.

    Raises as ``show_image``, and UserError with the commands that stop the containers that use it.
    """
    try:
        return remove_image(docker, name)
    except EngineError as error:
        containers = containers_of(docker, name)
        if not containers:
            raise
        engines = {one.process.container: one.name for one in local_engines()}
        users = [engines.get(container, container) for container in containers]
        fixes = [_stop_fix(container, engines.get(container)) for container in containers]
        only = fixes[0] if len(fixes) == 1 else Fix("; ".join(map(_fix_sentence, fixes)))
        raise UserError(f"{name} is in use by {', '.join(users)}", only, "image-in-use") from error


def _stop_fix(container: str, engine: str | None) -> Fix:
    """How to stop a container of ``peagle local`` (``engine``), the sandbox or the user."""
    if engine:
        return Fix("Stop the engine", ("peagle", "local", "down", engine))
    before, after = container_name("sandbox", " ").split(" ")
    if container.startswith(before) and container.endswith(after):
        return Fix(
            "Destroy the sandbox's endpoint, or stop the sandbox", ("peagle", "sandbox", "stop")
        )
    return Fix("Remove the container", ("docker", "rm", "--force", container))


def _fix_sentence(fix: Fix) -> str:
    return f"{fix.sentence}: {shlex.join(fix.command)}"
