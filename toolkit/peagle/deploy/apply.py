"""Deploy: apply the steps that preflight found necessary, prove, remove what is stale; and return
to a kept revision.

apply             weights -> model -> configuration -> alarms -> endpoint -> in service
prove_in_service  raises NotProved unless drafts are accepted; an update then returns to what served
                  before, and a first deployment stays, as Unproved
remove_stale      deletes what no kept revision needs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from peagle import proof
from peagle.aws import s3, sagemaker
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, InsufficientCapacity, Missing
from peagle.aws.sagemaker import BROKEN, BUSY, ID_TAG, ResourceKind, Tag
from peagle.catalog.schema import Catalog
from peagle.deploy import proving, resources, revisions, scaling
from peagle.deploy.context import (
    DeploymentContext,
    EndpointLog,
    WillNotServe,
    not_in_service,
    wait_while_busy,
)
from peagle.deploy.diff import Change
from peagle.deploy.discover import Live, compare_live
from peagle.deploy.preflight import DesiredState, Preflight
from peagle.deploy.removal import remove_failed_start
from peagle.deploy.state import Deployment, Failure, Resource, Revision
from peagle.errors import CloudError, EngineError, Fix, NotProved, PeagleError, Refused, UserError
from peagle.planning.operation import adapt_rollout, cost_text
from peagle.planning.plan import Plan
from peagle.planning.weights import parse_pins
from peagle.render.requests import REVISION_TAG, requests
from peagle.render.resources import END_TAGS, deployment_config
from peagle.s3uri import S3Uri
from peagle.text import format_duration
from peagle.weights.mounted import require_pinned

PAUSE_SECONDS = 60.0
"""Between two rounds without capacity: AWS frees instances within minutes, not seconds."""


class RolledBack(NotProved, code="rolled-back"):
    """The proof of an update failed, and what served before serves again.
    Fix: choose another head, K or version; with --keep-unproved the update stays, to look at it"""


def deploy(
    context: DeploymentContext,
    preflight: Preflight,
    wait: bool = True,
    *,
    keep_unproved: bool = False,
) -> Deployment:
    """Apply the change that ``preflight`` found, prove it, and remove what is stale; returns the
    record. Without ``wait`` it returns once the endpoint is requested; the next deploy continues.
    With ``keep_unproved``, an update whose proof fails stays in service."""
    desired, change = preflight.desired, preflight.change
    plan, revision = desired.plan, desired.revision
    context.record = preflight.record or context.record
    serves_on = change in ("nothing", "scale")  # of the same fingerprint
    if serves_on:
        _tag_again(context, desired)
        context.change(failure=None)
        put(context, revision, scaling.planned_end(context, revision))
    else:
        started = apply(context, desired, wait)
        if wait:
            request = proving.make_plan_request(plan, plan.name)
            prove_in_service(context, revision, request, started, keep_unproved)
    # An update to another instance type has ended the scaling.
    scales = preflight.scaling is not None or (plan.scaling is not None and change == "update")
    if scales and (wait or change == "scale"):
        resources.SCALING.register(context, plan.scaling)
    if serves_on and (serving := context.record.serving):
        context.change(serving=serving.model_copy(update={"plan": plan}))
    if wait:
        remove_stale(context)
    return context.record


def apply(context: DeploymentContext, desired: DesiredState, wait: bool = True) -> float:
    """Bring ``desired`` into service; records a failure, and continues an interrupted deployment.
    Returns when SageMaker began the update, in epoch seconds; 0 for a new endpoint."""
    revision = desired.revision
    end = scaling.planned_end(context, revision)
    context.change(pending=revision, failure=None)
    try:
        upload_weights(context, desired)
        resources.MODEL.put(context, revision, revision.model, desired.model)
        resources.CONFIG.put(context, revision, revision.endpoint_config, desired.config)
        ends = put(context, revision, end)
        request = desired.endpoint | {"Tags": [*desired.endpoint.get("Tags", ()), *ends]}
        put_endpoint(context, revision, request, watched_rollout)
        if desired.component and wait:
            _put_copies(context, revision, desired.component, watched_rollout)
        return wait_in_service(context, revision, request) if wait else 0.0
    except PeagleError as error:
        context.change(failure=Failure.of(error))
        serving = context.record.serving
        if serving is not None and context.record.pending is None:  # AWS rolled the update back
            with suppress(PeagleError):
                scaling.return_to_scaling(context, serving)
            restore_observability(context, serving)
        raise


def put(context: DeploymentContext, revision: Revision, end: scaling.End) -> tuple[Tag, ...]:
    """Apply what the plan sets outside of its endpoint, and its end; the tags of the endpoint."""
    resources.put_settings(context, revision)
    return scaling.set_end(context, revision, end)


def _tag_again(context: DeploymentContext, desired: DesiredState) -> None:
    tags = desired.plan.company.tags
    endpoint = sagemaker.describe(context.aws, context.record.name) if tags else None
    if endpoint is None:
        return
    live = Live(context.aws, endpoint)
    if tags.items() <= live.tags.items():
        return
    context.say("Tagging", ", ".join(f"{key}={value}" for key, value in sorted(tags.items())))
    arns = [live.model["ModelArn"], live.config["EndpointConfigArn"]]
    arns += [endpoint.component["InferenceComponentArn"]] if endpoint.component else []
    for arn in (*arns, endpoint.arn):
        sagemaker.retag(context.aws, arn, desired.plan.company.tag_list)


def upload_weights(context: DeploymentContext, desired: DesiredState) -> None:
    """Upload folders of weights to S3; create the bucket if it does not exist."""
    total, done = sum(upload.size for upload in desired.uploads), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        context.say_bytes("Uploading", done, total)

    def leave_out(count: int) -> None:
        nonlocal total
        total -= count

    for upload in desired.uploads:
        resources.BUCKET.put(context, desired.revision, upload.bucket, {})
        objects = desired.revision.resource("S3Objects", upload.uri)
        objects = objects.model_copy(update={"keys": upload.keys, "contents": upload.contents})
        earlier = tuple(
            key
            for folder in context.record.of_type("S3Objects")
            if S3Uri.parse(folder.name).bucket == upload.bucket
            for key in folder.keys
        )
        with context.creating(objects):
            key = desired.plan.company.kms_key
            s3.upload_missing(context.aws, upload, advance, leave_out, earlier, key)


RolloutOf = Callable[[Revision, int], dict[str, Any]]
"""The parameter of UpdateEndpoint, or of UpdateInferenceComponent, with the rollout of an update to
a revision with so many instances or copies."""


def at_once(revision: Revision, count: int) -> dict[str, Any]:
    """All instances at once."""
    return {}


def watched_rollout(revision: Revision, count: int) -> dict[str, Any]:
    """The rollout of the revision's plan, which its alarms undo; none without one."""
    config = deployment_config(revision.plan, count) if revision.plan else None
    return {"DeploymentConfig": config} if config else {}


