"""Deploy: apply the steps that preflight found necessary, prove, remove what is stale.

apply             weights -> model -> configuration -> alarms -> endpoint -> in service
prove_in_service  raises NotProved unless drafts are accepted; an update then returns to what served
                  before, and a first deployment stays, as Unproved
remove_stale      deletes what no kept revision needs
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from peagle import proof
from peagle.aws import s3, sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import BROKEN, BUSY, ID_TAG, Endpoint, ResourceKind, Tag
from peagle.deploy import alarms, limits
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.desired import DesiredState
from peagle.deploy.discover import Live
from peagle.deploy.limits import End, planned_end
from peagle.deploy.preflight import Preflight
from peagle.deploy.proving import ProofRequest, prove_request, request_of_plan, tag_proofs
from peagle.deploy.resources import (
    ALARMS,
    BUCKET,
    CONFIG,
    FILTERS,
    MODEL,
    delete,
    delete_endpoint,
    put_settings,
)
from peagle.deploy.revisions import (
    fields_when_proved,
    is_alone,
    is_comparison,
    is_proved,
    stale_resources,
)
from peagle.deploy.scaling import (
    SCALING_TAG,
    apply_scaling,
    end_scaling_for_new_type,
    keeps_count,
    kept_copies,
    return_to_scaling,
    tag_scaling,
)
from peagle.deploy.state import Deployment, Failure, Revision
from peagle.deploy.wait import EndpointLog, not_in_service, wait_while_busy
from peagle.errors import CloudError, EngineError, Fix, NotProved, PeagleError
from peagle.planning.weights import pins_of
from peagle.render.requests import REVISION_TAG, requests
from peagle.render.resources import END_TAGS
from peagle.s3uri import S3Uri
from peagle.weights.pins import require_pinned


def put_copies(
    context: DeploymentContext,
    revision: Revision,
    request: dict[str, Any],
    rolled_out: bool = False,
) -> None:
    """Create the component of ``request``, CreateInferenceComponent, or update it to that model,
    unless SageMaker is already doing so. Waits for the instances first. With ``rolled_out``, an
    update has the rollout of the revision's plan."""
    live = sagemaker.describe(context.aws, context.record.name)
    if live and live.status in sagemaker.BUSY and live.revision != revision.name:
        log = EndpointLog(context.aws, live, live.created)
        live = wait_while_busy(context, revision, live.created, log)
        if live and live.status != "InService":
            raise not_in_service(live, log)
    if live is None or live.revision == revision.name:
        return
    if live.component is None:
        context.say("Creating copies", f"{request['RuntimeConfig']['CopyCount']}")
        id_tag = {"Key": ID_TAG, "Value": context.record.id}
        tags = [*request.get("Tags", ()), id_tag, revision.tag]
        sagemaker.create_component(context.aws, {**request, "Tags": tags})
    else:
        context.say("Updating copies", f"to {revision.name}")
        plan, running = revision.plan, live.component.desired_copies
        scales = plan is not None and plan.scaling is not None
        count = kept_copies(context.aws, live, request["RuntimeConfig"]["CopyCount"], scales)
        steps = {}
        if rolled_out and running:  # none serves after a scale to zero
            steps = alarms.rollout_parameter(context, revision, min(count, running))
        request = {**request, "RuntimeConfig": {"CopyCount": count}, **steps}
        sagemaker.update_component(context.aws, request, running)


def request_to_return(live: Endpoint, revision: Revision) -> dict[str, Any]:
    """The request that brings the copies back to a kept revision: by its plan, else with what the
    copies reserve now."""
    if revision.plan is not None:
        request = dict(requests(revision.plan)[-1].parameters)
    else:
        assert live.component is not None
        request = {
            "InferenceComponentName": live.name,
            "Specification": dict(live.component.specification),
            "RuntimeConfig": {"CopyCount": revision.served.copies or live.component.desired_copies},
        }
    request["Specification"] = {**request["Specification"], "ModelName": revision.model}
    return request


def upload_weights(context: DeploymentContext, desired: DesiredState) -> None:
    """Upload folders of weights to S3; create the bucket if it does not exist."""
    total = sum(upload.size for upload in desired.uploads)
    done, uploads = 0, False
    lock = threading.Lock()

    def advance(count: int, is_sent: bool) -> None:
        """Called by several threads when a file is uploaded in parts."""
        nonlocal done, uploads
        with lock:
            done, uploads = done + count, uploads or is_sent
            bytes_done = done
        if is_sent:
            context.say_bytes("Uploading", bytes_done, total)

    sent, present = partial(advance, is_sent=True), partial(advance, is_sent=False)

    for upload in desired.uploads:
        BUCKET.put(context, desired.revision, upload.bucket, {})
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
            s3.upload_missing(context.aws, upload, sent, present, earlier, key)
    if total and not uploads:
        context.say("Weights", f"{total / 1e6:.1f} MB are in S3 already")


