"""Return a deployment to its previous revision, or remove what only that needs."""

from __future__ import annotations

from dataclasses import dataclass

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import Missing
from peagle.catalog.schema import Catalog
from peagle.deploy import alarms, records
from peagle.deploy.apply import (
    prove_in_service,
    remove_stale,
    require_weights_of,
    restore_observability,
    return_to,
)
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.diff import Change
from peagle.deploy.discover import changes_of_live
from peagle.deploy.proving import request_of_revision
from peagle.deploy.revisions import (
    require_no_comparison,
    require_own,
    rollback_target,
    rollback_unreported,
    stale_resources,
)
from peagle.deploy.scaling import count_at_update, return_to_scaling
from peagle.deploy.state import Deployment, Resource, Revision
from peagle.errors import Fix, PeagleError, Refused


def revision_for_rollback(record: Deployment) -> Revision:
    """The revision that ``rollback`` returns to.

    Raises Refused when there is none, during a comparison, and for the deployment of another owner.
    """
    require_own(record)
    require_no_comparison(record)
    target = rollback_target(record)
    if target is None:
        fix = Fix("look at its state", ("peagle", "status", record.name))
        message = f"there is no revision of {record.name} to return to"
        raise Refused(message, fix, "no-previous-revision")
    return target


@dataclass(frozen=True)
class RollbackPreview:
    """What ``rollback`` would do: the ``changes`` of what the endpoint serves, how it replaces the
    instances, and what stays of the plan before, which only another machine could renew."""

    changes: tuple[Change, ...] = ()
    rollout: str = ""
    kept: str = ""

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The rollout and what stays, for the user."""
        kept = f"of the plan before: {self.kept}" if self.kept else ""
        lines = (("rollout", self.rollout), ("keeps", kept))
        return tuple((name, text) for name, text in lines if text)


def preview_rollback(aws: Aws, record: Deployment, target: Revision) -> RollbackPreview:
    """What ``rollback`` to ``target`` would do. Reads only."""
    live = sagemaker.describe(aws, record.name)
    if live is None:
        return RollbackPreview()
    rollout = alarms.rollout_of_return(target, count_at_update(aws, record, target, live))
    kept = alarms.kept_of_plan_before(record, target)
    return RollbackPreview(changes_of_live(record, live, target), rollout, kept)


def rollback(
    aws: Aws,
    record: Deployment,
    catalog: Catalog,
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> Deployment:
    """Return to the previous revision and prove it again; what served is the previous one
    afterwards. Returns the record.

    With an update that is not finished or not proved, it returns to what served before that, which
    is then removed. Until ``end_rollback``, the same call continues this rollback, also once it has
    returned: nobody undoes it who has not seen its result. ``catalog`` says what to prove of a
    revision that another machine deployed. Raises what ``revision_for_rollback`` and
    ``prove_in_service`` raise; a revision whose proof fails now stays in service, unproved.
    """
    target = revision_for_rollback(record)
    context = DeploymentContext(aws, record, observe, clock or Clock())
    require_weights_of(context, target)
    live = sagemaker.describe(aws, record.name) if rollback_unreported(record) else None
    if live and live.serves_steadily(target.name):
        remove_stale(context)
        return context.record
    is_previous = target is record.previous
    unproved = target.model_copy(update={"proof": None})
    pending = {"pending": unproved} if is_previous else {}
    context.change(failure=None, returning_to=target.fingerprint, **pending)
    try:
        with context.recording_failure():
            started = return_to(context, target, rolled_out=True)
    except Missing as error:
        gone = {"pending": None, "previous": None} if is_previous else {}
        context.change(returning_to="", **gone)
        message = f"the previous revision cannot serve: {error.message}"
        raise Refused(message, "deploy its plan again", "previous-missing") from error
    except PeagleError:
        if context.record.pending is None and context.record.serving:  # an alarm undid it
            restore_observability(context, context.record.serving)
        raise
    request = request_of_revision(target, catalog)
    prove_in_service(context, target, request, started, keep_unproved=True)
    return_to_scaling(context, target)
    return context.record


def end_rollback(record: Deployment) -> None:
    """The result of the rollback is reported, proved or not: the next one is another."""
    records.save(record.model_copy(update={"returning_to": ""}))


def previous_resources(record: Deployment) -> tuple[Resource, ...]:
    """What only the previous revision needs, and what no revision needs any more."""
    return stale_resources(record.model_copy(update={"previous": None}))


def remove_previous(
    aws: Aws, record: Deployment, observe: Observer = unobserved, clock: Clock | None = None
) -> tuple[Resource, ...]:
    """Remove what only the previous revision needs; what was removed. May be repeated.

    Raises Refused while a rollback to it is not finished, and for another owner's deployment.
    """
    require_own(record)
    if record.previous and record.pending and record.pending.name == record.previous.name:
        fix = Fix("finish that first", ("peagle", "rollback", record.name))
        message = f"{record.name} is being rolled back to its previous revision"
        raise Refused(message, fix, "rollback-unfinished")
    context = DeploymentContext(aws, record, observe, clock or Clock())
    context.change(previous=None)
    before = context.record.resources
    remove_stale(context)
    return tuple(resource for resource in before if resource not in context.record.resources)
