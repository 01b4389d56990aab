"""``peagle list``: the deployments of this machine."""

from __future__ import annotations

from typing import Any

import click

from peagle import api
from peagle.cli.account import Account, cloud_options
from peagle.cli.context import PeagleCommand
from peagle.cli.output.console import (
    align_columns,
    fit_columns,
    hidden_columns,
    json_option,
    print_json,
    print_status,
    terminal_width,
)
from peagle.planning.runtime import DEFAULT_REGION
from peagle.store import SANDBOX

_COLUMNS = ("NAME", "STATE", "REGION", "USD/HOUR", "ACCEPTANCE", "PAIR")
_NUMBERS = ("USD/HOUR", "ACCEPTANCE")
_DISPENSABLE = ("PAIR", "REGION", "ACCEPTANCE")
"""Columns to drop on a narrow terminal, in this order."""


@click.command("list", cls=PeagleCommand, epilog="Example: peagle list --json")
@cloud_options
@json_option
def list_deployments(account: Account, region: str | None, as_json: bool) -> None:
    """List this machine's deployments in the account, in all regions or in --region."""
    found: list[dict[str, Any]] = []
    if account.is_available and api.deployment_names(account.scope):  # else AWS is not called
        found = api.list_deployments(account.connect(region or DEFAULT_REGION), region)
    if as_json:
        print_json({"deployments": found})
    elif found:
        _print(found)
    elif not account.is_available:
        print_status("The sandbox is not running, so nothing is deployed in it.")
    else:
        others = () if account.sandbox else api.deployment_names(SANDBOX)
        hint = f" (in the sandbox: {', '.join(others)}; see them with --sandbox)" if others else ""
        print_status(f"No deployments{hint}.")


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
    price, length = row["price_per_hour_usd"], row["acceptance_length"]
    return (
        row["name"],
        row["state"],
        row["region"],
        "?" if price is None else f"{price:,.2f}",
        "-" if length is None else f"{length:.2f}{'*' if row['stand_in'] else ' '}",
        row["pair"],
    )
