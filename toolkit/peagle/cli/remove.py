"""What ends: ``peagle destroy``, of a deployment or of images, and ``peagle reap``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from difflib import get_close_matches

from peagle.account import DeploymentChange
from peagle.aws.ecr import image_resources, remove_image_resources
from peagle.cli.context import command_text, is_set
from peagle.cli.options import add_options, command, complete_region, option, yes_option
from peagle.cli.session import NOT_SEARCHED, Session, account_options, deployment_command
from peagle.cli.view.console import (
    confirm,
    print_json,
    print_line,
    print_result,
    print_status,
    wants_json,
)
from peagle.deploy.apply import remove_previous
from peagle.deploy.records import deployment_names
from peagle.deploy.removal import Removal, plan_removal, remove_leftover
from peagle.deploy.removal import destroy as remove_deployment
from peagle.deploy.revisions import stale_resources
from peagle.deploy.state import Resource, ResourceName
from peagle.deploy.status import endpoint_created, price_remaining
from peagle.errors import CloudError, Fix, NotFound, OptionMissing, OptionsConflict, Refused
from peagle.frozen import Result
from peagle.planning.runtime import DEFAULT_REGION
from peagle.sandbox.client import SANDBOX_KILLED, sandbox_not_running
from peagle.store import SANDBOX
from peagle.text import format_price

_ALIKE = 0.8
"""Names at least this similar (difflib's ratio) are taken for misspelled ones."""


_DESTROY_OPTIONS = (
    option("--images", "Remove what `peagle image` created, with the images.", bool),
    option("--all everything", "Also remove the log, scaling targets and alarms, and what a "
           "template left.", bool),
    option("--previous", "Remove only what the previous revision needs, which then cannot be "
           "returned to.", bool),
)  # fmt: skip


@deployment_command(
    "peagle destroy peagle-gpt-oss-20b --yes",
    "peagle destroy --images",
    yes=True,
    instead=("images",),
    implicit=False,
)
@add_options(_DESTROY_OPTIONS)
def destroy(
    session: Session, name: str | None, images: bool, everything: bool, previous: bool
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
        return _destroy_images(session)
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
            return _destroy_leftovers(session, name, everything)
        if previous:
            return _destroy_previous(change, session)
        return _destroy_deployment(change, session, everything)


def _destroy_deployment(change: DeploymentChange, session: Session, everything: bool) -> None:
    record = change.record
    removal = plan_removal(change.aws, record.name, record, everything)
    _show_unknown(removal.unknown)
    cost = format_price(price_remaining(change.aws, record), session.sandbox)
    where = f"{record.name} in {session.where(record.region)}, which costs {cost}:"
    _confirm_removal(where, (*record.resources, *removal.leftovers))
    removed, kept = change.run(remove_deployment, removal.leftovers)
    _report(record.name, removed, kept, removal.left)


def _destroy_previous(change: DeploymentChange, session: Session) -> None:
    record = change.record
    if resources := stale_resources(record.model_copy(update={"previous": None})):
        where = f"{record.name} in {session.where(record.region)}:"
        _confirm_removal(where, resources, "Remove the previous revision only?")
    removed = change.run(remove_previous, continues=False)
    if not removed and not wants_json():
        print_status(f"Nothing to remove: {record.name} has no previous revision.")
    _report(record.name, removed)


def _destroy_leftovers(session: Session, name: str, everything: bool) -> None:
    """Remove what an earlier endpoint of that name has left."""
    removal, reason = Removal(), "the sandbox is not running, and this machine has no record of it"
    if session.is_available:
        aws = session.aws()
        place = session.where(aws.region)
        reason = f"neither this machine nor the tags in {place} know {name}"
        if endpoint_created(aws, name) is not None:
            raise Refused(
                f"the endpoint {name} in {aws.region} exists, and carries no tags of this toolkit",
                "remove it with whatever created it",
                code="endpoint-not-ours",
            )
        removal = plan_removal(aws, name, None, everything)
        _show_unknown(removal.unknown)
    if removal.leftovers:
        _confirm_removal(f"Left by {name}:", removal.leftovers)
    else:
        print_status(f"Nothing to remove: {reason}.")
    for leftover in removal.leftovers:
        remove_leftover(aws, leftover)
    _report(name, removal.leftovers, left=removal.left)


def _show_unknown(reason: str) -> None:
    if reason:
        print_status(f"The log, scaling targets and alarms are unknown: {reason}")


def _show(title: str, resources: Iterable[Resource]) -> None:
    print_status(title)
    for line in dict.fromkeys(resource.text for resource in resources):  # revisions share uploads
        print_status(f"  {line}")


def _confirm_removal(
    title: str, resources: Iterable[Resource], question: str = "Remove all of these?"
) -> None:
    if not is_set("yes"):
        _show(title, resources)
        confirm(question, "not removed")


class RemovalResult(Result):
    """What ``destroy`` removed, what others use, and what it leaves."""

    name: str
    removed: tuple[ResourceName, ...]
    kept: tuple[ResourceName, ...]
    left: tuple[ResourceName, ...]


def _report(
    name: str,
    removed: Sequence[Resource],
    kept: Sequence[Resource] = (),
    left: Sequence[Resource] = (),
) -> None:
    groups = {"removed": tuple(removed), "kept": tuple(kept), "left": tuple(left)}
    print_result(RemovalResult(name=name, **groups), _print_result)


def _print_result(result: RemovalResult) -> None:
    _print_removed(result.removed, result.kept)
    for resource in result.removed:
        if resource.type == "LifecycleRule":
            print_status(f"Captured data stays in {resource.name}; nothing deletes it any more.")
    if result.left:
        command = command_text(("peagle", "destroy", result.name, "--all"))
        texts = ", ".join(resource.text for resource in result.left)
        print_status(f"Left: {texts}; to remove this too", command)


def _print_removed(
    removed: Iterable[ResourceName], kept: Iterable[ResourceName], where: str = ""
) -> None:
    for resource in removed:
        print_line(f"removed {resource.text}{where}")
    for resource in kept:
        print_line(f"kept {resource.text}: in use by others")


def _destroy_images(session: Session) -> None:
    """Remove repositories with their images, CodeBuild projects, roles and build contexts."""
    aws = session.aws(session.region or DEFAULT_REGION)
    resources = image_resources(aws)
    if resources and not is_set("yes"):
        for resource in resources:
            print_status(f"  {resource.kind} {resource.name}")
        confirm(f"Remove all of these in {aws.region}, including the images?", "not removed")
    removed = remove_image_resources(aws, print_status)
    if wants_json():
        documents = [{"type": resource.kind, "name": resource.name} for resource in removed]
        print_json({"removed": documents})
    elif not removed:
        print_status(f"Nothing to remove: no image of this toolkit is in {aws.region}.")


@command("peagle reap --dry-run", "peagle reap --yes --json")
@account_options
@option(
    "--region regions",
    "Only this region; may be repeated.  [default: all regions of SageMaker]",
    multiple=True,
    shell_complete=complete_region,
)
@option("--dry-run", "Show what would be deleted.", bool)
@yes_option
def reap(session: Session, regions: tuple[str, ...], dry_run: bool) -> None:
    """Delete all deployments whose end time (deploy --ttl, --budget) has passed, in all regions.

    EventBridge Scheduler deletes their endpoints; this removes what remains: configuration, model,
    uploaded weights, role and record, and an endpoint that is still there. What a template made is
    left to it. Exits with 4 if a region could not be searched or a deployment not deleted.
    """
    if not session.is_available:
        raise sandbox_not_running()
    search = session.find_ended(regions)
    for ended in (*search.removable, *search.of_others):
        record = ended.record
        costs = "its endpoint is deleted"
        if ended.price_per_hour_usd != 0.0:
            price = format_price(ended.price_per_hour_usd, session.sandbox)
            costs = f"its endpoint still costs {price}"
        title = f"{record.name} in {session.where(record.region)} ended at "
        title += f"{ended.ended_at}; {costs}"
        if record.owner:
            print_status(f"{title}; left to {record.owner}")
        else:
            _show(title, record.resources)
    for region, error in search.unknown.items():
        print_status(f"{region} is unknown: {error.message} ({error.fix})")
    removable = () if dry_run else search.removable
    if removable:
        confirm("Delete all of these?", "not deleted")
    done = session.reap(removable)
    failed = [ended for ended in done if ended.error]
    if wants_json():
        unknown = [{"region": region, **error.document()}
                   for region, error in search.unknown.items()]  # fmt: skip
        print_json(
            {
                "dry_run": dry_run,
                "ended": search.removable,
                "reaped": [ended for ended in done if not ended.error],
                "failed": failed,
                "left": search.of_others,
                "unknown": unknown,
            }
        )
    else:
        if not search.removable and not search.unknown:
            print_line("Nothing to delete: no deployment is past its end.")
        for ended in done:
            _print_removed(ended.removed, ended.kept, f" ({ended.record.region})")
    for ended in failed:
        names = ", ".join(each.record.name for each in failed)
        fix = Fix("try it alone", ("peagle", "destroy", ended.record.name))
        message = f"not deleted: {names}: {ended.error.message if ended.error else ''}"
        raise CloudError(message, fix, code="not-reaped")
    if search.unknown:
        raise CloudError(
            f"not searched: {', '.join(search.unknown)}",
            "see above; the policy infra/iam/deploy-policy.json allows it",
            "regions-unknown",
        )
