"""End a comparison: promote its candidate, or drop it.

promote   the candidate's own configuration serves, and the rest of its plan applies; the revision
          that served is the previous one
drop      what served before serves alone, and what only the candidate needs is removed
"""

from __future__ import annotations

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.catalog.schema import Catalog
from peagle.deploy import limits
from peagle.deploy.apply import (
    prove_in_service,
    put,
    remove_stale,
    require_weights_of,
    return_to,
)
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.limits import End, planned_end
from peagle.deploy.owner import require_own
from peagle.deploy.proving.prove import request_of_revision
from peagle.deploy.revisions import is_proved
from peagle.deploy.scaling import apply_scaling
from peagle.deploy.state import Deployment, Failure, Revision
from peagle.deploy.variants import (
    required_comparison,
)
from peagle.errors import EngineError, Fix, NotProved, PeagleError, Refused
from peagle.planning.company import NO_COMPANY

_UNKNOWN_PLAN = "the plan is unknown on this machine; deploy it for its alarms, dashboard and limit"


def promote(
    aws: Aws,
    record: Deployment,
    catalog: Catalog,
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> Deployment:
    """Let the candidate serve alone, prove that, and apply the rest of its plan; what served is the
    previous revision then. Returns the record.

    Raises Refused without a comparison and when the plan's end has passed, and what
    ``prove_in_service`` does: without a proof, what served before serves alone again.
    """
    require_own(record)
    comparison = required_comparison(record)
    context = DeploymentContext(aws, record, observe, clock or Clock())
    candidate = comparison.candidate
    plan = candidate.plan
    end = planned_end(context, candidate, keeps_bounds=True)
    before = record.serving
    if before and before.fingerprint == candidate.fingerprint:  # promoted, but not to the end
        before = record.previous
    else:
        require_weights_of(context, candidate)
        context.change(pending=candidate.model_copy(update={"proof": None}), failure=None)
        try:
            company = plan.company if plan else NO_COMPANY
            limits.set_end(context, end, candidate.endpoint_config, company)
            started = return_to(context, candidate)
        except PeagleError as error:
            context.change(failure=Failure.of(error))
            raise
        try:
            prove_in_service(context, candidate, request_of_revision(candidate, catalog), started)
        except (NotProved, EngineError):
            _end(context)
            raise
        end = End(context.record.ends_at, context.record.budget_usd)
    _scale_again(context, before, candidate)
    if plan:
        put(context, plan, candidate, end)
    else:
        context.say("Not applied", _UNKNOWN_PLAN)
    _end(context)
    return context.record


def _scale_again(context: DeploymentContext, before: Revision | None, now: Revision) -> None:
    """Register the scaling of the promoted plan, if it has one; else that of the plan before, which
    a change of the instance type has ended."""
    own = now.plan.scaling if now.plan else None
    earlier = before.plan.scaling if before and before.plan else None
    if own is None and before and before.served.instance_type == now.served.instance_type:
        return
    if scaling := own or earlier:
        apply_scaling(context, scaling)


def drop(
    aws: Aws,
    record: Deployment,
    catalog: Catalog,
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> Deployment:
    """Let the revision that served before the comparison serve alone, and prove that; then remove
    what only the candidate needs. Returns the record.

    Raises Refused without a comparison, and once the candidate serves alone; NotProved when what
    serves is not proved now: it stays.
    """
    require_own(record)
    comparison = required_comparison(record)
    context = DeploymentContext(aws, record, observe, clock or Clock())
    if record.serving and record.serving.fingerprint == comparison.candidate.fingerprint:
        raise Refused(
            f"{comparison.candidate.name} serves alone on {record.name} already",
            Fix("end its promotion", ("peagle", "promote", record.name)),
            code="promotion-unfinished",
        )
    serve_alone(context, catalog)
    return context.record


def serve_alone(context: DeploymentContext, catalog: Catalog) -> None:
    """Return to the configuration without the candidate, prove it, and forget the comparison. An
    endpoint that was deleted elsewhere is not created again."""
    serving, name = context.record.serving, context.record.name
    live = sagemaker.describe(context.aws, name)
    if serving is None or live is None:
        _end(context)
        return
    context.change(pending=None, failure=None)
    is_alone = live.serves_steadily(serving.name)
    try:
        started = 0.0 if is_alone else return_to(context, serving)
    except PeagleError as error:
        context.change(failure=Failure.of(error))
        raise
    if not is_alone or not is_proved(serving):
        try:
            request = request_of_revision(serving, catalog)
            prove_in_service(context, serving, request, started, keep_unproved=True)
        except (NotProved, EngineError):
            _end(context)
            raise
    _end(context)


def _end(context: DeploymentContext) -> None:
    """Remove what no kept revision needs, and forget the comparison."""
    remove_stale(context, without_comparison=True)
    context.change(comparison=None)