def unwatched_rollout(revision: Revision, count: int) -> dict[str, Any]:
    """The rollout of the revision's plan without its alarms: on the way back, an alarm in the state
    ALARM would undo it, and the proof follows."""
    parameter = watched_rollout(revision, count)
    if parameter:
        del parameter["DeploymentConfig"]["AutoRollbackConfiguration"]
    return parameter


def put_endpoint(
    context: DeploymentContext,
    revision: Revision,
    request: dict[str, Any],
    rollout_of: RolloutOf = at_once,
) -> None:
    """Create or update the endpoint by ``request``, that of CreateEndpoint, unless that is
    happening. Another change ends first, and a broken endpoint is deleted."""
    aws, name, clock = context.aws, context.record.name, context.clock
    live = sagemaker.describe(aws, name)
    arriving = {"Creating": live.revision, "Updating": live.pending_revision} if live else {}
    if live and live.status in BUSY and arriving.get(live.status) != revision.name:
        live = wait_while_busy(context, revision, clock.now())
    if live and live.status in BROKEN:
        reason = live.failure or "no reason given"
        context.say("Removing", f"the endpoint is {live.status}: {reason}")
        resources.delete_endpoint(context, live)
        live = None
    if live is None:
        resources.ENDPOINT.put(context, revision, name, request)
    elif not live.hosts_components and revision.name not in (live.revision, live.pending_revision):
        with context.creating(revision.resource("Endpoint", name)):
            context.say("Updating endpoint", name)
            kept = scaling.keeps_count(aws, context.record, live)
            scaling.end_scaling_for_new_type(context, revision, live)
            count = live.instance_count if kept else revision.served.instance_count
            if len(live.running) > 1 or revisions.is_comparison(revision.fingerprint):
                count = 1  # SageMaker replaces several variants at once only
            update = request | rollout_of(revision, count)
            sagemaker.update(aws, update, count, clock, keep_count=kept)


