"""``peagle destroy``: remove everything that deploy made, and nothing else."""

from __future__ import annotations

import sys

import click

from toolkit.aws import records
from toolkit.aws.destruction import destroy as remove_all
from toolkit.aws.records import Deployment
from toolkit.aws.session import Aws
from toolkit.aws.status import usd_per_hour
from toolkit.aws.work import Work
from toolkit.cli.cloud import Account, deployment_options
from toolkit.cli.console import json_option, print_json, say
from toolkit.cli.money import price_words
from toolkit.cli.progress import Ticker
from toolkit.errors import UserError


@click.command(epilog="Example: peagle destroy peagle-gpt-oss-20b --yes")
@deployment_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def destroy(aws: Aws, record: Deployment, account: Account, yes: bool, as_json: bool) -> None:
    """Remove the endpoint NAME and all that deploy made for it.

    Works also after a deploy that failed or was interrupted, and may be repeated. The log stays
    in CloudWatch.
    """
    if not yes:
        _ask(record, account)
    with records.held(record.scope, record.region, record.name), Ticker(account.sandbox) as ticker:
        fresh = records.load(record.scope, record.region, record.name) or record
        removed, kept = remove_all(Work(aws, fresh, ticker.show))
    if as_json:
        print_json(
            {
                "name": record.name,
                "removed": [{"type": r.type, "name": r.name} for r in removed],
                "kept": [{"type": r.type, "name": r.name} for r in kept],
            }
        )
        return
    for resource in removed:
        click.echo(f"removed {resource.type} {resource.name}")
    for resource in kept:
        click.echo(f"kept {resource.type} {resource.name}: not ours alone")


def _ask(record: Deployment, account: Account) -> None:
    say(f"{record.name} in {record.region}{', sandbox' if account.sandbox else ''}:")
    for resource in record.resources:
        say(f"  {resource.type} {resource.name}")
    say(f"It costs {price_words(usd_per_hour(record), account.sandbox)}.")
    if not sys.stdin.isatty():
        raise UserError("nobody is there to be asked", "add --yes")
    if not click.confirm("Remove all this?", err=True):
        raise UserError("nothing was removed")
