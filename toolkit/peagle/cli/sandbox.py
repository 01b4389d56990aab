"""``peagle sandbox``: AWS on this machine, and failures of it to rehearse."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict

import click

from peagle.catalog import find_instance
from peagle.cli.context import PeagleCommand, command_text
from peagle.cli.options import (
    Decimal,
    command_catalog,
    complete_instance_type,
    region_option,
)
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
    add_fault,
    changed_quotas,
    clear_faults,
    conflicting_variables,
    list_faults,
    running_sandbox,
    sandbox_not_running,
    sandbox_status,
    set_quota,
    set_scaling_speed,
    start_sandbox,
    stop_sandbox,
)
from peagle.sandbox.faults import DEFAULT_SECONDS, KINDS, operation_names
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


_ADD_HELP = """Let OPERATION fail from now on.

OPERATION is a name of the AWS API, such as CreateEndpoint, or s3:PutObject where several services
have it. Kinds:

\b
""" + "\n".join(f"{kind:<24}{what}" for kind, what in KINDS.items())


def _times(_: click.Context, parameter: click.Parameter, value: str) -> int | None:
    """``once``, ``always`` (``None``) or a number of calls."""
    if value in ("once", "always"):
        return 1 if value == "once" else None
    if not value.isdecimal() or len(value) > 9 or int(value) < 1:
        raise click.BadParameter(f"{value!r} is not once, always or a number above 0")
    return int(value)


def _complete_operation(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    return [name for name in sorted(set(operation_names())) if name.startswith(typed)]


@sandbox.group(epilog="Example: peagle sandbox fault add CreateEndpoint insufficient-capacity")
def fault() -> None:
    """Let AWS operations and endpoints fail in the sandbox.

    Shows what a command does when AWS denies access, has no capacity or does not answer.
    """


@fault.command(
    cls=PeagleCommand,
    help=_ADD_HELP,
    epilog="Example: peagle sandbox fault add CreateEndpoint insufficient-capacity",
)
@click.argument("operation", shell_complete=_complete_operation)
@click.argument("kind", metavar="KIND", type=click.Choice(list(KINDS)))
@click.option(
    "--times",
    metavar="once|always|N",
    default="always",
    callback=_times,
    help="How many calls fail.  [default: always]",
)
@click.option(
    "--instance-type",
    metavar="TYPE",
    shell_complete=complete_instance_type,
    help="Only endpoints with this instance type.",
)
@click.option(
    "--seconds",
    type=Decimal(min=0),
    default=DEFAULT_SECONDS,
    help=f"Delay of a timeout.  [default: {DEFAULT_SECONDS:.0f}]",
)
@json_option
@click.pass_context
def add(
    ctx: click.Context,
    operation: str,
    kind: str,
    times: int | None,
    instance_type: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    if instance_type:
        find_instance(command_catalog(ctx).instances, instance_type)
    print_small(asdict(add_fault(operation, kind, times, instance_type, seconds)), as_json)


@fault.command("list", cls=PeagleCommand, epilog="Example: peagle sandbox fault list --json")
@json_option
def list_(as_json: bool) -> None:
    """List the faults, and how many calls each has met."""
    print_small([asdict(fault) for fault in list_faults()], as_json)


@fault.command(cls=PeagleCommand, epilog="Example: peagle sandbox fault clear CreateEndpoint")
@click.argument("operation", required=False, shell_complete=_complete_operation)
@json_option
def clear(operation: str | None, as_json: bool) -> None:
    """Remove the faults of OPERATION, or all. Endpoints that are stuck go on."""
    print_small({"removed": clear_faults(operation)}, as_json)


@sandbox.group(epilog="Example: peagle sandbox quota set ml.g6e.2xlarge 0")
def quota() -> None:
    """Set how many instances the sandbox's account may have."""


@quota.command("set", cls=PeagleCommand, epilog="Example: peagle sandbox quota set ml.g5.xlarge 0")
@click.argument("instance_type", metavar="TYPE", shell_complete=complete_instance_type)
@click.argument("value", type=click.IntRange(min=0))
@region_option("the quota")
@json_option
def set_(instance_type: str, value: int, region: str, as_json: bool) -> None:
    """Allow VALUE instances of TYPE for all endpoints of a region together."""
    set_quota(instance_type, value, region)
    changed = {"instance_type": instance_type, "region": region, "value": value}
    print_small(changed, as_json)


@quota.command("list", cls=PeagleCommand, epilog="Example: peagle sandbox quota list --json")
@json_option
def list_quotas(as_json: bool) -> None:
    """List the quotas that were set; every other is 2."""
    print_small([asdict(quota) for quota in changed_quotas()], as_json)


@sandbox.command(cls=PeagleCommand, epilog="Example: peagle sandbox scaling --speed 100")
@click.option(
    "--speed",
    type=Decimal(min=1, max=1000),
    required=True,
    metavar="N",
    help="How many seconds pass in one; 1 is AWS's time.",
)
@json_option
def scaling(speed: float, as_json: bool) -> None:
    """Let the times of automatic scaling pass faster.

    As on AWS, an instance starts after 30 s above the target, and ends after 15 minutes below it
    and the cooldown.
    """
    set_scaling_speed(speed)
    print_small({"speed": speed}, as_json)