def _put_copies(
    context: DeploymentContext,
    revision: Revision,
    request: dict[str, Any],
    rollout_of: RolloutOf,
) -> None:
    """Create the component of ``request``, or update it to that model, unless that is happening.
    Waits for the instances first."""
    aws = context.aws
    live = sagemaker.describe(aws, context.record.name)
    if live and live.status in BUSY and live.revision != revision.name:
        log = EndpointLog(aws, live, live.created)
        live = wait_while_busy(context, revision, live.created, log)
        if live and live.status != "InService":
            raise not_in_service(live, log)
    if live is None or live.revision == revision.name:
        return
    count = request["RuntimeConfig"]["CopyCount"]
    if live.component is None:
        context.say("Creating copies", f"{count}")
        id_tag = {"Key": ID_TAG, "Value": context.record.id}
        tags = [*request.get("Tags", ()), id_tag, revision.tag]
        aws.call("sagemaker", "create_inference_component", **{**request, "Tags": tags})
        return
    context.say("Updating copies", f"to {revision.name}")
    running = live.desired_copies
    if scaling.keeps_count(aws, context.record, live):
        count = max(1, live.desired_copies)
    request = {**request, "RuntimeConfig": {"CopyCount": count}}
    if running:  # none serves after a scale to zero
        request |= rollout_of(revision, min(count, running))
    sagemaker.update_component(aws, request, running)


def wait_in_service(
    context: DeploymentContext, revision: Revision, request: dict[str, Any]
) -> float:
    """Wait until the endpoint serves the revision; returns what ``apply`` does. When AWS rolled an
    update back, nothing is pending. Raises CloudError with the cause."""
    updating, started = False, 0.0
    if live := sagemaker.describe(context.aws, context.record.name):
        if context.record.billing_since is None:
            context.change(billing_since=live.created)
        updating = live.status == "Updating"
        started = live.changed if updating else live.created
        since = started if updating else context.record.billing_since or started
        log = EndpointLog(context.aws, live, started)
        live = wait_while_busy(context, revision, since, log)
    if live is None:
        message = f"endpoint {context.record.name} disappeared during the deployment"
        fix = "another client deleted it; deploy again"
        raise CloudError(message, fix, "endpoint-disappeared")
    if live.status != "InService" or live.revision != revision.name:
        serving = context.record.serving
        if live.status == "InService" and serving and serving.name == live.revision:
            context.change(pending=None)
        raise not_in_service(live, log)
    sagemaker.retag(context.aws, live.arn, [*request.get("Tags", ()), revision.tag])
    return started if updating else 0.0