def put_endpoint(
    context: DeploymentContext,
    revision: Revision,
    request: dict[str, Any],
    rolled_out: bool = False,
) -> None:
    """Create or update the endpoint, unless SageMaker is already bringing up the revision's
    configuration. ``request`` is that of CreateEndpoint. With ``rolled_out``, an update has the
    rollout of the revision's plan, for the number of instances that it gets."""
    live = _ready_for_change(context, revision)
    name = context.record.name
    if live is None:
        with context.creating(revision.resource("Endpoint", name)):
            context.change(billing_since=context.clock.now())
            context.say("Creating endpoint", name)
            tags = [revision.tag]
            sagemaker.create(
                context.aws, "Endpoint", name, request, context.record.id, tags, context.clock
            )
    elif not live.hosts_components and revision.name not in (live.revision, live.pending_revision):
        with context.creating(revision.resource("Endpoint", name)):
            context.say("Updating endpoint", name)
            kept = keeps_count(context.aws, context.record, revision, live)
            end_scaling_for_new_type(context, revision, live)
            count = live.instance_count if kept else revision.served.instance_count
            if len(live.running) > 1 or is_comparison(revision.fingerprint):
                count = 1  # SageMaker replaces several variants at once only
            steps = alarms.rollout_parameter(context, revision, count) if rolled_out else {}
            sagemaker.update(context.aws, request | steps, count, context.clock, keep_count=kept)


def _ready_for_change(context: DeploymentContext, revision: Revision) -> Endpoint | None:
    """The endpoint once it accepts a change; ``None`` when it must be created.

    Waits for another change to end, and deletes a broken endpoint.
    """
    live = sagemaker.describe(context.aws, context.record.name)
    arriving = {"Creating": live.revision, "Updating": live.pending_revision} if live else {}
    if live and live.status in BUSY and arriving.get(live.status) != revision.name:
        live = wait_while_busy(context, revision, context.clock.now())
    if live and live.status in BROKEN:
        reason = live.failure or "no reason given"
        context.say("Removing", f"the endpoint is {live.status}: {reason}")
        delete_endpoint(context, live)
        return None
    return live


def wait_in_service(
    context: DeploymentContext, revision: Revision, request: dict[str, Any]
) -> float:
    """Wait until the endpoint serves the revision; raise CloudError with the cause if not, and
    WillNotServe as soon as it is known that a new endpoint never will.

    When AWS rolled an update back, what served before serves, and nothing is pending. Returns when
    SageMaker began the update, in epoch seconds; 0 for a new endpoint, or where the update had
    ended before.
    """
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
        raise CloudError(
            f"endpoint {context.record.name} disappeared during the deployment",
            "another client deleted it; deploy again",
            code="endpoint-disappeared",
        )
    if live.status != "InService" or live.revision != revision.name:
        serving = context.record.serving
        if live.status == "InService" and serving and serving.name == live.revision:
            context.change(pending=None)
        raise alarms.rolled_back(context, revision, live) or not_in_service(live, log)
    sagemaker.retag(context.aws, live.arn, [*request.get("Tags", ()), revision.tag])
    return started if updating else 0.0


class RolledBack(NotProved, code="rolled-back"):
    """The proof of an update failed, and what served before serves again.

    Fix: choose another head, K or version; with --keep-unproved the update stays, to look at it
    """


def deploy(
    aws: Aws,
    preflight: Preflight,
    observe: Observer = unobserved,
    wait: bool = True,
    clock: Clock | None = None,
    *,
    keep_unproved: bool = False,
) -> Deployment:
    """Apply the change that ``preflight`` found, prove it, and remove what is stale; returns the
    record. Raises what ``apply`` and ``prove`` do.

    Without ``wait`` it returns once the endpoint is requested; the next deploy continues. With
    ``keep_unproved``, an update whose proof fails stays in service.
    """
    desired = preflight.desired
    name = desired.plan.name
    record = preflight.record or Deployment(
        name=name, scope=aws.scope, account=aws.account, region=aws.region
    )
    context = DeploymentContext(aws, record, observe, clock or Clock())
    if preflight.change not in ("nothing", "scale"):
        started = apply(context, desired, wait)
        if wait:
            request = request_of_plan(desired.plan, name)
            prove_in_service(context, desired.revision, request, started, keep_unproved)
    else:
        _tag_again(context, desired)
        context.change(failure=None, returning_to="")
        end = planned_end(context, desired.revision)
        put(context, desired.revision, end)
    if wait or preflight.change == "scale":
        scaling = desired.plan.scaling
        # An update to another instance type has ended the scaling.
        if preflight.scaling is not None or (scaling is not None and preflight.change == "update"):
            apply_scaling(context, scaling)
            tag_scaling(context, desired.revision, scaling)
    serving = context.record.serving
    if serving and preflight.change in ("nothing", "scale"):  # of the same fingerprint
        context.change(serving=serving.model_copy(update={"plan": desired.plan}))
    if wait:
        remove_stale(context)
    return context.record


