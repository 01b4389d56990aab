"""``peagle destroy --images``: remove what ``peagle image`` made in the account."""

from __future__ import annotations

import sys

import click

from toolkit.aws import images
from toolkit.cli.cloud import DEFAULT_REGION, Account
from toolkit.cli.console import print_json, say
from toolkit.errors import UserError


def destroy_images(account: Account, region: str | None, yes: bool, as_json: bool) -> None:
    """Repositories with their images, CodeBuild's projects and roles, build contexts.

    Raises UserError when there is nobody to ask.
    """
    aws = account.connect(region or DEFAULT_REGION)
    found = images.listed(aws)
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
