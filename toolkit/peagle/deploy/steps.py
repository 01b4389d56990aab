"""The steps that bring a plan into service, and those that remove it. Each may be repeated."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from peagle.aws import s3, sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, Busy
from peagle.aws.sagemaker import BROKEN, BUSY, Endpoint
from peagle.deploy import state
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.desired import DesiredState
from peagle.deploy.state import Deployment, Resource, ResourceType, Revision
from peagle.deploy.watch import EndpointLog, not_in_service, wait_while_busy
from peagle.errors import CloudError, Fix, Refused
from peagle.render.requests import REVISION_TAG
from peagle.s3uri import S3Uri

_REMOVAL: tuple[ResourceType, ...] = (
    "Endpoint",
    "EndpointConfig",
    "Model",
    "S3Objects",
    "S3Bucket",
)
"""An endpoint needs its configuration while it exists, and the configuration its model."""

_NEEDED_BY_ENDPOINT = ("EndpointConfig", "Model", "S3Objects", "S3Bucket")


class Unknown(CloudError, code="resources-unknown"):
    """Resources may exist, and may not be looked at."""


def upload_weights(context: DeploymentContext, desired: DesiredState) -> None:
    """Upload folders of weights to S3; create the bucket if it does not exist."""
    total = sum(upload.size for upload in desired.uploads)
    done, uploads = 0, False
    lock = threading.Lock()

    def sent(count: int) -> None:
        """Called by several threads when a file is uploaded in parts."""
        nonlocal done, uploads
        with lock:
            done, uploads = done + count, True
            known = done
        context.say_bytes("Uploading", known, total)

    def present(count: int) -> None:
        nonlocal done
        with lock:
            done += count

    for upload in desired.uploads:
        _ensure_bucket(context, upload.bucket, desired)
        objects = _resource(desired.revision, "S3Objects", upload.uri)
        objects = objects.model_copy(update={"keys": upload.keys, "contents": upload.contents})
        earlier = _uploaded_keys(context.record, upload.bucket)
        with context.creating(objects):
            s3.upload_missing(context.aws, upload, sent, present, earlier)
    if total and not uploads:
        context.say("Weights", f"{total / 1e6:.1f} MB are in S3 already")


def _uploaded_keys(record: Deployment, bucket: str) -> tuple[str, ...]:
    """The objects of the deployment's weights in that bucket."""
    folders = (one for one in record.of_type("S3Objects") if S3Uri.parse(one.name).bucket == bucket)
    return tuple(key for folder in folders for key in folder.keys)


def _ensure_bucket(context: DeploymentContext, bucket: str, desired: DesiredState) -> None:
    """Create the bucket. A bucket that another deploy created is recorded as ours as well."""
    resource = _resource(desired.revision, "S3Bucket", bucket)
    interrupted = any(r.name == bucket and not r.made for r in context.record.of_type("S3Bucket"))
    if s3.bucket_exists(context.aws, bucket) and not interrupted:
        with suppress(AccessDenied):  # then it is not removed later
            if s3.is_our_bucket(context.aws, bucket):
                made = resource.model_copy(update={"made": True})
                context.write(context.record.with_resource(made))
        return
    with context.creating(resource):
        context.say("Creating bucket", bucket)
        s3.create_bucket(context.aws, bucket)


def create_model(context: DeploymentContext, desired: DesiredState) -> None:
    """CreateModel."""
    _create(context, desired.revision, "Model", "model", desired.model)


def create_config(
    context: DeploymentContext, revision: Revision, parameters: dict[str, Any]
) -> None:
    """CreateEndpointConfig."""
    _create(context, revision, "EndpointConfig", "endpoint configuration", parameters)


def _create(
    context: DeploymentContext,
    revision: Revision,
    kind: sagemaker.ResourceKind,
    noun: str,
    parameters: dict[str, object],
) -> None:
    name = str(parameters[f"{kind}Name"])
    exists = any(known.made and known.name == name for known in context.record.of_type(kind))
    with context.creating(_resource(revision, kind, name)):
        context.say(f"{'Continuing with' if exists else 'Creating'} {noun}", name)
        tags = [_revision_tag(revision)]
        sagemaker.create(context.aws, kind, name, parameters, context.record.id, tags)


