"""Compare a second plan with the one in service under real requests.

compare   weights -> model -> configuration of the candidate -> configuration of both -> in service
          -> proof of the candidate
promote   the candidate's own configuration serves, and the rest of its plan applies; the revision
          that served is the previous one
drop      what served before serves alone, and what only the candidate needs is removed

Each may be repeated after an interruption: the record has the comparison from the first step to the
last one. The two variants differ only in what the user asked for.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from peagle import proof
from peagle.aws import sagemaker
from peagle.catalog.find import find_pair
from peagle.catalog.schema import Catalog
from peagle.deploy import apply, revisions
from peagle.deploy.context import DeploymentContext
from peagle.deploy.preflight import Preflight
from peagle.deploy.proving import make_plan_request, make_revision_request, prove_request
from peagle.deploy.resources import CONFIG, MODEL, SCALING
from peagle.deploy.scaling import End, planned_end, set_end
from peagle.deploy.state import Deployment, Revision, RunningComparison
from peagle.errors import (
    EngineError,
    Fix,
    NotFound,
    NotProved,
    PeagleError,
    Refused,
    UserError,
)
from peagle.options import Options
from peagle.planning import Plan
from peagle.render.requests import VARIANT, reproduce_options

_LIMIT = {"ttl", "budget", "no_limit"}
_INSTANCES = {"instance_type", "instance_count"}
_TARGET_OPTIONS = {
    "model_source", "weights_by", "baked_weights", "image", "vllm", "max_model_len", "settings",
    "environment", "startup_timeout", "download_timeout", "warm_sha256", "allow_unpinned_warm",
}  # fmt: skip
"""Options that a different target does not share."""

_SPECULATION_OPTIONS = {"drafter", "k", "no_speculation"}
_REPLACES = {"image": {"vllm"}, "vllm": {"image", "baked_weights"}, "verdict": _INSTANCES}
"""An option that the user states -> options of the deployment that it replaces."""

_OF_ENDPOINT = (
    "KmsKeyId", "DataCaptureConfig", "VpcConfig", "EnableNetworkIsolation", "ExecutionRoleArn",
    "MetricsConfig",
)  # fmt: skip
"""Members of a configuration that concern all variants: those of the one in service stay."""

_SAME_SHARE = 0.0005


class CandidateNotProved(NotProved, code="candidate-not-proved"):
    """The candidate is not proved, and what served before serves alone again.
    Fix: compare another head, K or version; the message has what was measured"""


def candidate_options(
    plan: Plan, asked: tuple[str, dict[str, Any]], catalog: Catalog
) -> tuple[str, dict[str, Any]]:
    """The pair and the options of the plan to compare with the deployed ``plan``, from those that
    the user states."""
    pair, stated = asked
    deployed = reproduce_options(plan)
    options = {name: getattr(deployed, name) for name in Options.model_fields if name != "pair"}
    options["no_speculation"] = not options.pop("speculation")
    dropped = _LIMIT.union(*(_REPLACES.get(option, set()) for option in stated))
    target, _, typed = pair.partition("+")
    drafter = stated.get("drafter") or typed
    with suppress(NotFound, UserError):  # what the catalogue does not have stays as typed
        target = find_pair(catalog, target).target.id
    if target not in {plan.target.id, plan.target.weights.location}:
        dropped |= _TARGET_OPTIONS | _SPECULATION_OPTIONS
    elif {"no_speculation", "verdict"} & stated.keys():
        dropped |= _SPECULATION_OPTIONS
    elif drafter:
        same = plan.drafter is not None and drafter in {plan.drafter.name, plan.drafter.id}
        dropped |= {"drafter", "no_speculation"} if same else _SPECULATION_OPTIONS
    elif plan.speculation is not None:
        pair = deployed.pair
    elif "k" in stated:
        dropped |= {"no_speculation"}
    kept = {name: value for name, value in options.items() if name not in dropped}
    merged = {
        name: {**kept.get(name, {}), **stated[name]}
        for name in ("settings", "environment", "tags")
        if isinstance(stated.get(name), dict)
    }
    return pair, {**kept, **stated, **merged}


def require_comparable(preflight: Preflight) -> Deployment:
    """The record of the deployment that the checked plan is compared with. Raises Refused when
    nothing proved is in service, for copies, when the plan serves already, and during another
    comparison."""
    record, name = preflight.record, preflight.desired.plan.name
    is_stable = preflight.change in ("update", "prove", "nothing") and not preflight.broken
    if record is None or record.serving is None or record.pending or not is_stable:
        look = Fix("look at it", ("peagle", "status", name))
        raise Refused(f"{name} serves no proved plan to compare with", look, "nothing-in-service")
    revisions.require_own(record)
    candidate = preflight.desired.revision
    if record.serving.instances_config or candidate.instances_config:
        raise Refused(
            "one of the plans has copies of its model, and SageMaker shares requests by weight "
            "between variants with a model only",
            "serve the other plan as an endpoint of its own, with another --name",
            code="not-comparable",
        )
    if record.serving.fingerprint == candidate.fingerprint:
        fix = "state what differs within --with: TARGET+DRAFTER, --k or another option"
        raise Refused(f"{name} serves this plan already", fix, "nothing-to-compare")
    if record.comparison and record.comparison.candidate.fingerprint != candidate.fingerprint:
        revisions.require_no_comparison(record)
    return record


def start_comparison(
    context: DeploymentContext, preflight: Preflight, share: float, catalog: Catalog
) -> Deployment:
    """Serve the checked plan next to the revision in service, with ``share`` of the requests, and
    prove it. Repeated, it continues, or changes the share. Raises CandidateNotProved: then what
    served before serves alone again; ``catalog`` says what to prove of that without its plan."""
    desired, record = preflight.desired, require_comparable(preflight)
    context.record = record
    name, candidate = record.name, desired.revision
    live = sagemaker.describe(context.aws, name)
    if record.comparison and record.comparison.since and revisions.compares_now(record, live):
        _set_share(context, share)
        return context.record
    both = revisions.as_compared(candidate)
    comparison = RunningComparison(candidate=candidate, config=both.name, share=share)
    context.change(comparison=comparison, failure=None)
    try:
        with context.recording_failure():
            started = _put_candidate(context, preflight, both, share)
    except PeagleError:
        with suppress(PeagleError):  # without the second variant, nothing of the comparison stays
            live = sagemaker.describe(context.aws, name)
            if live and record.serving and live.serves_steadily(record.serving.name):
                context.change(comparison=None)
                apply.remove_stale(context)
        raise
    request = replace(make_plan_request(desired.plan, name), variant=revisions.CANDIDATE)
    try:
        with context.recording_failure():
            proved = prove_request(context, request, started)
            proof.require_passed(proved, request.pair, name)
    except (NotProved, EngineError) as error:
        context.say("Ending the comparison", error.message)
        _serve_alone(context, catalog)
        raise CandidateNotProved(
            f"{error.message} with the compared plan; {name} serves what it served before, alone",
            error.remedy,
        ) from error
    proved_candidate = candidate.model_copy(update={"proof": proved})
    since = context.clock.now()
    comparison = comparison.model_copy(update={"candidate": proved_candidate, "since": since})
    context.change(comparison=comparison, failure=None)
    _set_share(context, share)
    return context.record


def _put_candidate(
    context: DeploymentContext, preflight: Preflight, both: Revision, share: float
) -> float:
    """Bring the configuration with both variants into service; returns what ``wait_in_service``
    does."""
    desired, serving, name = preflight.desired, context.record.serving, context.record.name
    assert serving is not None
    live = sagemaker.describe(context.aws, name)
    described = sagemaker.description(context.aws, "EndpointConfig", serving.name)
    only = described["ProductionVariants"][0]
    running = live.running.get(VARIANT, 0) if live else 0
    first = {**only, "InitialInstanceCount": running or only["InitialInstanceCount"]}
    second = {
        **desired.config["ProductionVariants"][0],
        "VariantName": revisions.CANDIDATE,
        "InitialVariantWeight": revisions.candidate_weight(
            share, first.get("InitialVariantWeight") or 1.0
        ),
    }
    config = {
        "EndpointConfigName": both.name,
        "ProductionVariants": [first, second],
        **{key: described[key] for key in _OF_ENDPOINT if described.get(key)},
        "Tags": desired.config["Tags"],
    }
    apply.upload_weights(context, desired)
    MODEL.put(context, desired.revision, desired.revision.model, desired.model)
    CONFIG.put(context, desired.revision, desired.revision.name, desired.config)
    CONFIG.put(context, both, both.name, config)
    request: dict[str, Any] = {"EndpointName": name, "EndpointConfigName": both.name}
    # The first variant keeps its type, so that its scaling goes on.
    kept = both.served.model_copy(update={"instance_type": serving.served.instance_type})
    both = both.model_copy(update={"served": kept})
    apply.put_endpoint(context, both, request)
    return apply.wait_in_service(context, both, request)


def change_share(context: DeploymentContext, share: float) -> Deployment:
    """Give the candidate another share of the requests. Raises Refused unless both variants
    serve."""
    record = context.record
    revisions.require_own(record)
    comparison = revisions.required_comparison(record)
    live = sagemaker.describe(context.aws, record.name)
    if comparison.since is None or not revisions.compares_now(record, live):
        message = f"the candidate of {record.name} does not serve yet, or no longer"
        fix = "repeat the compare command with --with"
        raise Refused(message, fix, "comparison-not-running")
    _set_share(context, share)
    return context.record


def _set_share(context: DeploymentContext, share: float) -> None:
    """Give the candidate this share of the requests, and count from now on if that is a change."""
    comparison = revisions.required_comparison(context.record)
    name = context.record.name
    description = context.aws.call("sagemaker", "describe_endpoint", EndpointName=name)
    weights = revisions.read_variant_weights(
        description.get("ProductionVariants") or (), "DesiredWeight"
    )
    if abs(revisions.candidate_share(weights) - share) > _SAME_SHARE:
        context.say("Changing the share", f"{share:.1%} of the requests")
        weight = revisions.candidate_weight(share, weights.get(VARIANT) or 1.0)
        sagemaker.set_variant(context.aws, name, revisions.CANDIDATE, weight=weight)
        request = {"EndpointName": name, "EndpointConfigName": comparison.config}
        apply.wait_in_service(context, revisions.as_compared(comparison.candidate), request)
        comparison = comparison.model_copy(update={"since": context.clock.now()})
    context.change(comparison=comparison.model_copy(update={"share": share}))


def promote(context: DeploymentContext, catalog: Catalog) -> Deployment:
    """Let the candidate serve alone, prove that, and apply the rest of its plan; what served is the
    previous revision then. Without a proof, that serves alone again."""
    record = context.record
    revisions.require_own(record)
    candidate = revisions.required_comparison(record).candidate
    end = planned_end(context, candidate)
    plan, before = candidate.plan, record.serving
    if before and before.fingerprint == candidate.fingerprint:  # promoted, but not to the end
        before = record.previous
    else:
        apply.require_weights_of(context, candidate)
        context.change(pending=candidate.model_copy(update={"proof": None}), failure=None)
        with context.recording_failure():
            set_end(context, candidate, end)
            started = apply.return_to(context, candidate)
        _prove_or_end(context, candidate, catalog, started)
        end = End(context.record.ends_at, context.record.budget_usd)
    # A change of the instance type has ended the scaling of the plan before.
    scaling = plan.scaling if plan else None
    if before and before.served.instance_type != candidate.served.instance_type:
        scaling = scaling or (before.plan.scaling if before.plan else None)
    if scaling:
        SCALING.register(context, scaling)
    if plan:
        apply.put(context, candidate, end)
    else:
        context.say("Not applied", "alarms, dashboard and limit of a plan of another machine")
    _end(context)
    return context.record


def drop(context: DeploymentContext, catalog: Catalog) -> Deployment:
    """Let the revision that served before the comparison serve alone, and prove that; then remove
    what only the candidate needs. Raises Refused once the candidate serves alone."""
    record = context.record
    revisions.require_own(record)
    candidate = revisions.required_comparison(record).candidate
    if record.serving and record.serving.fingerprint == candidate.fingerprint:
        message = f"{candidate.name} serves alone on {record.name} already"
        fix = Fix("end its promotion", ("peagle", "promote", record.name))
        raise Refused(message, fix, "promotion-unfinished")
    _serve_alone(context, catalog)
    return context.record


def _serve_alone(context: DeploymentContext, catalog: Catalog) -> None:
    """Return to the configuration without the candidate, prove it, and forget the comparison."""
    serving = context.record.serving
    live = sagemaker.describe(context.aws, context.record.name)
    if serving and live:
        context.change(pending=None, failure=None)
        is_alone, started = live.serves_steadily(serving.name), 0.0
        if not is_alone:
            with context.recording_failure():
                started = apply.return_to(context, serving)
        if not is_alone or not serving.is_proved:
            _prove_or_end(context, serving, catalog, started, keep_unproved=True)
    _end(context)


def _prove_or_end(
    context: DeploymentContext,
    revision: Revision,
    catalog: Catalog,
    started: float,
    keep_unproved: bool = False,
) -> None:
    """Prove the revision in service; without a proof, the comparison ends."""
    try:
        request = make_revision_request(revision, catalog)
        apply.prove_in_service(context, revision, request, started, keep_unproved)
    except (NotProved, EngineError):
        _end(context)
        raise


def _end(context: DeploymentContext) -> None:
    """Remove what no kept revision needs, and forget the comparison."""
    apply.remove_stale(context, without_comparison=True)
    context.change(comparison=None)
