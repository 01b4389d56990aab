"""``peagle sandbox``: AWS on this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict

import click

from peagle import sandbox as aws_sandbox
from peagle.cli.context import PeagleCommand
from peagle.cli.output.console import json_option, print_json, say
from peagle.engine.process import LOOPBACK
from peagle.sandbox.state import EngineKind


@click.group(epilog='Example: peagle sandbox start && eval "$(peagle sandbox env)"')
def sandbox() -> None:
    """AWS on this machine, whose SageMaker endpoints really serve.

    Anything that speaks AWS can use it: boto3, the AWS CLI, Terraform.
    """


@sandbox.command(cls=PeagleCommand, epilog="Example: peagle sandbox start --port 18300")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: any free one]")
@click.option(
    "--engine",
    type=click.Choice(["process", "docker"]),
    help="As what its endpoints run.  [default: process]",
)
@json_option
def start(port: int, engine: EngineKind | None, as_json: bool) -> None:
    """Start it, or find it running.

    With --engine docker its endpoints are containers, of the image that the model names where it
    is on this machine and for a CPU, else of the newest that is.
    """
    address = aws_sandbox.ensure_started(port, engine)
    if as_json:
        print_json({"url": address.url, "pid": address.pid})
        return
    click.echo(f"The sandbox listens on {address.url} (process {address.pid}).")
    click.echo('Use it from this shell:  eval "$(peagle sandbox env)"')
    click.echo("then, for instance:      aws sagemaker list-endpoints")
    click.echo("or straight away:        peagle deploy tiny --sandbox")


@sandbox.command(cls=PeagleCommand, epilog="Example: peagle sandbox stop")
@json_option
def stop(as_json: bool) -> None:
    """End it, its engines, and all that it kept."""
    found = aws_sandbox.stop()
    if as_json:
        print_json(asdict(found))
        return
    click.echo("The sandbox has ended." if found.was_running else "The sandbox was not running.")
    if found.engines:
        click.echo(f"Engines ended: {found.engines}.")


@sandbox.command(cls=PeagleCommand, epilog="Example: peagle sandbox status --json")
@json_option
def status(as_json: bool) -> None:
    """Say whether it runs, and what serves in it."""
    found = aws_sandbox.status()
    if as_json:
        print_json(asdict(found))
        return
    if not found.running:
        click.echo("The sandbox does not run (peagle sandbox start).")
        if found.leftover_engines:
            say(f"It was killed; {found.leftover_engines} of its engines still run "
                "(peagle sandbox stop ends them).")  # fmt: skip
        return
    click.echo(f"The sandbox listens on {found.url} (process {found.pid}).")
    for endpoint in found.endpoints:
        click.echo(_line(endpoint))


@sandbox.command(cls=PeagleCommand, epilog='Example: eval "$(peagle sandbox env)"')
@click.option(
    "--region",
    envvar=["AWS_REGION", "AWS_DEFAULT_REGION"],
    default="us-east-1",
    show_default=True,
    help="Region that clients use.",
)
@json_option
def env(region: str, as_json: bool) -> None:
    """Print the variables that lead AWS clients here, for a shell to read.

    Fails when the sandbox does not run.
    """
    address = aws_sandbox.running()
    if address is None:
        raise aws_sandbox.not_running()
    variables = address.environment(region) | _past_the_proxy(os.environ)
    if as_json:
        print_json(variables)
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo(f"unset {' '.join(aws_sandbox.HINDERING_VARIABLES)}")


def _past_the_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Where the environment names a proxy: the settings that keep it out of the way."""
    if not any(name.lower() in ("http_proxy", "all_proxy", "https_proxy") for name in environment):
        return {}
    already = environment.get("no_proxy") or environment.get("NO_PROXY")
    hosts = f"{already},{LOOPBACK}" if already else LOOPBACK
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _line(endpoint: aws_sandbox.EndpointStatus) -> str:
    parts = [f"{endpoint.name} ({endpoint.region}): {endpoint.state}"]
    if endpoint.stand_in:
        parts.append(f"served by {endpoint.stand_in} as a stand-in")
    if endpoint.pid:
        parts.append(f"process {endpoint.pid}, port {endpoint.port}")
        parts.append(f"up {endpoint.uptime_seconds:.0f} s")
    if endpoint.failure_reason:
        parts.append(endpoint.failure_reason)
    return "; ".join(parts)