def put_endpoint(context: DeploymentContext, revision: Revision, request: dict[str, Any]) -> None:
    """Create or update the endpoint, unless SageMaker is already bringing up the revision's
    configuration. ``request`` is that of CreateEndpoint."""
    live = _ready_for_change(context, revision)
    name = context.endpoint
    if live is None:
        with context.creating(_resource(revision, "Endpoint", name)):
            context.bill(name, context.clock.now())
            context.say("Creating endpoint", name)
            tags = [_revision_tag(revision)]
            sagemaker.create(
                context.aws, "Endpoint", name, request, context.record.id, tags, context.clock
            )
    elif revision.config not in (live.config, live.pending_config):
        with context.creating(_resource(revision, "Endpoint", name)):
            context.say("Updating endpoint", name)
            count = revision.served.instance_count
            sagemaker.update(context.aws, request, count, context.clock)


def _ready_for_change(context: DeploymentContext, revision: Revision) -> Endpoint | None:
    """The endpoint once it accepts a change; ``None`` when it must be created.

    Waits for another change to end, and deletes a broken endpoint.
    """
    live = sagemaker.describe(context.aws, context.endpoint)
    if live and live.status in BUSY and not _is_starting(live, revision):
        live = wait_while_busy(context, revision, context.clock.now())
    if live and live.status in BROKEN:
        reason = live.failure or "no reason given"
        context.say("Removing", f"the endpoint is {live.status}: {reason}")
        delete_endpoint(context, live)
        return None
    return live


def _is_starting(live: Endpoint, revision: Revision) -> bool:
    """Whether SageMaker is bringing up the revision's configuration already."""
    if live.status == "Creating":
        return live.config == revision.config
    return live.status == "Updating" and live.pending_config == revision.config


def wait_in_service(
    context: DeploymentContext, revision: Revision, request: dict[str, Any]
) -> float:
    """Wait until the endpoint serves the revision; raise CloudError with the cause if not, and
    WillNotServe as soon as it is known that a new endpoint never will.

    When AWS rolled an update back, what served before serves, and nothing is pending. Returns when
    SageMaker began the update, in epoch seconds; 0 for a new endpoint, or where the update had
    ended before.
    """
    live = sagemaker.describe(context.aws, context.endpoint)
    if live is None:
        raise _disappeared(context)
    if context.record.billing_since is None:
        context.bill(live.name, live.created)
    updating = live.status == "Updating"
    started = live.changed if updating else live.created
    own = context.record.billing_since if context.endpoint == context.record.name else None
    since = started if updating else own or started
    log = EndpointLog(context.aws, live, started)
    live = wait_while_busy(context, revision, since, log)
    if live is None:
        raise _disappeared(context)
    if live.status != "InService" or live.config != revision.config:
        serving = context.record.serving
        if live.status == "InService" and serving and serving.config == live.config:
            context.change(pending=None)
        raise not_in_service(live, log)
    sagemaker.retag(context.aws, live.arn, [*request.get("Tags", ()), _revision_tag(revision)])
    return started if updating else 0.0


def _revision_tag(revision: Revision) -> sagemaker.Tag:
    return {"Key": REVISION_TAG, "Value": revision.fingerprint}


def _resource(revision: Revision, kind: ResourceType, name: str) -> Resource:
    return Resource(type=kind, name=name, revision=revision.fingerprint)


def _disappeared(context: DeploymentContext) -> CloudError:
    return CloudError(
        f"endpoint {context.endpoint} disappeared during the deployment",
        "another client deleted it; deploy again",
        code="endpoint-disappeared",
    )


def destroy(
    aws: Aws, record: Deployment, observe: Observer = unobserved, clock: Clock | None = None
) -> tuple[tuple[Resource, ...], tuple[Resource, ...]]:
    """Remove all resources of the record, then the record; what was removed, and what was kept.

    Also cleans up after an interrupted deploy or destroy. What could not be looked at stays in the
    record: raises Unknown after everything else is removed. An endpoint that stays needs its
    configuration and model, and objects their bucket, which then stay too.
    """
    context = DeploymentContext(aws, record, observe, clock or Clock())
    removed: list[Resource] = []
    kept: list[Resource] = []
    denied: list[AccessDenied] = []
    for kind in _REMOVAL:
        if kind in _NEEDED_BY_ENDPOINT and context.record.of_type("Endpoint"):
            continue
        if kind == "S3Bucket" and context.record.of_type("S3Objects"):
            continue
        for resource in context.record.of_type(kind):
            try:
                (removed if remove_resource(context, resource) else kept).append(resource)
            except AccessDenied as error:
                denied.append(error)
    if denied:
        raise _unknown(context.record, denied[0])
    state.remove_record(context.record)
    return tuple(removed), tuple(kept)


