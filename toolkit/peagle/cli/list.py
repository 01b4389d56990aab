"""``peagle list``: the deployments of the account."""

from __future__ import annotations

from typing import Any

import click

from peagle import api
from peagle.cli.account import Account, cloud_options, default_region
from peagle.cli.context import PeagleCommand
from peagle.cli.options import command_catalog
from peagle.cli.output.console import (
    align_columns,
    fit_columns,
    hidden_columns,
    json_option,
    print_json,
    print_status,
    terminal_width,
)
from peagle.deploy.status import Listing
from peagle.errors import UserError
from peagle.sandbox.client import SANDBOX_KILLED
from peagle.store import SANDBOX

_COLUMNS = ("NAME", "STATE", "REGION", "USD/HOUR", "ACCEPTANCE", "PAIR")
_NUMBERS = ("USD/HOUR", "ACCEPTANCE")
_DISPENSABLE = ("PAIR", "REGION", "ACCEPTANCE")
"""Columns to drop on a narrow terminal, in this order."""


@click.command("list", cls=PeagleCommand, epilog="Example: peagle list --json")
@cloud_options
@json_option
@click.pass_context
def list_deployments(
    ctx: click.Context, account: Account, region: str | None, as_json: bool
) -> None:
    """List the deployments of the account, whichever machine or template made them.

    Looks in --region; without the option, in your default region and in those of this machine's
    deployments.
    """
    found = Listing((), ())
    unreachable = ""
    if account.is_available:
        try:
            found = _listing(ctx, account, region)
        except UserError as error:  # without credentials, what this machine knows is still shown
            if api.deployment_names(account.scope):
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
        print_json({"deployments": list(found.rows), "complete": complete})
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
    rows, dropped = fit_columns(table, terminal_width(), _DISPENSABLE)
    for line in align_columns(rows, _NUMBERS):
        click.echo(line)
    if dropped:
        print_status(hidden_columns(dropped))
    for stand_in in sorted({row["stand_in"] for row in found if row["stand_in"]}):
        click.echo(f"*: measured on {stand_in}, a stand-in for a pair that this machine cannot run")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    length = row["acceptance_length"]
    return (
        row["name"],
        row["state"],
        row["region"],
        _price(row),
        "-" if length is None else f"{length:.2f}{'*' if row['stand_in'] else ' '}",
        row["pair"],
    )


def _price(row: dict[str, Any]) -> str:
    if row["state"] == "Missing":
        return "-"
    price = row["price_per_hour_usd"]
    return "?" if price is None else f"{price:,.2f}"
