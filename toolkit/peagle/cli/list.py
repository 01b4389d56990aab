"""``peagle list``: the deployments of the account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from peagle import api
from peagle.cli.account import Account, cloud_options, default_region
from peagle.cli.context import PeagleCommand, command_text
from peagle.cli.options import command_catalog
from peagle.cli.output.console import (
    Row,
    align_columns,
    fit_columns,
    hidden_columns,
    json_option,
    print_json,
    print_line,
    print_status,
    table_width,
    terminal_width,
)
from peagle.deploy.status import GONE, Listing
from peagle.errors import UserError
from peagle.sandbox.client import SANDBOX_KILLED
from peagle.store import SANDBOX
from peagle.text import counted, format_duration

_COLUMNS = ("NAME", "STATE", "REGION", "INSTANCES", "USD/HOUR", "USD/DAY", "USD SO FAR", "ENDS IN",
            "ACCEPTANCE", "PAIR")  # fmt: skip
_NUMBERS = ("USD/HOUR", "USD/DAY", "USD SO FAR", "ENDS IN", "ACCEPTANCE")
_DISPENSABLE = ("PAIR", "REGION", "INSTANCES", "ACCEPTANCE", "USD/HOUR")
"""Columns to drop on a narrow terminal, in this order."""

_ENDS = _COLUMNS.index("ENDS IN")
"""Shown only if a deployment has an end."""


@click.command("list", cls=PeagleCommand, epilog="Example: peagle list --json")
@cloud_options
@json_option
@click.pass_context
def list_deployments(
    ctx: click.Context, account: Account, region: str | None, as_json: bool
) -> None:
    """List the deployments of the account, whichever machine or template made them.

    Looks in --region; without the option, in your default region and in those of this machine's
    deployments. USD SO FAR is the cost since the endpoint was requested: of what this machine's
    commands have started, or "about" where scaling, another machine or another client has changed
    it, at the price of what runs now. --ttl and --budget of deploy make it end.
    """
    found = Listing((), ())
    unreachable = ""
    if account.is_available:
        try:
            found = _listing(ctx, account, region)
        except UserError as error:  # without credentials, what this machine knows is still shown
            is_mistyped = account.profile is not None and error.code == "unknown-profile"
            if is_mistyped or api.deployment_names(account.scope):
                raise
            unreachable = f" on this machine; the account is unknown: {error.message}"
    elif (stopped := api.sandbox_not_running()).code == SANDBOX_KILLED:
        raise stopped
    for damaged in found.damaged:
        print_status(f"{damaged.message} ({damaged.fix})")
    for denied in found.unknown:
        print_status(f"Only this machine's deployments: {denied.message} ({denied.fix})")
    if as_json:
        complete = not (found.unknown or found.damaged or unreachable)
        document: dict[str, Any] = {"deployments": list(found.rows), "complete": complete}
        if found.damaged:
            document["damaged"] = [damaged.document() for damaged in found.damaged]
        print_json(document)
    elif found.rows:
        _print(list(found.rows))
    elif not account.is_available:
        print_status("The sandbox is not running, so nothing is deployed in it.")
    else:
        others = () if account.sandbox else api.deployment_names(SANDBOX)
        hint = f" (in the sandbox: {', '.join(others)}; see them with --sandbox)" if others else ""
        print_status(f"No deployments{unreachable}{hint}.")


def _listing(ctx: click.Context, account: Account, region: str | None) -> Listing:
    aws = account.connect(region or default_region())
    regions = {region} if region else {aws.region, *api.deployment_regions(aws.scope)}
    return api.list_deployments(aws, sorted(regions), lambda: command_catalog(ctx).instances)


def _print(found: list[dict[str, Any]]) -> None:
    table = [_COLUMNS, *map(_cells, found)]
    if all(row["ends_at"] is None for row in found):
        table = [(*row[:_ENDS], *row[_ENDS + 1 :]) for row in table]
    rows, dropped = fit_columns(table, terminal_width(), _DISPENSABLE)
    click.echo("\n".join(_lines(rows)))
    if dropped:
        print_status(hidden_columns(dropped))
    for row in found:
        if row["compared_share"] is not None:
            print_status(
                f"{row['name']} compares two plans, the second with {row['compared_share']:.1%} of "
                "the requests",
                command_text(("peagle", "compare", row["name"])),
            )
    for stand_in in sorted({row["stand_in"] for row in found if row["stand_in"]}):
        print_line(f"*: measured on {stand_in}, a stand-in for a pair that this machine cannot run")


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    """The table, or, where names are too long for that, each name above its other columns."""
    if table_width(rows) <= terminal_width():
        yield from align_columns(rows, _NUMBERS)
        return
    heading, *others = align_columns([row[1:] for row in rows], _NUMBERS)
    yield f"{rows[0][0]}\n  {heading}"
    for row, line in zip(rows[1:], others, strict=True):
        yield f"{row[0]}\n  {line}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    length = row["acceptance_length"]
    return (
        row["name"],
        row["state"],
        row["region"],
        _instances(row),
        _usd(row, "price_per_hour_usd"),
        _usd(row, "price_per_day_usd"),
        _so_far(row),
        _left(row),
        "-" if length is None else f"{length:.2f}{'*' if row['stand_in'] else ' '}",
        row["pair"],
    )


def _instances(row: dict[str, Any]) -> str:
    """``2``, or with the bounds of automatic scaling ``2 (1-4)``, ``1 (0-4 copies)``."""
    running = str(row["instances_running"])
    if row["max_copies"] is not None:
        copies = counted(row["max_copies"], copies=True)
        return f"{running} ({row['min_copies']}-{row['max_copies']} {copies})"
    if row["max_instances"] is None:
        return running
    return f"{running} ({row['min_instances']}-{row['max_instances']})"


def _usd(row: dict[str, Any], key: str) -> str:
    """Nothing runs of an endpoint that is gone; its cost so far remains."""
    usd = row[key]
    if usd is None:
        return "-" if row["state"] in GONE else "?"
    return f"{usd:,.2f}"


def _so_far(row: dict[str, Any]) -> str:
    usd = _usd(row, "cost_so_far_usd")
    return f"about {usd}" if row["cost_so_far_usd"] else usd


def _left(row: dict[str, Any]) -> str:
    if row["ends_at"] is None:
        return "-"
    return format_duration(row["seconds_left"]) if row["seconds_left"] else "ended"
