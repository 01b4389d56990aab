"""``peagle local up --engine docker``: which image, built now if asked for, or a compose file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from toolkit.cli.cloud import chosen_account
from toolkit.cli.console import say
from toolkit.cli.files import write_file
from toolkit.cli.image_build import build_here
from toolkit.cli.image_recipes import Request
from toolkit.cli.options import build_command
from toolkit.cli.resolving import names_own_image
from toolkit.errors import DockerMissing, NotFound
from toolkit.images import Docker
from toolkit.images.show import unseen
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
        account = chosen_account(None, False, os.environ)  # for a base in ECR
        built = build_here(docker, Request(plan, runtime, base=base), account)
        return DockerHost(docker, built.image, gpus)
    ctx = click.get_current_context()
    command = build_command(ctx, "--runtime", runtime)
    named = plan.runtime.image if names_own_image(plan) else None
    found = find_image(docker, plan, runtime, named, command)
    if found is None:
        raise NotFound(
            f"there is no image of {plan.pair} for the {runtime} on this machine",
            f"add --build, or: {command}" if "build_first" in ctx.params else command,
        )
    return DockerHost(docker, found, gpus)


def compose_host(plan: Plan, gpus: bool, build_first: bool, base: str | None = None) -> DockerHost:
    """The same for a compose file, which starts nothing: an image that was named with ``--image``
    may be somewhere else, and Docker too."""
    try:
        return docker_host(plan, gpus, build_first, base)
    except (DockerMissing, NotFound) as missing:
        if build_first or not names_own_image(plan):
            raise
        named = plan.runtime.image
        say(f"Nobody looked whether {named} is for {plan.pair}: {missing.message}.")
        return DockerHost(Docker(), unseen(named), gpus)


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
