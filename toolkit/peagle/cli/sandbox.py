"""``peagle sandbox``: start, stop and show AWS on this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict

import click

from peagle.cli.context import PeagleCommand, command_text
from peagle.cli.options import region_option
from peagle.cli.sandbox_rehearse import fault, quota, scaling
from peagle.cli.view.console import (
    json_option,
    print_documents,
    print_json,
    print_line,
    print_small,
    print_status,
)
from peagle.engine.process import LOOPBACK
from peagle.errors import command_line
from peagle.sandbox.client import (
    conflicting_variables,
    running_sandbox,
    sandbox_not_running,
    sandbox_status,
    start_sandbox,
    stop_sandbox,
)
from peagle.sandbox.state import EngineKind

_ENDPOINT = (
    "name", "region", "state", "stand_in", "instances", "pid", "port", "uptime_seconds",
    "failure_reason",
)  # fmt: skip
"""Keys of an endpoint that ``status`` shows."""


@click.group(epilog='Example: peagle sandbox start && eval "$(peagle sandbox env)"')
def sandbox() -> None:
    """Run AWS on this machine, with working endpoints.

    Works with any AWS client: boto3, the AWS CLI, Terraform.
    """


sandbox.add_command(fault)
sandbox.add_command(quota)
sandbox.add_command(scaling)


@sandbox.command(cls=PeagleCommand, epilog="Example: peagle sandbox start --port 18300")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: a free port]")
@click.option(
    "--engine",
    type=click.Choice(["process", "docker"]),
    help="How endpoints run.  [default: process]",
)
@json_option
def start(port: int, engine: EngineKind | None, as_json: bool) -> None:
    """Start the sandbox, unless it is running.

    With --engine docker, endpoints run as containers, using the model's image if it is a local CPU
    image, else the newest CPU image.
    """
    address = start_sandbox(port, engine)
    if as_json:
        print_json({"url": address.url, "pid": address.pid})
        return
    print_line(f"The sandbox is running at {address.url} (process {address.pid}).")
    environment = command_text(("peagle", "sandbox", "env"))
    deploy = command_text(("peagle", "deploy", "tiny", "--sandbox"))
    click.echo(f'To use it in this shell:  eval "$({environment})"')
    click.echo("Then, for example:        aws sagemaker list-endpoints")
    click.echo(f"Or directly:              {deploy}")


@sandbox.command(cls=PeagleCommand, epilog="Example: peagle sandbox stop")
@json_option
def stop(as_json: bool) -> None:
    """Stop the sandbox and its engines, and delete its state."""
    print_small(asdict(stop_sandbox()), as_json)


@sandbox.command(cls=PeagleCommand, epilog="Example: peagle sandbox status --json")
@json_option
def status(as_json: bool) -> None:
    """Show whether the sandbox is running, and its endpoints."""
    sandbox = sandbox_status()
    if as_json:
        print_json(asdict(sandbox))
        return
    if not sandbox.running:
        start, end = (command_text(("peagle", "sandbox", word)) for word in ("start", "stop"))
        print_line("The sandbox is not running. Start it", start)
        if sandbox.leftover_engines:
            left = sandbox.leftover_engines
            print_status(f"The sandbox was killed; engines still running: {left}. End them", end)
            for engine in sandbox.leftovers:
                print_status(f"  {engine.text}")
        return
    print_line(f"The sandbox is running at {sandbox.url} (process {sandbox.pid}).")
    print_documents([asdict(endpoint) for endpoint in sandbox.endpoints], _ENDPOINT)


@sandbox.command(cls=PeagleCommand, epilog='Example: eval "$(peagle sandbox env)"')
@region_option("AWS clients")
@json_option
def env(region: str, as_json: bool) -> None:
    """Print shell commands that point AWS clients to the sandbox.

    Fails if the sandbox is not running.
    """
    address = running_sandbox()
    if address is None:
        raise sandbox_not_running()
    variables = address.environment(region) | _proxy_exception(os.environ)
    if as_json:
        print_json(variables)
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo(f"unset {command_line(conflicting_variables(os.environ))}")


def _proxy_exception(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that exclude the sandbox from the proxy that the environment names, if any."""
    if not any(name.lower() in ("http_proxy", "all_proxy", "https_proxy") for name in environment):
        return {}
    excluded = environment.get("no_proxy") or environment.get("NO_PROXY")
    hosts = f"{excluded},{LOOPBACK}" if excluded else LOOPBACK
    return {"NO_PROXY": hosts, "no_proxy": hosts}
