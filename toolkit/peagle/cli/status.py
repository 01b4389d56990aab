"""``peagle status``: the state of one deployment."""

from __future__ import annotations

from typing import Any

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import Account, deployment_options
from peagle.cli.context import PeagleCommand, fix_in_context
from peagle.cli.output.columns import WIDE, folded, room
from peagle.cli.output.console import json_option, print_json
from peagle.cli.output.deploy import engine_text
from peagle.deploy.state import Deployment
from peagle.text import format_price


@click.command(cls=PeagleCommand, epilog="Example: peagle status peagle-tiny --sandbox --json")
@deployment_options
@json_option
def status(aws: Aws, record: Deployment, account: Account, as_json: bool) -> None:
    """Show the deployment NAME: state, measured acceptance, URL, price and resources.

    States are SageMaker's, and three more: Unproved (in service, acceptance not proved),
    Incomplete (deploy was interrupted), Missing (the endpoint was deleted elsewhere).
    """
    document = api.deployment_status(aws, record)
    if as_json:
        print_json(document)
    else:
        _print(document, account)


def _print(document: dict[str, Any], account: Account) -> None:
    click.secho(f"{document['name']}: {document['state']}", bold=True)
    for label, text in _lines(document, account).items():
        if text:
            click.echo(f"  {label:<14}{folded(text, room(WIDE), 16)}")
    for resource in document["resources"]:
        made = folded(f"{resource['type']} {resource['name']}", room(WIDE), 16)
        click.echo(f"  {'resource':<14}{made}")


def _lines(document: dict[str, Any], account: Account) -> dict[str, str]:
    drafts, length = document["drafts"], document["acceptance_length"]
    measured = f"{length:.2f} over {drafts} drafts" if length is not None else ""
    where = f"{document['instance_count']} x {document['instance_type']}, {document['region']}"
    return {
        "pair": document["pair"],
        "stand-in": document["stand_in"] or "",
        "where": where + (", sandbox" if account.sandbox else ""),
        "engine": engine_text(document["vllm"], document["vllm_here"]),
        "acceptance": measured,
        "price": format_price(document["price_per_hour_usd"], account.sandbox),
        "OpenAI URL": document["openai_base_url"],
        "failure": document["failure_reason"] or "",
        "fix": fix_in_context(document["failure_fix"] or "", document["failure_command"]),
    }
