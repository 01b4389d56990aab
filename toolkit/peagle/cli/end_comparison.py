"""What ``peagle promote`` and ``peagle drop`` share: show, ask, end the comparison, report."""

from __future__ import annotations

from collections.abc import Callable

import click

from peagle import api
from peagle.cli.account import Account, find_deployment
from peagle.cli.context import deployment_in_context, in_context
from peagle.cli.options import command_catalog
from peagle.cli.output.comparison import show_end
from peagle.cli.output.console import confirm, print_json, print_line, print_status
from peagle.cli.output.deploy import measured, remaining_resources_shown
from peagle.cli.output.progress import DeploymentProgress
from peagle.deploy.state import Deployment
from peagle.errors import NotProved
from peagle.text import format_price


def end_comparison(
    ctx: click.Context,
    end: Callable[..., Deployment],
    question: str,
    name: str,
    account: Account,
    region: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """End the comparison of the deployment with ``end``, which may raise NotProved; after any other
    error, show what exists."""
    record, aws = find_deployment(account, name, region)
    with api.deployment_lock(*record.key):
        record, aws = find_deployment(account, name, region, complete=True)
        api.require_own(record)
        comparison = api.required_comparison(record)
        show_end(record, comparison, account, end is api.promote)
        if not yes:
            confirm(question, "the comparison goes on")
        unproved: NotProved | None = None
        again = in_context(("peagle", ctx.command.name or "", name))
        remaining = remaining_resources_shown(aws, record, account, again)
        try:
            with remaining, DeploymentProgress(account.sandbox) as status:
                end(aws, record, command_catalog(ctx), status.observe)
        except NotProved as error:
            unproved = error
    record = api.load_record(*record.key) or record
    document = api.deployment_status(aws, record)
    if as_json:
        print_json(deployment_in_context(document))
    elif not unproved:
        print_line(f"{name} is {document['state']}{measured(document)}", bold=True)
        print_line(f"It serves configuration {document['endpoint_config']} alone.")
        price = format_price(document["price_per_hour_usd"], account.sandbox)
        print_status(f"Costs    {price}")
    if unproved:
        raise unproved