def apply(context: DeploymentContext, desired: DesiredState, wait: bool = True) -> float:
    """Bring ``desired`` into service. Raises what a step raises, and records the failure.

    The end time, if there is one, is scheduled before the endpoint exists. Every step may be
    repeated, so the same call continues an interrupted deployment. Returns when SageMaker began the
    update, in epoch seconds; 0 for a new endpoint, or where that is unknown.
    """
    revision = desired.revision
    end = planned_end(context, desired.revision)
    context.change(pending=revision, failure=None, returning_to="")
    try:
        upload_weights(context, desired)
        MODEL.put(context, revision, revision.model, desired.model)
        CONFIG.put(context, revision, revision.endpoint_config, desired.config)
        ends = put(context, revision, end)
        tags = {"Tags": [*desired.endpoint.get("Tags", ()), *ends]}
        put_endpoint(context, revision, desired.endpoint | tags, rolled_out=True)
        if desired.component and wait:
            put_copies(context, revision, desired.component, rolled_out=True)
        return wait_in_service(context, revision, desired.endpoint | tags) if wait else 0.0
    except PeagleError as error:
        context.change(failure=Failure.of(error))
        serving = context.record.serving
        if serving is not None and context.record.pending is None:  # AWS rolled the update back
            with suppress(PeagleError):
                return_to_scaling(context, serving)
            restore_observability(context, serving)
        raise


def put(context: DeploymentContext, revision: Revision, end: End) -> tuple[Tag, ...]:
    """Apply what the plan sets outside of its endpoint, and its end; the tags of the endpoint."""
    put_settings(context, revision)
    return limits.set_end(context, revision, end)


def _tag_again(context: DeploymentContext, desired: DesiredState) -> None:
    """Give what exists the user's tags, where a plan differs in nothing else."""
    tags = desired.plan.company.tags
    live = sagemaker.describe(context.aws, context.record.name) if tags else None
    if live is None:
        return
    of_endpoint = Live(context.aws, live)
    if tags.items() <= of_endpoint.tags.items():
        return
    context.say("Tagging", ", ".join(f"{key}={value}" for key, value in sorted(tags.items())))
    arns = [of_endpoint.model["ModelArn"], of_endpoint.config["EndpointConfigArn"]]
    for arn in (*arns, *([live.component.arn] if live.component else []), live.arn):
        sagemaker.retag(context.aws, arn, desired.plan.company.tag_list)


def prove_in_service(
    context: DeploymentContext,
    revision: Revision,
    request: ProofRequest,
    started: float = 0.0,
    keep_unproved: bool = False,
) -> None:
    """Prove that the endpoint in service speculates; ``revision`` is the serving one then, and
    ``request`` is what to prove of it.

    A failed proof returns the endpoint to the proved revision that served before, unless
    ``keep_unproved``: raises RolledBack, or CloudError when that fails. Without such a revision
    the endpoint stays, unproved: raises NotProved. Raises CloudError when AWS refuses the proof;
    ``revision`` is still pending then. ``started`` is when the update to it began, in epoch
    seconds, where that is known.
    """
    role = "serving" if is_alone(context.record, revision) else "pending"
    revision = revision.model_copy(update={"proof": None})
    context.change(**{"pending": None, role: revision, "failure": None})
    try:
        with context.recording_failure():
            revision = _proved(context, revision, request, role, started)
    except (NotProved, EngineError) as error:
        serving = context.record.serving
        alone = is_alone(context.record, revision)
        before = None if alone or not is_proved(serving) else serving
        if before and not keep_unproved:
            _roll_back(context, before, error)
        remove_stale(context)
        raise _stays(context, before, error) from error
    fields = fields_when_proved(context.record, revision)
    tag_proofs(context.aws, context.record.name, revision, fields["previous"], context.clock)
    context.change(**fields)
    remove_stale(context)


def _proved(
    context: DeploymentContext, revision: Revision, request: ProofRequest, role: str, started: float
) -> Revision:
    """The revision with its proof, which is recorded also when it fails."""
    proved = prove_request(context, request, started)
    revision = revision.model_copy(update={"proof": proved})
    context.change(**{role: revision})
    if role == "serving" and not proved.passed:
        previous = context.record.previous
        tag_proofs(context.aws, context.record.name, revision, previous, context.clock)
    proof.require_passed(proved, request.pair, context.record.name)
    return revision


