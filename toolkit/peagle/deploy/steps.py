"""The steps that bring a plan into service, in the order of ``apply``. Each may be repeated."""

from __future__ import annotations

import threading

from peagle.aws import s3, sagemaker
from peagle.aws.errors import AccessDenied
from peagle.aws.logs import Tail
from peagle.aws.sagemaker import BROKEN, BUSY, Endpoint
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import DesiredState
from peagle.deploy.state import Resource, ResourceType
from peagle.errors import CloudError, Fix


def upload_weights(context: DeploymentContext, desired: DesiredState) -> None:
    """Upload folders of weights to S3; create the bucket if it does not exist."""
    total = sum(upload.size for upload in desired.uploads)
    done = 0
    lock = threading.Lock()

    def advance(count: int) -> None:
        """Called by several threads when a file is uploaded in parts."""
        nonlocal done
        with lock:
            done += count
            sent = done
        megabytes = f"{sent / 1e6:.1f} of {total / 1e6:.1f} MB"
        context.say("Uploading", megabytes, lasting=sent < total)

    for upload in desired.uploads:
        _ensure_bucket(context, upload.bucket, desired)
        objects = _resource(desired, "S3Objects", upload.uri)
        objects = objects.model_copy(update={"keys": upload.keys, "contents": upload.contents})
        with context.creating(objects):
            s3.upload_missing(context.aws, upload, advance)


def _ensure_bucket(context: DeploymentContext, bucket: str, desired: DesiredState) -> None:
    """Create the bucket. A bucket that another deploy created is recorded as ours as well."""
    resource = _resource(desired, "S3Bucket", bucket)
    begun = any(r.name == bucket and not r.made for r in context.record.of_type("S3Bucket"))
    exists = s3.bucket_exists(context.aws, bucket)
    if exists and not begun:
        if s3.is_our_bucket(context.aws, bucket):
            made = resource.model_copy(update={"made": True})
            context.write(context.record.with_resource(made))
        return
    with context.creating(resource):
        context.say("Creating bucket", bucket)
        s3.create_bucket(context.aws, bucket)


def create_model(context: DeploymentContext, desired: DesiredState) -> None:
    """CreateModel."""
    name = desired.model_name
    with context.creating(_resource(desired, "Model", name)):
        _say_creating(context, "Model", "model", name)
        sagemaker.create(context.aws, "Model", name, desired.model, context.record.id)


def create_config(context: DeploymentContext, desired: DesiredState) -> None:
    """CreateEndpointConfig."""
    name = desired.config_name
    with context.creating(_resource(desired, "EndpointConfig", name)):
        _say_creating(context, "EndpointConfig", "endpoint configuration", name)
        sagemaker.create(context.aws, "EndpointConfig", name, desired.config, context.record.id)


def _say_creating(context: DeploymentContext, kind: ResourceType, noun: str, name: str) -> None:
    exists = any(known.made and known.name == name for known in context.record.of_type(kind))
    context.say(f"{'Continuing with' if exists else 'Creating'} {noun}", name)


def put_endpoint(context: DeploymentContext, desired: DesiredState) -> None:
    """Create or update the endpoint, unless SageMaker is already bringing up our configuration."""
    live = _ready_for_change(context, desired)
    name = context.record.name
    if live is None:
        with context.creating(_resource(desired, "Endpoint", name)):
            context.change(billing_since=context.clock.now())
            context.say("Creating endpoint", name)
            sagemaker.create(context.aws, "Endpoint", name, desired.endpoint, context.record.id)
    elif desired.config_name not in (live.config, live.pending_config):
        with context.creating(_resource(desired, "Endpoint", name)):
            context.say("Updating endpoint", name)
            sagemaker.update(context.aws, desired.endpoint, desired.plan.instance_count)