def prove_in_service(
    context: DeploymentContext,
    revision: Revision,
    request: proving.ProofRequest,
    started: float = 0.0,
    keep_unproved: bool = False,
) -> None:
    """Prove that the endpoint in service speculates; ``revision`` is the serving one then.
    ``started`` is when the update to it began, in epoch seconds. A failed proof returns the
    endpoint to the proved revision that served before, unless ``keep_unproved``: raises RolledBack,
    or CloudError when that fails. Without such a revision it stays, unproved: raises NotProved."""
    name = context.record.name
    role = "serving" if revisions.is_alone(context.record, revision) else "pending"
    revision = revision.model_copy(update={"proof": None})
    context.change(**{"pending": None, role: revision, "failure": None})
    try:
        with context.recording_failure():
            proved = proving.prove_request(context, request, started)
            revision = revision.model_copy(update={"proof": proved})
            context.change(**{role: revision})  # also a proof that fails
            if role == "serving" and not proved.passed:
                proving.tag_proofs(context, revision, context.record.previous)
            proof.require_passed(proved, request.pair, name)
    except (NotProved, EngineError) as error:
        before = context.record.serving
        if role == "serving" or not (before and before.is_proved):
            before = None
        if before and not keep_unproved:
            _roll_back(context, before, error)
        remove_stale(context)
        fix = Fix("return to what served before", ("peagle", "rollback", name))
        message = f"{error.message}; {name} stays in service unproved"
        raise type(error)(message, fix if before else error.remedy, error.code) from error
    fields = revisions.fields_when_proved(context.record, revision)
    proving.tag_proofs(context, revision, fields["previous"])
    context.change(**fields)
    remove_stale(context)


def _roll_back(context: DeploymentContext, before: Revision, error: PeagleError) -> NoReturn:
    name = context.record.name
    context.say("Rolling back", f"to {before.name}: {error.message}")
    try:
        with context.recording_failure():
            require_weights_of(context, before)
            return_to(context, before)
            scaling.return_to_scaling(context, before)
    except PeagleError as failed:
        raise CloudError(
            f"{error.message}; the return to {before.name} failed: {failed.message}",
            Fix("look at the state, then repeat", ("peagle", "rollback", name)),
            code="rollback-failed",
        ) from failed
    rolled_back = RolledBack(
        f"{error.message}; {name} was rolled back and serves {before.name} again, as before",
        error.remedy,
    )
    context.change(pending=None, failure=Failure.of(rolled_back))
    remove_stale(context)
    raise rolled_back from error


def require_weights_of(context: DeploymentContext, revision: Revision) -> None:
    """Raise Refused if the weights of a kept revision have changed since it was deployed."""
    mounted, pins = revision.served.weights.get("model"), parse_pins(revision.served.variables)
    require_pinned(context.aws, context.record.name, mounted, pins)


def return_to(
    context: DeploymentContext, revision: Revision, rollout_of: RolloutOf = at_once
) -> float:
    """Move the endpoint to the configuration of a kept revision, and wait until that serves;
    returns what ``apply`` does. At once where what serves is not proved, or is half of a
    comparison."""
    aws, name, plan = context.aws, context.record.name, revision.plan
    kind: ResourceKind = "Model" if revision.instances_config else "EndpointConfig"
    description = sagemaker.description(aws, kind, revision.name)
    existing: dict[str, str] = {}
    with suppress(AccessDenied):
        existing = sagemaker.read_tags(aws, description[f"{kind}Arn"])
    kept = existing.keys() - {ID_TAG, REVISION_TAG, *END_TAGS}
    tags = [
        {"Key": key, "Value": existing[key]} for key in sorted(kept) if not key.startswith("aws:")
    ]
    tags += scaling.keep_end(context, revision, existing)
    request = {
        "EndpointName": name,
        "EndpointConfigName": revision.endpoint_config,
        "Tags": tags,
    }
    put_endpoint(context, revision, request, rollout_of)
    live = sagemaker.describe(aws, name)
    if live and live.component:
        component: dict[str, Any] = {  # without the plan, with what the copies reserve now
            "InferenceComponentName": name,
            "Specification": live.component["Specification"],
            "RuntimeConfig": {"CopyCount": revision.served.copies or live.desired_copies},
        }
        if plan is not None:
            component = dict(requests(plan)[-1].parameters)
        component["Specification"] = {**component["Specification"], "ModelName": revision.model}
        _put_copies(context, revision, component, rollout_of)
    started = wait_in_service(context, revision, request)
    restore_observability(context, revision)
    return started


