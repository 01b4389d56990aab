"""``peagle sandbox fault`` and ``quota``: rehearse failures of AWS in the sandbox."""

from __future__ import annotations

from dataclasses import asdict

import click

from peagle.catalog import find_instance
from peagle.cli.context import PeagleCommand
from peagle.cli.options import (
    Decimal,
    OneOf,
    WholeNumber,
    command_catalog,
    complete_instance_type,
    region_option,
)
from peagle.cli.view.console import json_option, print_small
from peagle.sandbox.faults import DEFAULT_SECONDS, KINDS, operation_names

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


def _complete_kind(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(typed)]


def _complete_operation(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    return [name for name in sorted(set(operation_names())) if name.startswith(typed)]


@click.group(epilog="Example: peagle sandbox fault add CreateEndpoint insufficient-capacity")
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
@click.argument("kind", metavar="KIND", type=OneOf(list(KINDS)), shell_complete=_complete_kind)
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
    type=Decimal("a number of seconds of 0 or more, such as 90", min=0),
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
    from peagle.sandbox.client import add_fault

    if instance_type:
        find_instance(command_catalog(ctx).instances, instance_type)
    print_small(asdict(add_fault(operation, kind, times, instance_type, seconds)), as_json)


@fault.command("list", cls=PeagleCommand, epilog="Example: peagle sandbox fault list --json")
@json_option
def list_(as_json: bool) -> None:
    """List the faults, and how many calls each has met."""
    from peagle.sandbox.client import list_faults

    print_small([asdict(fault) for fault in list_faults()], as_json)


@fault.command(cls=PeagleCommand, epilog="Example: peagle sandbox fault clear CreateEndpoint")
@click.argument("operation", required=False, shell_complete=_complete_operation)
@json_option
def clear(operation: str | None, as_json: bool) -> None:
    """Remove the faults of OPERATION, or all. Endpoints that are stuck go on."""
    from peagle.sandbox.client import clear_faults

    print_small({"removed": clear_faults(operation)}, as_json)


@click.group(epilog="Example: peagle sandbox quota set ml.g6e.2xlarge 0")
def quota() -> None:
    """Set how many instances the sandbox's account may have."""


@quota.command("set", cls=PeagleCommand, epilog="Example: peagle sandbox quota set ml.g5.xlarge 0")
@click.argument("instance_type", metavar="TYPE", shell_complete=complete_instance_type)
@click.argument("value", type=WholeNumber(min=0))
@region_option("the quota")
@json_option
def set_(instance_type: str, value: int, region: str, as_json: bool) -> None:
    """Allow VALUE instances of TYPE for all endpoints of a region together."""
    from peagle.sandbox.client import set_quota

    set_quota(instance_type, value, region)
    changed = {"instance_type": instance_type, "region": region, "value": value}
    print_small(changed, as_json)


@quota.command("list", cls=PeagleCommand, epilog="Example: peagle sandbox quota list --json")
@json_option
def list_quotas(as_json: bool) -> None:
    """List the quotas that were set; every other is 2."""
    from peagle.sandbox.client import changed_quotas

    print_small(changed_quotas(), as_json)


@click.command(cls=PeagleCommand, epilog="Example: peagle sandbox scaling --speed 100")
@click.option(
    "--speed",
    type=Decimal("a factor from 1 to 1000, such as 100", min=1, max=1000),
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
    from peagle.sandbox.client import set_scaling_speed

    set_scaling_speed(speed)
    print_small({"speed": speed}, as_json)