def _ready_for_change(context: DeploymentContext, desired: DesiredState) -> Endpoint | None:
    """The endpoint once it accepts a change; ``None`` when it must be created.

    Waits for another change to end, and deletes a broken endpoint.
    """
    live = sagemaker.describe(context.aws, context.record.name)
    if live and live.status in BUSY and not _is_starting(live, desired):
        live = context.wait_until_settled(desired.revision, context.clock.now())
    if live and live.status in BROKEN:
        reason = live.failure or "no reason given"
        context.say("Removing", f"the endpoint is {live.status}: {reason}")
        delete_endpoint(context, live)
        return None
    return live


def _is_starting(live: Endpoint, desired: DesiredState) -> bool:
    """Whether SageMaker is bringing up our configuration already."""
    if live.status == "Creating":
        return live.config == desired.config_name
    return live.status == "Updating" and live.pending_config == desired.config_name


def delete_endpoint(context: DeploymentContext, live: Endpoint) -> None:
    """Delete the endpoint and wait until it is gone.

    A busy endpoint must settle first: SageMaker refuses its deletion, or accepts it and does
    nothing.
    """
    revision, since = context.record.current, context.clock.now()
    if live.status in BUSY and live.status != "Deleting":
        settled = context.wait_until_settled(
            revision, since, purpose="Waiting for the endpoint's current change to end"
        )
        if settled is None:
            return
    if live.status != "Deleting":
        sagemaker.delete(context.aws, "Endpoint", live.name)
    remaining = context.wait_until_settled(revision, since)
    if remaining is not None:
        raise CloudError(
            f"endpoint {remaining.name} was not deleted: {remaining.status} "
            f"{remaining.failure or ''}",
            Fix("Repeat", ("peagle", "destroy", remaining.name)),
            code="endpoint-not-deleted",
        )
    context.change(billing_since=None)


def wait_in_service(context: DeploymentContext, desired: DesiredState) -> None:
    """Wait until the endpoint serves our configuration; raise CloudError with the cause if not."""
    live = sagemaker.describe(context.aws, context.record.name)
    if live is None:
        raise _disappeared(context)
    if context.record.billing_since is None:
        context.change(billing_since=live.created)
    updating = live.status == "Updating"
    begun = live.changed if updating else live.created
    since = begun if updating else context.record.billing_since or begun
    tail = context.tail(begun)
    settled = context.wait_until_settled(desired.revision, since, tail)
    if settled is None:
        raise _disappeared(context)
    if settled.status != "InService":
        cause, fix = _cause(context, settled, tail)
        raise CloudError(f"endpoint {settled.name} is {settled.status}: {cause}", fix,
                         code="endpoint-failed")  # fmt: skip
    if settled.config != desired.config_name:
        cause, fix = _cause(context, settled, tail)
        serving = f"the earlier configuration {settled.config} still serves; {fix.sentence}"
        raise CloudError(f"the update was rolled back: {cause}", Fix(serving, fix.command),
                         code="endpoint-rolled-back")  # fmt: skip
    sagemaker.retag(context.aws, settled.arn, desired.tags)


def _resource(desired: DesiredState, kind: ResourceType, name: str) -> Resource:
    return Resource(type=kind, name=name, revision=desired.fingerprint)


def _disappeared(context: DeploymentContext) -> CloudError:
    return CloudError(
        f"endpoint {context.record.name} disappeared during the deployment",
        "another client deleted it; deploy again",
        code="endpoint-disappeared",
    )


def _cause(context: DeploymentContext, settled: Endpoint, tail: Tail) -> tuple[str, Fix]:
    """SageMaker's reason, and the log line that explains it unless the reason contains it."""
    reason = settled.failure or "SageMaker gives no reason"
    try:
        line, sentence = context.explain([event.raw for event in context.tail(tail.since).new()])
    except AccessDenied:
        line, sentence = "", ""
    explained = f"; log: {line}" if line and line not in reason else ""
    logs = Fix("Read the log", ("peagle", "logs", settled.name))
    return f"{reason}{explained}", Fix(sentence) if sentence else logs