def restore_observability(context: DeploymentContext, revision: Revision) -> None:
    """Give alarms and dashboard the values of a kept revision that serves again, if its plan is on
    this machine. Where they cannot be written, they stay, with a notice: the endpoint serves."""
    try:
        if revision.plan is not None:
            resources.put_settings(context, revision)
    except CloudError as error:
        context.notice(f"alarms and dashboard are of the plan before: {error.message}")


def remove_stale(context: DeploymentContext, without_comparison: bool = False) -> None:
    """Remove what no kept revision needs, while the endpoint serves a kept one. With
    ``without_comparison``, the candidate of a comparison is not kept."""
    record = context.record
    if without_comparison:
        record = record.model_copy(update={"comparison": None})
    stale = revisions.stale_resources(record)
    live = sagemaker.describe(context.aws, record.name) if stale else None
    kept = [revision.name for revision in context.record.revisions]
    if live is None or live.status != "InService" or live.revision not in kept:
        return
    for resource in stale:
        try:
            resources.remove(context, resource)
        except AccessDenied as denied:
            context.say("Kept", f"{resource.text}: {denied.message}")


@dataclass(frozen=True)
class RollbackPlan:
    """The revision that ``rollback`` returns to, what that changes in what the endpoint serves, and
    how it replaces the instances."""

    target: Revision
    changes: tuple[Change, ...] = ()
    rollout: str = ""


def plan_rollback(aws: Aws, record: Deployment) -> RollbackPlan:
    """What ``rollback`` would do. Raises Refused when there is no revision to return to."""
    target = _revision_for_rollback(record)
    live = sagemaker.describe(aws, record.name)
    if live is None:
        return RollbackPlan(target)
    plan, count = target.plan, scaling.count_at_update(aws, record, target, live)
    rollout = "none"
    if plan and plan.rollout:
        adapted = plan.rollout if plan.copies else adapt_rollout(plan.rollout, count)
        rollout = cost_text(adapted, watched=False)
    return RollbackPlan(target, compare_live(record, live, target), rollout)


def _revision_for_rollback(record: Deployment) -> Revision:
    revisions.require_own(record)
    revisions.require_no_comparison(record)
    target = revisions.rollback_target(record)
    if target is None:
        message = f"there is no revision of {record.name} to return to"
        fix = Fix("look at its state", ("peagle", "status", record.name))
        raise Refused(message, fix, "no-previous-revision")
    return target


def rollback(context: DeploymentContext, catalog: Catalog) -> Deployment:
    """Return to the previous revision and prove it again; with an update that is not finished or
    not proved, to what served before that. The same call continues an interrupted rollback.
    ``catalog`` says what to prove of a revision that another machine deployed. A revision whose
    proof fails now stays in service, unproved."""
    record = context.record
    target = _revision_for_rollback(record)
    require_weights_of(context, target)
    is_previous = target is record.previous
    unproved = target.model_copy(update={"proof": None})
    context.change(failure=None, **({"pending": unproved} if is_previous else {}))
    try:
        with context.recording_failure():
            started = return_to(context, target, unwatched_rollout)
    except Missing as error:
        if is_previous:
            context.change(pending=None, previous=None)
        message = f"the previous revision cannot serve: {error.message}"
        raise Refused(message, "deploy its plan again", "previous-missing") from error
    request = proving.make_revision_request(target, catalog)
    prove_in_service(context, target, request, started, keep_unproved=True)
    scaling.return_to_scaling(context, target)
    return context.record


