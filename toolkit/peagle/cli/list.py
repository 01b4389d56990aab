"""``peagle list``: what deploy made, as it is now."""

from __future__ import annotations

from typing import Any

import click

from peagle.aws import sagemaker as endpoints
from peagle.aws.client import Aws
from peagle.cli.account import DEFAULT_REGION, Account, cloud_options
from peagle.cli.context import PeagleCommand
from peagle.cli.output.columns import WIDE, aligned, fitted, left_out, room
from peagle.cli.output.console import json_option, print_json, say
from peagle.deploy import state as records
from peagle.deploy import status
from peagle.deploy.state import SANDBOX, Deployment

_COLUMNS = ("NAME", "STATE", "REGION", "USD/HOUR", "ACCEPTANCE", "PAIR")
_NUMBERS = ("USD/HOUR", "ACCEPTANCE")
_DISPENSABLE = ("PAIR", "REGION", "ACCEPTANCE")
"""Columns that go where the terminal is too narrow, in this order."""


@click.command("list", cls=PeagleCommand, epilog="Example: peagle list --json")
@cloud_options
@json_option
def listing(account: Account, region: str | None, as_json: bool) -> None:
    """List the deployments of this machine in the account, in all regions or in --region."""
    found = _deployments(account, region)
    if as_json:
        print_json({"deployments": found})
    elif not found:
        if not account.is_there:
            say("The sandbox does not run, so nothing is deployed in it.")
            return
        others = () if account.sandbox else records.names(SANDBOX)
        hint = f" (in the sandbox: {', '.join(others)}; see them with --sandbox)" if others else ""
        say(f"Nothing is deployed{hint}.")
    else:
        _print(found)


def _deployments(account: Account, region: str | None) -> list[dict[str, Any]]:
    """Nobody is asked where nothing is written down."""
    if not account.is_there or not records.names(account.scope):
        return []
    aws = account.connect(region or DEFAULT_REGION)
    kept = records.all_records(aws.scope)
    return [_row(aws.in_region(r.region), r) for r in kept if region in (None, r.region)]


def _row(aws: Aws, record: Deployment) -> dict[str, Any]:
    live = endpoints.describe(aws, record.name)
    generation = status.shown_generation(record, live)
    proof = generation.proof
    return {
        "name": record.name,
        "state": status.state_of(record, live),
        "region": record.region,
        "pair": generation.plan.pair,
        "price_per_hour_usd": status.usd_per_hour(record),
        "acceptance_length": proof.acceptance_length if proof else None,
        "speculation": generation.plan.speculation is not None,
        "stand_in": status.told_by_sandbox(aws, live).stand_in,
    }


def _print(found: list[dict[str, Any]]) -> None:
    rows, gone = fitted([_COLUMNS, *map(_cells, found)], room(WIDE), _DISPENSABLE)
    for line in aligned(rows, _NUMBERS):
        click.echo(line)
    if gone:
        say(left_out(gone))
    for stand_in in sorted({row["stand_in"] for row in found if row["stand_in"]}):
        click.echo(f"* of {stand_in}, which stands in for a pair that this machine cannot run")


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
