"""``peagle destroy`` and ``peagle reap``: remove exactly what was created."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import click

from peagle.aws.client import Aws
from peagle.aws.ecr import image_resources, remove_image_resources
from peagle.aws.errors import AccessDenied
from peagle.aws.regions import hosting_regions
from peagle.catalog.tables import InstanceTable
from peagle.cli.context import PeagleCommand, command_text, in_context
from peagle.cli.options import command_catalog, complete_region, yes_option
from peagle.cli.project import ProjectCommand, endpoint_argument
from peagle.cli.session import (
    NOT_SEARCHED,
    Session,
    account_options,
    cloud_options,
    complete_name,
)
from peagle.cli.view.console import confirm, json_option, print_json, print_line, print_status
from peagle.cli.view.deploy import show_remaining_resources
from peagle.cli.view.progress import DeploymentProgress
from peagle.deploy.apply import remove_previous
from peagle.deploy.context import DeploymentContext
from peagle.deploy.records import DamagedRecord, deployment_lock, deployment_names, load_record
from peagle.deploy.removal import (
    Ended,
    Leftover,
    Search,
    find_ended,
    find_leftovers,
    remove_leftover,
)
from peagle.deploy.removal import destroy as remove_deployment
from peagle.deploy.removal import reap as remove_ended
from peagle.deploy.revisions import require_own, stale_resources
from peagle.deploy.state import Deployment, Resource
from peagle.deploy.status import cost_of_remaining, endpoint_created
from peagle.errors import (
    CloudError,
    Fix,
    NotFound,
    OptionMissing,
    OptionsConflict,
    PeagleError,
    Refused,
)
from peagle.planning.runtime import DEFAULT_REGION
from peagle.sandbox.client import SANDBOX_KILLED, sandbox_not_running, sandbox_status, stop_sandbox
from peagle.session import default_region
from peagle.store import SANDBOX
from peagle.text import format_price

Resources = tuple[Resource, ...]

_ALIKE = 0.8
"""Names at least this similar (difflib's ratio) are taken for misspelled ones."""


@click.command(
    cls=ProjectCommand,
    epilog="""\b
Examples:
  peagle destroy peagle-gpt-oss-20b --yes
  peagle destroy --images
""",
)
@endpoint_argument(complete_name, instead=("images",), implicit=False)
@cloud_options
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
@yes_option
@json_option
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
        _destroy_images(session, yes, as_json)
        return
    if name is None:
        raise OptionMissing(
            "NAME or --images is required", Fix("list the deployments", ("peagle", "list"))
        )
    try:
        record, aws = session.find(name, complete=True)
    except NotFound as unknown:
        if unknown.code == SANDBOX_KILLED:
            _end_killed_sandbox(name, unknown.message, yes, as_json)
            return
        if unknown.code == NOT_SEARCHED or _is_misspelled(name, session):
            raise
        _destroy_leftovers(session, name, session.region, everything, yes, as_json)
        return
    except DamagedRecord as damaged:
        if previous or not damaged.is_alone:
            raise
        _destroy_leftovers(session, name, damaged.region, everything, yes, as_json)
        damaged.path.unlink(missing_ok=True)
        print_status(f"Removed the damaged record {damaged.path}.")
        return
    if previous:
        _destroy_previous(aws, record, session, yes, as_json)
        return
    _destroy_deployment(aws, record, session, everything, yes, as_json)


def _end_killed_sandbox(name: str, message: str, yes: bool, as_json: bool) -> None:
    """End the engines of a sandbox that was killed: everything else in it is gone."""
    print_status(f"{message[:1].upper()}{message[1:]}.")
    if not yes:
        confirm("End all of them?", "not removed")
    ended = ", ".join(dict.fromkeys(engine.endpoint for engine in sandbox_status().leftovers))
    print_status(f"Engines stopped: {stop_sandbox().engines}, of these endpoints: {ended}")
    _report(name, (), (), (), (), as_json)


def _destroy_deployment(
    aws: Aws, record: Deployment, session: Session, everything: bool, yes: bool, as_json: bool
) -> None:
    """Remove the deployment, and with ``everything`` what AWS keeps of its endpoint."""
    _require_own(record, everything)
    recorded = {
        (resource.type, resource.name) for resource in record.resources
    }  # such as the alarms of a rollout
    leftovers = _leftovers(aws, record.name, needed=everything)
    leftovers = tuple(
        resource for resource in leftovers if (resource.kind, resource.name) not in recorded
    )
    removable = tuple(
        resource for resource in leftovers if everything or resource.goes_with_endpoint
    )
    if not yes:
        place = f"{record.name} in {session.where(record.region)}:"
        _show(place, *_texts(record.resources), *_texts(removable))
        cost = format_price(cost_of_remaining(aws, record), session.sandbox)
        print_status(f"Current cost: {cost}.")
        confirm("Remove all of these?", "not removed")
    targets = [resource for resource in removable if resource.kind == "ScalableTarget"]
    for leftover in targets:  # SageMaker does not delete an endpoint with a scaling target
        remove_leftover(aws, leftover)
    removed, kept = _remove(aws, record, session)
    for leftover in removable:
        if leftover not in targets:
            remove_leftover(aws, leftover)
    kept_by_aws = tuple(resource for resource in leftovers if resource not in removable)
    _report(record.name, removed, kept, removable, kept_by_aws, as_json)


def _require_own(record: Deployment, everything: bool) -> None:
    """Raise Refused for what belongs to a template, unless it is what that left without its
    endpoint, and ``everything`` is to go."""
    if record.of_type("Endpoint") or not record.owner:
        require_own(record)
    elif not everything:
        raise Refused(
            f"{', '.join(_texts(record.resources))}: left by {record.owner}",
            Fix("remove this too", ("peagle", "destroy", record.name, "--all")),
            code="other-owner",
        )


def _destroy_previous(
    aws: Aws, record: Deployment, session: Session, yes: bool, as_json: bool
) -> None:
    """Remove what only the previous revision needs."""
    resources = stale_resources(record.model_copy(update={"previous": None}))
    if resources and not yes:
        where = f"{record.name} in {session.where(record.region)}:"
        _show(where, *_texts(resources))
        confirm("Remove the previous revision? The endpoint is not changed.", "not removed")
    with (
        deployment_lock(*record.key),
        DeploymentProgress(session.sandbox) as status,
    ):
        removed = remove_previous(DeploymentContext(aws, _latest(session, record), status.observe))
    if not removed and not as_json:
        print_status(f"Nothing to remove: {record.name} has no previous revision.")
    _report(record.name, removed, (), (), (), as_json)


def _destroy_leftovers(
    session: Session, name: str, region: str | None, everything: bool, yes: bool, as_json: bool
) -> None:
    """For a name without a deployment: what an earlier endpoint of that name has left."""
    leftovers: tuple[Leftover, ...] = ()
    if session.is_available:
        aws = session.aws(region)
        if endpoint_created(aws, name) is not None:
            raise Refused(
                f"the endpoint {name} in {aws.region} exists, and carries no tags of this toolkit",
                "remove it with whatever created it",
                code="endpoint-not-ours",
            )
        leftovers = _leftovers(aws, name, needed=everything)
    removable = leftovers if everything else ()
    if not removable:
        print_status(f"Nothing to remove: {_nowhere(name, session, region)}.")
    elif not yes:
        _show(f"Left by {name}:", *_texts(removable))
        confirm("Remove all of these?", "not removed")
    for leftover in removable:
        remove_leftover(aws, leftover)
    _report(name, (), (), removable, () if everything else leftovers, as_json)


def _leftovers(aws: Aws, name: str, needed: bool) -> tuple[Leftover, ...]:
    """The log, scaling targets and alarms. Raises AccessDenied only when they are ``needed``."""
    try:
        return find_leftovers(aws, name)
    except AccessDenied as denied:
        if needed:
            raise
        print_status(f"The log, scaling targets and alarms are unknown: {denied.message}")
        return ()


def _texts(resources: Sequence[Resource | Leftover]) -> Iterator[str]:
    return (resource.text for resource in resources)


def _show(title: str, *lines: str) -> None:
    print_status(title)
    for line in dict.fromkeys(lines):  # revisions may share what was uploaded
        print_status(f"  {line}")


def _nowhere(name: str, session: Session, region: str | None) -> str:
    if not session.is_available:
        return f"the sandbox is not running, and this machine has no record of {name} in it"
    where = "the sandbox" if session.sandbox else f"{region or default_region()}"
    if name in deployment_names(session.scope):  # by a damaged record
        return f"nothing of {name} is in {where}"
    return f"neither this machine nor the tags in {where} know {name}"


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


def _is_misspelled(name: str, session: Session) -> bool:
    """Whether a similar name is known here, or this one elsewhere."""
    here = deployment_names(session.scope) if session.is_available else ()
    elsewhere = deployment_names(None if session.sandbox else SANDBOX)
    near = get_close_matches(name, here, n=1, cutoff=_ALIKE)
    return bool(near) or name in here or name in elsewhere


def _remove(aws: Aws, record: Deployment, session: Session) -> tuple[Resources, Resources]:
    """Remove everything; if something ends it early, show what exists."""
    with deployment_lock(*record.key):
        try:
            with DeploymentProgress(session.sandbox) as status:
                return remove_deployment(
                    DeploymentContext(aws, _latest(session, record), status.observe)
                )
        except (PeagleError, KeyboardInterrupt):
            left = load_record(*record.key)
            if left:
                again = in_context(("peagle", "destroy", record.name))
                show_remaining_resources(aws, left, session, again)
            raise


def _latest(session: Session, record: Deployment) -> Deployment:
    """The deployment as it is now that no other command of this machine changes it."""
    try:
        latest, _ = session.find(record.name, record.region, complete=True)
    except NotFound:
        return record
    return latest


def _report(
    name: str,
    removed: Resources,
    kept: Resources,
    also_removed: tuple[Leftover, ...],
    left: tuple[Leftover, ...],
    as_json: bool,
) -> None:
    gone: list[Resource | Leftover] = [*removed, *also_removed]
    if as_json:
        print_json(
            {
                "name": name,
                "removed": [resource.document() for resource in gone],
                "kept": [resource.document() for resource in kept],
                "left": [resource.document() for resource in left],
            }
        )
        return
    for line in _texts(gone):
        print_line(f"removed {line}")
    for resource in removed:
        if resource.type == "LifecycleRule":
            print_status(f"Captured data stays in {resource.name}; nothing deletes it any more.")
    for line in _texts(kept):
        print_line(f"kept {line}: in use by others")
    if left:
        command = command_text(("peagle", "destroy", name, "--all"))
        print_status(f"Left: {', '.join(_texts(left))}; to remove this too", command)


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
    shell_complete=complete_region,
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@yes_option
@json_option
@click.pass_context
def reap(
    ctx: click.Context,
    session: Session,
    regions: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
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

    def prices() -> InstanceTable:
        return command_catalog(ctx).instances

    search = find_ended(aws, sorted({*places}), prices)
    _show_reap(search, session)
    done: tuple[Ended, ...] = ()
    if search.own and not dry_run:
        if not yes:
            confirm("Delete all of these?", "not deleted")
        with DeploymentProgress(session.sandbox) as status:
            done = remove_ended(aws, search.own, prices, status.observe)
    _report_reap(search, done, dry_run, as_json)


def _show_reap(search: Search, session: Session) -> None:
    for ended in search.own:
        print_status(_line(ended, session))
        for resource in ended.record.resources:
            print_status(f"  {resource.text}")
    for ended in search.of_others:
        print_status(f"{_line(ended, session)}; left to {ended.record.owner}")
    for region, error in search.unknown.items():
        print_status(f"{region} is unknown: {error.message} ({error.fix})")


def _line(ended: Ended, session: Session) -> str:
    record = ended.record
    costs = "its endpoint is deleted"
    if ended.usd_per_hour != 0.0:
        costs = f"its endpoint still costs {format_price(ended.usd_per_hour, session.sandbox)}"
    ended_at = ended.document()["ended_at"]
    return f"{record.name} in {session.where(record.region)} ended at {ended_at}; {costs}"


def _report_reap(search: Search, done: tuple[Ended, ...], dry_run: bool, as_json: bool) -> None:
    failed = [result for result in done if result.error]
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "ended": [result.document() for result in search.own],
                "reaped": [result.document(reaped=True) for result in done if not result.error],
                "failed": [result.document(reaped=True) for result in failed],
                "left": [result.document() for result in search.of_others],
                "unknown": [
                    {"region": region, **error.document()}
                    for region, error in search.unknown.items()
                ],
            }
        )
    elif not search.own and not search.unknown:
        print_line("Nothing to delete: no deployment is past its end.")
    for result in () if as_json else done:
        for resource in result.removed:
            print_line(f"removed {resource.text} ({result.record.region})")
        for resource in result.kept:
            print_line(f"kept {resource.text}: in use by others")
    if failed:
        first = failed[0]
        names = ", ".join(result.record.name for result in failed)
        message = first.error.message if first.error else ""
        command = ("peagle", "destroy", first.record.name)
        raise CloudError(
            f"not deleted: {names}: {message}", Fix("try it alone", command), code="not-reaped"
        )
    if search.unknown:
        raise CloudError(
            f"not searched: {', '.join(search.unknown)}",
            f"see above; with the policy infra/iam/deploy-policy.json, "
            f"{command_text(('peagle', 'reap'))} can search them",
            "regions-unknown",
        )
