"""Compare a second plan with the one in service under real requests.

compare   weights -> model -> configuration of the candidate -> configuration of both -> in service
          -> proof of the candidate

``end_comparison`` promotes the candidate or drops it. Each may be repeated after an interruption:
the record has the comparison from the first step to the last one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from peagle import proof
from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.catalog.schema import Catalog
from peagle.deploy import alarms, steps
from peagle.deploy.apply import (
    remove_stale,
    restore_observability,
)
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.desired import DesiredState
from peagle.deploy.end_comparison import serve_alone
from peagle.deploy.owner import require_own
from peagle.deploy.preflight import Preflight
from peagle.deploy.proving.prove import prove_request
from peagle.deploy.proving.request import request_of_plan
from peagle.deploy.resources import DASHBOARD, Applied
from peagle.deploy.revisions import as_compared, deploy_command
from peagle.deploy.state import Deployment, Failure, Revision, RunningComparison
from peagle.deploy.variants import (
    CANDIDATE,
    candidate_share,
    candidate_weight,
    compares_now,
    require_no_comparison,
    required_comparison,
    weights_of,
    with_both_variants,
)
from peagle.errors import CloudError, EngineError, Fix, NotProved, PeagleError, Refused
from peagle.render.dashboard import dashboard_body, dashboard_name, has_dashboard
from peagle.render.requests import VARIANT

_SAME_SHARE = 0.0005

_NO_COPIES = (
    "and SageMaker shares requests by weight between variants with a model, not between inference "
    "components"
)


class CandidateNotProved(NotProved, code="candidate-not-proved"):
    """The candidate is not proved, and what served before serves alone again.

    Fix: compare another head, K or version; the message has what was measured
    """


def require_comparable(found: Preflight) -> Deployment:
    """The record of the deployment that the checked plan is compared with. Raises Refused when
    nothing proved is in service, for copies, when the plan serves already, and during another
    comparison."""
    record, name = found.record, found.desired.plan.name
    is_stable = found.change in ("update", "prove", "nothing") and not found.broken
    if record is None or record.serving is None or record.pending or not is_stable:
        raise Refused(
            f"{name} serves no proved plan to compare with",
            Fix("look at it", ("peagle", "status", name)),
            code="nothing-in-service",
        )
    require_own(record)
    candidate = found.desired.revision
    if record.serving.instances_config:
        beside = found.desired.plan.model_copy(update={"name": f"{name}-{CANDIDATE.lower()}"})
        raise Refused(
            f"{name} has copies of its model, {_NO_COPIES}",
            Fix(
                "serve the other plan as an endpoint of its own, and send it a part of the "
                "requests, or run bench against both",
                deploy_command(beside),
            ),
            code="copies-not-compared",
        )
    if candidate.instances_config:
        raise Refused(
            f"the second variant would have copies of its model, {_NO_COPIES}",
            "use --copies 1 within --with, and no --scale-to-zero",
            code="copies-not-compared",
        )
    if record.serving.fingerprint == candidate.fingerprint:
        raise Refused(
            f"{name} serves this plan already: there is nothing to compare",
            "state what differs within --with: TARGET+DRAFTER, --k, --no-speculation, or another "
            "option",
            code="nothing-to-compare",
        )
    if record.comparison and record.comparison.candidate.fingerprint != candidate.fingerprint:
        require_no_comparison(record)
    return record


def start_comparison(
    aws: Aws,
    found: Preflight,
    share: float,
    catalog: Catalog,
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> Deployment:
    """Serve the checked plan next to the revision in service, with ``share`` of the requests, and
    prove it; returns the record. Repeated, it continues, or changes the share.

    Raises what ``require_comparable`` and the steps raise, and CandidateNotProved: then what served
    before serves alone again. ``catalog`` says what to prove of that if another machine deployed
    it.
    """
    record = require_comparable(found)
    context = DeploymentContext(aws, record, observe, clock or Clock())
    live = sagemaker.describe(aws, record.name)
    if live and record.comparison and compares_now(record, live) and record.comparison.since:
        set_share(context, share)
        return context.record
    candidate = found.desired.revision
    both = as_compared(candidate)
    context.change(
        comparison=RunningComparison(candidate=candidate, config=both.name, share=share),
        failure=None,
    )
    try:
        started = _put_beside(context, found, both, share)
    except PeagleError as error:
        context.change(failure=Failure.of(error))
        with suppress(PeagleError):
            _forget_unless_begun(context)
        raise
    _prove_candidate(context, found.desired, started, catalog)
    set_share(context, share)
    _show_candidate(context, candidate)
    return context.record


def _put_beside(
    context: DeploymentContext, found: Preflight, both: Revision, share: float
) -> float:
    """Bring the configuration with both variants into service; returns what ``wait_in_service``
    does."""
    desired, serving = found.desired, context.record.serving
    assert serving is not None
    name = context.record.name
    live = sagemaker.describe(context.aws, name)
    described = sagemaker.description(context.aws, "EndpointConfig", serving.name)
    running = live.running.get(VARIANT, 0) if live else 0
    config = with_both_variants(both.name, described, running, desired.config, share)
    steps.upload_weights(context, desired)
    steps.create_model(context, desired)
    steps.create_config(context, desired.revision, desired.config)
    steps.create_config(context, both, config)
    request: dict[str, Any] = {"EndpointName": name, "EndpointConfigName": both.name}
    # The first variant keeps its type, so that its scaling goes on.
    kept = both.served.model_copy(update={"instance_type": serving.served.instance_type})
    both = both.model_copy(update={"served": kept})
    alarms.suspend_acceptance(context, desired.revision.served)
    steps.put_endpoint(context, both, request)
    return steps.wait_in_service(context, both, request)


def _forget_unless_begun(context: DeploymentContext) -> None:
    """After a failed start: without the second variant, nothing of the comparison stays."""
    live = sagemaker.describe(context.aws, context.record.name)
    serving = context.record.serving
    if live and serving and live.serves_steadily(serving.name):
        context.change(comparison=None)
        remove_stale(context)
        restore_observability(context, serving)


def _prove_candidate(
    context: DeploymentContext, desired: DesiredState, started: float, catalog: Catalog
) -> None:
    """Prove the second variant with requests to it alone; without a proof, end the comparison."""
    assert context.record.comparison is not None
    name, candidate = context.record.name, desired.revision
    request = replace(request_of_plan(desired.plan, name), variant=CANDIDATE)
    try:
        proved = prove_request(context, request, started)
        proof.require_passed(proved, request.pair, name)
    except (NotProved, EngineError) as error:
        context.say("Ending the comparison", error.message)
        serve_alone(context, catalog)
        raise CandidateNotProved(
            f"{error.message} with the compared plan; {name} serves what it served before, alone",
            error.remedy,
        ) from error
    except PeagleError as error:
        context.change(failure=Failure.of(error))
        raise
    compared = context.record.comparison.model_copy(
        update={
            "candidate": candidate.model_copy(update={"proof": proved}),
            "since": context.clock.now(),
        }
    )
    context.change(comparison=compared, failure=None)


def _show_candidate(context: DeploymentContext, candidate: Revision) -> None:
    """Show the candidate of a comparison on the dashboard too, where the plan in service has one.
    Where it cannot be written, a notice says so: both plans serve."""
    serving = context.record.serving
    if serving is None or serving.plan is None or candidate.plan is None:
        return
    try:
        if has_dashboard(serving.plan):
            body = dashboard_body(serving.plan, {CANDIDATE: candidate.plan})
            name = dashboard_name(serving.plan.name, serving.plan.region)
            DASHBOARD.put(Applied(context, serving.plan, serving), name, body)
    except CloudError as error:
        context.notice(f"the dashboard does not show the candidate: {error.message}")


def change_share(
    aws: Aws,
    record: Deployment,
    share: float,
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> Deployment:
    """Give the candidate another share of the requests; returns the record. Raises Refused unless
    both variants serve."""
    require_own(record)
    comparison = required_comparison(record)
    live = sagemaker.describe(aws, record.name)
    if comparison.since is None or not compares_now(record, live):
        raise Refused(
            f"the candidate of {record.name} does not serve yet, or no longer",
            "repeat the compare command with --with",
            code="comparison-not-running",
        )
    context = DeploymentContext(aws, record, observe, clock or Clock())
    set_share(context, share)
    return context.record


def set_share(context: DeploymentContext, share: float) -> None:
    """Give the candidate this share of the requests, and count from now on if that is a change."""
    comparison = required_comparison(context.record)
    name = context.record.name
    found = context.aws.call("sagemaker", "describe_endpoint", EndpointName=name)
    weights = weights_of(found.get("ProductionVariants") or (), "DesiredWeight")
    if abs(candidate_share(weights) - share) > _SAME_SHARE:
        context.say("Changing the share", f"{share:.1%} of the requests")
        weight = candidate_weight(share, weights.get(VARIANT) or 1.0)
        sagemaker.set_variant(context.aws, name, CANDIDATE, weight=weight)
        steps.wait_in_service(
            context,
            as_compared(comparison.candidate),
            {"EndpointName": name, "EndpointConfigName": comparison.config},
        )
        comparison = comparison.model_copy(update={"since": context.clock.now()})
    context.change(comparison=comparison.model_copy(update={"share": share}))
