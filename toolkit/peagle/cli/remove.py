"""``peagle destroy`` and ``peagle reap``: remove exactly what was created."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from typing import Any

import click

from peagle.account import Change, default_region, remove_with_leftovers
from peagle.aws.client import Aws
from peagle.aws.ecr import image_resources, remove_image_resources
from peagle.aws.errors import AccessDenied
from peagle.aws.regions import hosting_regions
from peagle.cli.context import PeagleCommand, command_text, in_context
from peagle.cli.options import yes_option
from peagle.cli.session import NOT_SEARCHED, Session, account_options, deployment_command
from peagle.cli.view.console import confirm, json_option, print_json, print_line, print_status
from peagle.deploy.apply import remove_previous
from peagle.deploy.records import deployment_names
from peagle.deploy.removal import Ended, Leftover, find_ended, find_leftovers, remove_leftover
from peagle.deploy.removal import reap as remove_ended
from peagle.deploy.revisions import require_own, stale_resources
from peagle.deploy.state import Resource
from peagle.deploy.status import cost_of_remaining, endpoint_created
from peagle.errors import CloudError, Fix, NotFound, OptionMissing, OptionsConflict, Refused
from peagle.planning.runtime import DEFAULT_REGION
from peagle.sandbox.client import SANDBOX_KILLED, sandbox_not_running
from peagle.store import SANDBOX
from peagle.text import format_price

_ALIKE = 0.8
"""Names at least this similar (difflib's ratio) are taken for misspelled ones."""


@deployment_command(
    "peagle destroy peagle-gpt-oss-20b --yes",
    "peagle destroy --images",
    yes=True,
    instead=("images",),
    implicit=False,
)
@click.option("--images", is_flag=True, help="Remove what `peagle image` created, with the images.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also remove the log, scaling targets and alarms, and what a template left.",
)
@click.option(
    "--previous",
    is_flag=True,
    help="Remove only what the previous revision needs, which then cannot be returned to.",
)
def destroy(
    session: Session,
    name: str | None,
    images: bool,
    everything: bool,
    previous: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete the endpoint NAME and everything that deploy created for it; or, with --images, what
    `peagle image` created in the account.

    Also cleans up after a deploy that failed or was interrupted, and may be repeated. An unknown
    name is not an error unless it resembles a known one. Without --all, the log stays.
    """
    if images:
        if name or previous:
            raise OptionsConflict(
                "NAME and --previous do not go with --images", "omit --images, or the others"
            )
        return _destroy_images(session, yes, as_json)
    if name is None:
        raise OptionMissing(
            "NAME or --images is required", Fix("list the deployments", ("peagle", "list"))
        )
    with ExitStack() as held:
        try:
            change = held.enter_context(session.changing(name))
        except NotFound as unknown:
            here = deployment_names(session.scope) if session.is_available else ()
            elsewhere = deployment_names(None if session.sandbox else SANDBOX)
            is_misspelled = get_close_matches(name, here, n=1, cutoff=_ALIKE) or name in elsewhere
            if is_misspelled or unknown.code in (NOT_SEARCHED, SANDBOX_KILLED):
                raise
            return _destroy_leftovers(session, name, session.region, everything, yes, as_json)
        if not previous:
            return _destroy_deployment(change, session, everything, yes, as_json)
        resources = stale_resources(change.record.model_copy(update={"previous": None}))
        if resources and not yes:
            _show(f"{name} in {session.where(change.record.region)}:", resources)
            confirm("Remove the previous revision? The endpoint is not changed.", "not removed")
        removed = change.run(remove_previous)
        if not removed and not as_json:
            print_status(f"Nothing to remove: {name} has no previous revision.")
        return _report(name, as_json, removed)


def _destroy_deployment(
    change: Change, session: Session, everything: bool, yes: bool, as_json: bool
) -> None:
    """Remove the deployment, and with ``everything`` what AWS keeps of its endpoint."""
    record, aws = change.record, change.aws
    if record.of_type("Endpoint") or not record.owner:
        require_own(record)
    elif not everything:  # what a template left without its endpoint
        raise Refused(
            f"{_texts(record.resources)}: left by {record.owner}",
            Fix("remove this too", ("peagle", "destroy", record.name, "--all")),
            code="other-owner",
        )
    recorded = {(resource.type, resource.name) for resource in record.resources}
    leftovers = [
        leftover
        for leftover in _find_leftovers(aws, record.name, needed=everything)
        if (leftover.kind, leftover.name) not in recorded  # such as the alarms of a rollout
    ]
    removable = [leftover for leftover in leftovers if everything or leftover.goes_with_endpoint]
    if not yes:
        where = f"{record.name} in {session.where(record.region)}:"
        _show(where, (*record.resources, *removable))
        cost = format_price(cost_of_remaining(aws, record), session.sandbox)
        print_status(f"Current cost: {cost}.")
        confirm("Remove all of these?", "not removed")
    again = in_context(("peagle", "destroy", record.name))
    removed, kept = change.run(remove_with_leftovers, removable, again=again)
    left = [leftover for leftover in leftovers if leftover not in removable]
    _report(record.name, as_json, (*removed, *removable), kept, left)


def _destroy_leftovers(
    session: Session, name: str, region: str | None, everything: bool, yes: bool, as_json: bool
) -> None:
    """For a name without a deployment: what an earlier endpoint of that name has left."""
    leftovers: Sequence[Leftover] = ()
    if session.is_available:
        aws = session.aws(region)
        if endpoint_created(aws, name) is not None:
            raise Refused(
                f"the endpoint {name} in {aws.region} exists, and carries no tags of this toolkit",
                "remove it with whatever created it",
                code="endpoint-not-ours",
            )
        leftovers = _find_leftovers(aws, name, needed=everything)
    removable = leftovers if everything else ()
    if not removable:
        where = "the sandbox" if session.sandbox else region or default_region()
        nowhere = f"neither this machine nor the tags in {where} know {name}"
        if not session.is_available:
            nowhere = "the sandbox is not running, and this machine has no record of it"
        print_status(f"Nothing to remove: {nowhere}.")
    elif not yes:
        _show(f"Left by {name}:", removable)
        confirm("Remove all of these?", "not removed")
    for leftover in removable:
        remove_leftover(aws, leftover)
    _report(name, as_json, removable, left=() if everything else leftovers)


def _find_leftovers(aws: Aws, name: str, needed: bool) -> Sequence[Leftover]:
    """The log, scaling targets and alarms. Raises AccessDenied only when they are ``needed``."""
    try:
        return find_leftovers(aws, name)
    except AccessDenied as denied:
        if needed:
            raise
        print_status(f"The log, scaling targets and alarms are unknown: {denied.message}")
        return ()


def _texts(resources: Iterable[Resource | Leftover]) -> str:
    return ", ".join(resource.text for resource in resources)


def _show(title: str, resources: Iterable[Resource | Leftover]) -> None:
    print_status(title)
    for line in dict.fromkeys(resource.text for resource in resources):  # revisions share uploads
        print_status(f"  {line}")


def _destroy_images(session: Session, yes: bool, as_json: bool) -> None:
    """Remove repositories with their images, CodeBuild projects and roles, and build contexts."""
    aws = session.aws(session.region or DEFAULT_REGION)
    resources = image_resources(aws)
    if resources and not yes:
        for resource in resources:
            print_status(f"  {resource.kind} {resource.name}")
        confirm(f"Remove all of these in {aws.region}, including the images?", "not removed")
    removed = remove_image_resources(aws, print_status)
    if as_json:
        print_json(
            {"removed": [{"type": resource.kind, "name": resource.name} for resource in removed]}
        )
    elif not removed:
        print_status(
            f"Nothing to remove: no image of this toolkit, nor what builds it, is in {aws.region}."
        )


def _report(
    name: str,
    as_json: bool,
    removed: Sequence[Resource | Leftover],
    kept: Sequence[Resource] = (),
    left: Sequence[Leftover] = (),
) -> None:
    if as_json:
        document: dict[str, Any] = {"name": name}
        for key, resources in (("removed", removed), ("kept", kept), ("left", left)):
            document[key] = [resource.document() for resource in resources]
        return print_json(document)
    for resource in removed:
        print_line(f"removed {resource.text}")
        if isinstance(resource, Resource) and resource.type == "LifecycleRule":
            print_status(f"Captured data stays in {resource.name}; nothing deletes it any more.")
    for resource in kept:
        print_line(f"kept {resource.text}: in use by others")
    if left:
        command = command_text(("peagle", "destroy", name, "--all"))
        print_status(f"Left: {_texts(left)}; to remove this too", command)
    return None


@click.command(
    cls=PeagleCommand,
    epilog="""\b
Examples:
  peagle reap --dry-run
  peagle reap --yes --json
""",
)
@account_options
@click.option(
    "--region",
    "regions",
    multiple=True,
    help="Only this region; may be repeated.  [default: all regions of SageMaker]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@yes_option
@json_option
def reap(
    session: Session, regions: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete all deployments whose end time (deploy --ttl, --budget) has passed, in all regions.

    EventBridge Scheduler deletes their endpoints; this removes what remains: configuration, model,
    uploaded weights, role and record, and an endpoint that is still there. What a template made is
    left to it. Exits with 4 if a region could not be searched or a deployment not deleted.
    """
    if not session.is_available:
        raise sandbox_not_running()
    aws = session.aws(regions[0] if regions else None)
    places = regions or hosting_regions(aws.partition)
    search = find_ended(aws, sorted({*places}), session.prices)
    for ended in search.ended:
        record = ended.record
        costs = "its endpoint is deleted"
        if ended.usd_per_hour != 0.0:
            price = format_price(ended.usd_per_hour, session.sandbox)
            costs = f"its endpoint still costs {price}"
        title = f"{record.name} in {session.where(record.region)} ended at "
        title += f"{ended.document()['ended_at']}; {costs}"
        if record.owner:
            print_status(f"{title}; left to {record.owner}")
        else:
            _show(title, record.resources)
    for region, error in search.unknown.items():
        print_status(f"{region} is unknown: {error.message} ({error.fix})")
    done: tuple[Ended, ...] = ()
    if search.own and not dry_run:
        confirm("Delete all of these?", "not deleted", yes=yes)
        with session.progress() as observe:
            done = remove_ended(aws, search.own, session.prices, observe)
    failed = [ended for ended in done if ended.error]
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "ended": [ended.document() for ended in search.own],
                "reaped": [ended.document(reaped=True) for ended in done if not ended.error],
                "failed": [ended.document(reaped=True) for ended in failed],
                "left": [ended.document() for ended in search.of_others],
                "unknown": [
                    {"region": region, **error.document()}
                    for region, error in search.unknown.items()
                ],
            }
        )
    else:
        if not search.own and not search.unknown:
            print_line("Nothing to delete: no deployment is past its end.")
        for ended in done:
            for resource in ended.removed:
                print_line(f"removed {resource.text} ({ended.record.region})")
            for resource in ended.kept:
                print_line(f"kept {resource.text}: in use by others")
    if failed:
        names = ", ".join(ended.record.name for ended in failed)
        message = failed[0].error.message if failed[0].error else ""
        command = ("peagle", "destroy", failed[0].record.name)
        raise CloudError(
            f"not deleted: {names}: {message}", Fix("try it alone", command), code="not-reaped"
        )
    if search.unknown:
        raise CloudError(
            f"not searched: {', '.join(search.unknown)}",
            "see above; the policy infra/iam/deploy-policy.json allows it",
            "regions-unknown",
        )