def _unknown(record: Deployment, denied: AccessDenied) -> Unknown:
    names = ", ".join(resource.text for resource in record.resources)
    return Unknown(
        f"these may still exist and cost money, and are kept in the record: {names}; "
        f"{denied.message}",
        Fix(f"{denied.fix}, then repeat the command", ("peagle", "destroy", record.name)),
    )


def remove_resource(context: DeploymentContext, resource: Resource) -> bool:
    """Remove one resource and its entry in the record; whether the resource was removed.

    A resource of our name without our deployment id belongs to another owner, and stays. Raises
    AccessDenied when the resource may not be looked at: its entry stays.
    """
    context.say("Removing", resource.text)
    removed = _remove(context, resource)
    context.write(context.record.without(resource.type, resource.name))
    return removed


def _remove(context: DeploymentContext, resource: Resource) -> bool:
    if resource.type == "S3Bucket":
        return _remove_bucket(context, resource)
    if resource.type == "S3Objects":
        bucket = S3Uri.parse(resource.name).bucket
        s3.delete_objects(context.aws, bucket, resource.keys)
        return True
    owner = sagemaker.owner(context.aws, resource.type, resource.name)
    if owner not in (None, context.record.id):
        return False
    if resource.type != "Endpoint":
        sagemaker.delete(context.aws, resource.type, resource.name)
    elif live := sagemaker.describe(context.aws, resource.name):
        try:
            with context.at(live.name):
                delete_endpoint(context, live)
        except Busy as error:
            raise CloudError(
                f"another client is changing endpoint {live.name}: {error.message}",
                Fix("try again in a minute", ("peagle", "destroy", live.name)),
                code="endpoint-busy",
            ) from error
    return True


def delete_endpoint(context: DeploymentContext, live: Endpoint) -> None:
    """Delete the endpoint and wait until it is gone.

    Waits for the end of a change first, unless SageMaker lets a creation be deleted.
    """
    revision, since = context.record.current, context.clock.now()
    is_deleting = live.status == "Deleting"
    if live.status == "Creating":
        is_deleting = begin_deletion(context, live)
    if live.status in BUSY and not is_deleting:
        purpose = "Waiting for the endpoint's current change to end"
        if wait_while_busy(context, revision, since, purpose=purpose) is None:
            return
    if not is_deleting:
        sagemaker.delete(context.aws, "Endpoint", live.name)
    remaining = wait_while_busy(context, revision, since)
    if remaining is not None:
        raise CloudError(
            f"endpoint {remaining.name} was not deleted: {remaining.status} "
            f"{remaining.failure or ''}",
            Fix("repeat", ("peagle", "destroy", remaining.name)),
            code="endpoint-not-deleted",
        )
    context.bill(live.name, None)


def begin_deletion(context: DeploymentContext, live: Endpoint) -> bool:
    """Request the deletion of an endpoint that is being created; whether SageMaker begins it.

    SageMaker rejects the deletion of a busy endpoint, or accepts it and does nothing; which of
    them happens during a creation is not documented.
    """
    with suppress(Busy):
        sagemaker.delete(context.aws, "Endpoint", live.name)
    now = sagemaker.describe(context.aws, live.name)
    return now is None or now.status == "Deleting"


def _remove_bucket(context: DeploymentContext, resource: Resource) -> bool:
    """Remove a bucket that a deploy created, if it is empty."""
    try:
        exists = s3.bucket_exists(context.aws, resource.name)
    except Refused as error:
        if error.code == s3.BUCKET_DENIED:
            raise AccessDenied(
                error.message, "ask for a policy that allows s3:ListBucket"
            ) from error
        return False
    ours = not resource.made or not exists or s3.is_our_bucket(context.aws, resource.name)
    return ours and s3.delete_bucket(context.aws, resource.name)
