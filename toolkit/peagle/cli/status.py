"""``peagle status``: the state of one deployment."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import Account, deployment_options
from peagle.cli.context import PeagleCommand, fix_in_context
from peagle.cli.output.console import indented, json_option, print_json, terminal_width
from peagle.cli.output.deploy import engine_text
from peagle.deploy.state import Deployment
from peagle.text import format_price


@click.command(cls=PeagleCommand, epilog="Example: peagle status peagle-tiny --sandbox --json")
@partial(deployment_options, complete=True)
@json_option
def status(aws: Aws, record: Deployment, account: Account, as_json: bool) -> None:
    """Show the deployment NAME: state, measured acceptance, URL, price and resources.

    States are SageMaker's, and three more: Unproved (in service, acceptance not proved),
    Incomplete (deploy was interrupted), Missing (the endpoint was deleted elsewhere).
    """
    document = api.deployment_status(aws, record)
    if as_json:
        return print_json(document)
    click.secho(f"{document['name']}: {document['state']}", bold=True)
    lines = [(label, text) for label, text in _facts(document, account).items() if text]
    lines += [("resource", f"{one['type']} {one['name']}") for one in document["resources"]]
    for label, text in lines:
        click.echo(f"  {label:<14}{indented(text, terminal_width(), 16)}")
    return None


def _price(document: dict[str, Any], account: Account) -> str:
    """Nothing runs of a Missing endpoint, and what it cost last says nothing."""
    if document["state"] == "Missing":
        return ""
    return format_price(document["price_per_hour_usd"], account.sandbox)


def _facts(document: dict[str, Any], account: Account) -> dict[str, str]:
    drafts, length = document["drafts"], document["acceptance_length"]
    where = f"{document['instance_count']} x {document['instance_type']}, {document['region']}"
    if document["state"] in ("InService", "Unproved"):
        running = document["instances_running"]
        where += f", {running} running" if running != document["instance_count"] else ""
    return {
        "pair": document["pair"],
        "stand-in": document["stand_in"] or "",
        "where": where + (", sandbox" if account.sandbox else ""),
        "engine": engine_text(document["vllm"], document["vllm_here"]) if document["vllm"] else "",
        "acceptance": f"{length:.2f} over {drafts} drafts" if length is not None else "",
        "owner": document["owner"] if document["owner"] != "peagle" else "",
        "previous": _previous(document["previous"]),
        "price": _price(document, account),
        "OpenAI URL": document["openai_base_url"] or "",
        "failure": document["failure_reason"] or "",
        "fix": fix_in_context(document["failure_fix"] or "", document["failure_command"]),
    }


def _previous(previous: dict[str, Any] | None) -> str:
    """What ``peagle rollback`` returns to."""
    if previous is None:
        return ""
    speculation = f"K={previous['k']}" if previous["k"] else "no speculation"
    return f"configuration {previous['endpoint_config']}, {speculation}"