def _roll_back(context: DeploymentContext, before: Revision, error: PeagleError) -> NoReturn:
    """Return to ``before``. The pending revision stays on record until that serves again."""
    name = context.record.name
    context.say("Rolling back", f"to {before.name}: {error.message}")
    try:
        with context.recording_failure():
            require_weights_of(context, before)
            return_to(context, before)
            return_to_scaling(context, before)
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


def _stays(context: DeploymentContext, before: Revision | None, error: PeagleError) -> PeagleError:
    """The error of a failed proof, with what serves now and why."""
    name = context.record.name
    message, fix = f"{error.message}; {name} stays in service unproved", error.remedy
    if before:
        fix = Fix("return to what served before", ("peagle", "rollback", name))
    elif context.record.previous:
        message += f": the previous revision is {context.record.previous.name}"
    else:
        message += ": nothing proved served before, so there is nothing to return to"
    return type(error)(message, fix, error.code)


def require_weights_of(context: DeploymentContext, revision: Revision) -> None:
    """Raise Refused if the weights of a kept revision have changed since it was deployed."""
    served = revision.served
    mounted, pins = served.weights.get("model"), pins_of(served.variables)
    require_pinned(context.aws, context.record.name, mounted, pins)


def return_to(context: DeploymentContext, revision: Revision, *, rolled_out: bool = False) -> float:
    """Move the endpoint to the configuration of a kept revision, and wait until that serves;
    returns what ``wait_in_service`` does. The end time stays. ``rolled_out``: in the steps of its
    plan's rollout, watched by its alarms. By default at once: what serves is not proved, or is half
    of a comparison."""
    kind: ResourceKind = "Model" if revision.instances_config else "EndpointConfig"
    description = sagemaker.description(context.aws, kind, revision.name)
    existing_tags: dict[str, str] = {}
    with suppress(AccessDenied):
        existing_tags = sagemaker.tags_of(context.aws, description[f"{kind}Arn"])
    kept = existing_tags.keys() - {ID_TAG, REVISION_TAG, *END_TAGS, SCALING_TAG}
    tags = [
        {"Key": key, "Value": existing_tags[key]}
        for key in sorted(kept)
        if not key.startswith("aws:")
    ]
    tags += limits.keep_end(context, revision, existing_tags)
    names = {"EndpointName": context.record.name, "EndpointConfigName": revision.endpoint_config}
    request = {**names, "Tags": tags}
    rolled_out = rolled_out and revision.plan is not None and revision.plan.rollout is not None
    if rolled_out:
        try:
            put_settings(context, revision, (FILTERS, ALARMS))
        except CloudError as error:
            reason = f"its alarms cannot be created: {error.message}"
            context.notice(f"the return has no rollout: {reason}")
            rolled_out = False
    put_endpoint(context, revision, request, rolled_out=rolled_out)
    live = sagemaker.describe(context.aws, context.record.name)
    if live and live.component:
        put_copies(context, revision, request_to_return(live, revision), rolled_out)
    started = wait_in_service(context, revision, request)
    restore_observability(context, revision)
    return started


def restore_observability(context: DeploymentContext, revision: Revision) -> None:
    """Give alarms and dashboard the values of a kept revision that serves again, where its plan has
    them; where another machine has the plan, the alarms follow the revision with the limits that
    the account tells of it, else with those that they have. What cannot be written stays, with a
    notice: the endpoint serves."""
    plan = revision.plan
    try:
        if plan is not None:
            put_settings(context, revision)
        elif any(resource.type in ("Alarm", "Dashboard") for resource in context.record.resources):
            alarms.follow(context, revision)
            if kept := alarms.kept_of_plan_before(context.record, revision):
                context.notice(
                    f"unchanged since the plan before: {kept}; another machine has the plan that "
                    "serves now, and deploying it there renews them"
                )
    except CloudError as error:
        context.notice(f"alarms and dashboard are of the plan before: {error.message}")


def remove_stale(context: DeploymentContext, without_comparison: bool = False) -> None:
    """Remove what no kept revision needs, while the endpoint serves a kept one. With
    ``without_comparison``, the candidate of a comparison is not kept."""
    record = context.record
    if without_comparison:
        record = record.model_copy(update={"comparison": None})
    stale = stale_resources(record)
    live = sagemaker.describe(context.aws, context.record.name) if stale else None
    if live is None or live.status != "InService":
        return
    if live.revision not in [revision.name for revision in context.record.revisions]:
        return
    for resource in stale:
        try:
            delete(context, resource)
        except AccessDenied as denied:
            context.say("Kept", f"{resource.text}: {denied.message}")
