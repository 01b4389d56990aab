"""``peagle destroy --images``: remove what ``peagle image`` made in the account.

``peagle destroy``: remove everything that deploy made, and nothing else.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches

import click

from peagle.aws import image_records as images
from peagle.aws.client import Aws
from peagle.cli.account import (
    DEFAULT_REGION,
    Account,
    cloud_options,
    complete_name,
    find_deployment,
)
from peagle.cli.context import PeagleCommand
from peagle.cli.output.console import json_option, print_json, say
from peagle.cli.output.deploy import show_left
from peagle.cli.output.progress import Ticker
from peagle.deploy import state as records
from peagle.deploy.context import Work
from peagle.deploy.destroy import destroy as remove_all
from peagle.deploy.state import SANDBOX, Deployment, Resource
from peagle.deploy.status import usd_per_hour
from peagle.errors import NotFound, PeagleError, UserError
from peagle.text import price_words


def destroy_images(account: Account, region: str | None, yes: bool, as_json: bool) -> None:
    """Repositories with their images, CodeBuild's projects and roles, build contexts.

    Raises UserError when there is nobody to ask.
    """
    aws = account.connect(region or DEFAULT_REGION)
    found = images.resources(aws)
    if found and not yes:
        for made in found:
            say(f"  {made.kind} {made.name}")
        if not sys.stdin.isatty():
            raise UserError("there is no terminal to ask on", "add --yes")
        if not click.confirm(f"Remove all this in {aws.region}, images included?", err=True):
            raise UserError("nothing was removed")
    removed = images.remove_all(aws, say)
    if as_json:
        print_json({"removed": [{"type": made.kind, "name": made.name} for made in removed]})
    elif not removed:
        say(f"Nothing to remove: `peagle image` made nothing in {aws.region}.")


Resources = tuple[Resource, ...]

_ALIKE = 0.8
"""Names at least this much alike (difflib's ratio) are taken for misspelt ones."""


@click.command(cls=PeagleCommand, epilog="Example: peagle destroy peagle-gpt-oss-20b --yes")
@click.argument("name", required=False, shell_complete=complete_name)
@cloud_options
@click.option("--images", is_flag=True, help="Remove what `peagle image` made, images included.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def destroy(
    account: Account,
    name: str | None,
    region: str | None,
    images: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove the endpoint NAME and all that deploy made for it; or, with --images, what
    `peagle image` made in the account.

    Works also after a deploy that failed or was interrupted. May be repeated: where this machine
    knows of nothing by that name, nor by one much like it, there is nothing to remove. The log
    stays in CloudWatch.
    """
    if images:
        if name:
            raise UserError("--images is about all images", "leave out the name, or --images")
        return destroy_images(account, region, yes, as_json)
    if name is None:
        raise UserError("which one?", "give a NAME (see `peagle list`), or --images")
    try:
        record, aws = find_deployment(account, name, region)
    except NotFound:
        if _may_be_meant(name, account):
            raise
        say(f"Nothing to remove: this machine has no record of {name}{_place(account)}.")
        return _report(name, (), (), as_json)
    if not yes:
        _ask(record, account)
    removed, kept = _remove(aws, record, account)
    return _report(name, removed, kept, as_json)


def _may_be_meant(name: str, account: Account) -> bool:
    """Whether a deployment is known whose name is nearly this one, or this one elsewhere."""
    here = records.names(account.scope) if account.is_there else ()
    elsewhere = records.names(None if account.sandbox else SANDBOX)
    near = get_close_matches(name, here, n=1, cutoff=_ALIKE)
    return bool(near) or name in here or name in elsewhere


def _place(account: Account) -> str:
    if account.is_there:
        return " in the sandbox" if account.sandbox else ""
    return ", and the sandbox does not run"


def _remove(aws: Aws, record: Deployment, account: Account) -> tuple[Resources, Resources]:
    """Remove all; whatever ends it early, say what is left."""
    place = (record.scope, record.region, record.name)
    with records.held(*place):
        try:
            with Ticker(account.sandbox) as ticker:
                fresh = records.load(*place) or record
                return remove_all(Work(aws, fresh, ticker.show))
        except (PeagleError, KeyboardInterrupt):
            left = records.load(*place)
            if left:
                show_left(left, account, f"peagle destroy {record.name}{account.option}")
            raise


def _report(name: str, removed: Resources, kept: Resources, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "name": name,
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
        raise UserError("there is no terminal to ask on", "add --yes")
    if not click.confirm("Remove all this?", err=True):
        raise UserError("nothing was removed")