def remove_previous(context: DeploymentContext) -> tuple[Resource, ...]:
    """Remove what only the previous revision needs; what was removed. Raises Refused while a
    rollback to it is not finished, and for another owner's deployment."""
    record = context.record
    revisions.require_own(record)
    if record.previous and record.pending and record.pending.name == record.previous.name:
        fix = Fix("finish that first", ("peagle", "rollback", record.name))
        message = f"{record.name} is being rolled back to its previous revision"
        raise Refused(message, fix, "rollback-unfinished")
    context.change(previous=None)
    remove_stale(context)
    return tuple(each for each in record.resources if each not in context.record.resources)


Outcome = Literal["deployed", "no-capacity", "refused", "failed"]


@dataclass(frozen=True)
class Attempt:
    """One instance type that was tried, for how long, and its price. ``refused``: nothing was
    created, as its plan or the account did not allow it."""

    instance_type: str
    instance_count: int
    price_per_hour_usd: float | None
    seconds: float
    outcome: Outcome
    reason: str = ""


@dataclass
class Fallback:
    """What to do when AWS has no instance of the planned type: ``plans`` on other types, in the
    order in which they are tried; ``prepare`` checks one in the account. All are tried again until
    ``retry_seconds`` are over. ``attempts`` is what was tried."""

    prepare: Callable[[Plan], Preflight]
    plans: Sequence[Plan] = ()
    retry_seconds: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)


def deploy_where_possible(
    context: DeploymentContext,
    planned: Preflight,
    fallback: Fallback,
    wait: bool = True,
    *,
    keep_unproved: bool = False,
    keeps_failed: Callable[[WillNotServe], bool] = lambda error: True,
) -> Preflight:
    """Deploy ``planned``, then the plans on other types, until one does not raise
    InsufficientCapacity; returns the one that is deployed. Raises the last such error, and at once
    whatever else ``deploy`` raises. What was created for an engine that will never serve is
    removed, unless ``keeps_failed`` says otherwise; it may ask."""
    clock, attempts = context.clock, fallback.attempts

    def attempt(preflight: Preflight) -> InsufficientCapacity | None:
        plan, started, full = preflight.desired.plan, clock.now(), None
        outcome: Outcome = "failed"
        reason = ""
        try:
            deploy(context, preflight, wait, keep_unproved=keep_unproved)
            outcome = "deployed"
        except InsufficientCapacity as error:
            outcome, reason, full = "no-capacity", error.message, error
            after = format_duration(clock.now() - started)
            context.notice(f"{plan.instance_type}, after {after}: {reason}", "No capacity")
        except PeagleError as error:
            reason = error.message
            if isinstance(error, WillNotServe) and not keeps_failed(error):
                remove_failed_start(context)
                error.message += "; removed"
                if error.command[:2] == ("peagle", "logs"):  # of an endpoint that is gone
                    error.fix, error.command = "deploy with --keep-failed to read its log", ()
            raise
        finally:
            of_plan = (plan.instance_type, plan.instance_count, plan.price_per_hour_usd)
            seconds = round(clock.now() - started, 1)
            attempts.append(Attempt(*of_plan, seconds, outcome, reason))
        return full

    began, checked = clock.now(), [planned]
    plans = [planned.desired.plan, *fallback.plans]
    error: InsufficientCapacity | None = None
    while True:
        for plan in tuple(plans):
            try:
                preflight = checked.pop() if checked else fallback.prepare(plan)
            except (Refused, UserError) as refused:
                kind = plan.instance_type
                attempts.append(Attempt(kind, 0, None, 0.0, "refused", refused.message))
                context.notice(f"{kind}: {refused}", "Refused")
                plans.remove(plan)
                continue
            error = attempt(preflight)
            if error is None:
                return preflight
        remaining = began + fallback.retry_seconds - clock.now()
        if remaining <= 0 or not plans:
            assert error is not None, "the planned type is tried first"
            error.tried = attempts
            raise error
        pause = min(PAUSE_SECONDS, remaining)
        context.say("Waiting for capacity", f"next attempt in {pause:.0f} s")
        clock.sleep(pause)
