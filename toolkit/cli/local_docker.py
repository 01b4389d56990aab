"""``peagle local up --engine docker``: which image, built now if asked for, or a compose file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from toolkit.cli.files import write_file
from toolkit.cli.image_recipes import cpu_recipe, gpu_recipe, is_own_image
from toolkit.cli.waiting import StatusLine
from toolkit.errors import NotFound
from toolkit.images import Docker, Image, build
from toolkit.local.compose import compose_file
from toolkit.local.containers import find_image
from toolkit.local.hosts import DockerHost
from toolkit.local.process import free_port
from toolkit.planning import Plan
from toolkit.rendering.image import RuntimeKind


def docker_host(plan: Plan, gpus: bool, build_first: bool, base: str | None = None) -> DockerHost:
    """Docker with the image for the plan.

    That is ``--image`` where it was given; else the newest that fits; with ``build_first`` a new
    one. Raises DockerMissing, and NotFound when there is no image.
    """
    docker = Docker()
    docker.check()
    runtime: RuntimeKind = "gpu" if gpus else "cpu"
    if build_first:
        return DockerHost(docker, built(docker, plan, runtime, base), gpus)
    named = plan.runtime.image if is_own_image(plan) else None
    found = find_image(docker, plan, runtime, named)
    if found is None:
        raise NotFound(
            f"there is no image of {plan.pair} for the {runtime} on this machine",
            f"add --build, or: peagle image build {plan.target.id} --runtime {runtime}",
        )
    return DockerHost(docker, found, gpus)


def built(docker: Docker, plan: Plan, runtime: RuntimeKind, base: str | None) -> Image:
    """The plan's image, built now; what has not changed is quick."""
    with StatusLine() as status:

        def progress(line: str) -> None:
            status.show("building the image", line)

        recipe = (
            gpu_recipe(plan, base, bake_weights=False)
            if runtime == "gpu"
            else cpu_recipe(docker, plan, base, bake_weights=False, progress=progress)
        )
        return build(docker, plan, recipe, progress=progress).image


def emit_compose(host: DockerHost, plan: Plan, port: int | None, file: Path) -> int:
    """Write the compose file to ``file``, or to stdout for ``-``; the port that it publishes."""
    environment, _ = host.runnable(plan)
    chosen = port or free_port()
    # By name: the file is for machines, too, that get the image from a registry.
    container = replace(host.container(plan, environment, chosen), image=host.built.name)
    text = compose_file(container)
    if str(file) == "-":
        click.echo(text, nl=False)
    else:
        write_file(file, text.encode())
    return chosen
