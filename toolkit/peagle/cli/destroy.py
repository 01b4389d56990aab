"""``peagle destroy``: remove exactly what ``peagle deploy`` or ``peagle image`` created."""

from __future__ import annotations

from difflib import get_close_matches

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import (
    NOT_SEARCHED,
    Account,
    cloud_options,
    complete_name,
    default_region,
    find_deployment,
)
from peagle.cli.context import PeagleCommand, command_text
from peagle.cli.options import yes_option
from peagle.cli.output.console import confirm, json_option, print_json, print_status
from peagle.cli.output.deploy import show_remaining_resources
from peagle.cli.output.progress import DeploymentProgress
from peagle.deploy.state import Deployment, Resource
from peagle.errors import Fix, NotFound, PeagleError, UserError
from peagle.planning.runtime import DEFAULT_REGION
from peagle.store import SANDBOX
from peagle.text import format_price

Resources = tuple[Resource, ...]

_ALIKE = 0.8
"""Names at least this similar (difflib's ratio) are taken for misspelled ones."""


@click.command(
    cls=PeagleCommand,
    epilog="""\b
Examples:
  peagle destroy peagle-gpt-oss-20b --yes
  peagle destroy --images
""",
)
@click.argument("name", required=False, shell_complete=complete_name)
@cloud_options
@click.option("--images", is_flag=True, help="Remove what `peagle image` created, with the images.")
@yes_option
@json_option
def destroy(
    account: Account,
    name: str | None,
    region: str | None,
    images: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete the endpoint NAME and everything that deploy created for it; or, with --images, what
    `peagle image` created in the account.

    Also cleans up after a deploy that failed or was interrupted, and may be repeated. An unknown
    name is not an error unless it resembles a known one. The log stays in CloudWatch.
    """
    if images:
        if name:
            raise UserError("NAME and --images are mutually exclusive", "omit one of them")
        _destroy_images(account, region, yes, as_json)
        return
    if name is None:
        raise UserError(
            "NAME or --images is required", Fix("list the deployments", ("peagle", "list"))
        )
    try:
        record, aws = find_deployment(account, name, region)
    except NotFound as unknown:
        if unknown.code == NOT_SEARCHED or _is_misspelled(name, account):
            raise
        print_status(f"Nothing to remove: {_nowhere(name, account, region)}.")
        _report(name, (), (), as_json)
        return
    api.require_own(record)
    if not yes:
        print_status(f"{record.name} in {record.region}{', sandbox' if account.sandbox else ''}:")
        for resource in record.resources:
            print_status(f"  {resource.type} {resource.name}")
        print_status(
            f"Current cost: {format_price(api.cost_of_remaining(aws, record), account.sandbox)}."
        )
        confirm("Remove all of these?", "not removed")
    removed, kept = _remove(aws, record, account)
    _report(name, removed, kept, as_json)


def _nowhere(name: str, account: Account, region: str | None) -> str:
    if not account.is_available:
        return f"the sandbox is not running, and this machine has no record of {name} in it"
    where = "the sandbox" if account.sandbox else f"{region or default_region()}"
    return f"neither this machine nor the tags in {where} know {name}"


def _destroy_images(account: Account, region: str | None, yes: bool, as_json: bool) -> None:
    """Remove repositories with their images, CodeBuild projects and roles, and build contexts."""
    aws = account.connect(region or DEFAULT_REGION)
    found = api.image_resources(aws)
    if found and not yes:
        for made in found:
            print_status(f"  {made.kind} {made.name}")
        confirm(f"Remove all of these in {aws.region}, including the images?", "not removed")
    removed = api.remove_image_resources(aws, print_status)
    if as_json:
        print_json({"removed": [{"type": made.kind, "name": made.name} for made in removed]})
    elif not removed:
        print_status(
            f"Nothing to remove: no image of this toolkit, nor what builds it, is in {aws.region}."
        )


def _is_misspelled(name: str, account: Account) -> bool:
    """Whether a similar name is known here, or this one elsewhere."""
    here = api.deployment_names(account.scope) if account.is_available else ()
    elsewhere = api.deployment_names(None if account.sandbox else SANDBOX)
    near = get_close_matches(name, here, n=1, cutoff=_ALIKE)
    return bool(near) or name in here or name in elsewhere


def _remove(aws: Aws, record: Deployment, account: Account) -> tuple[Resources, Resources]:
    """Remove everything; if something ends it early, show what exists."""
    place = (record.scope, record.region, record.name)
    with api.deployment_lock(*place):
        try:
            with DeploymentProgress(account.sandbox) as status:
                latest = api.load_record(*place) or record
                return api.destroy(aws, latest, status.observe)
        except (PeagleError, KeyboardInterrupt):
            left = api.load_record(*place)
            if left:
                again = command_text(("peagle", "destroy", record.name))
                cost = api.cost_of_remaining(aws, left)
                show_remaining_resources(left, cost, account, again)
            raise


def _report(name: str, removed: Resources, kept: Resources, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "removed": _documents(removed), "kept": _documents(kept)})
        return
    for resource in removed:
        click.echo(f"removed {resource.type} {resource.name}")
    for resource in kept:
        click.echo(f"kept {resource.type} {resource.name}: in use by others")


def _documents(resources: Resources) -> list[dict[str, str]]:
    return [{"type": resource.type, "name": resource.name} for resource in resources]
