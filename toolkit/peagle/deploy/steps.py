"""The steps that bring a plan into service. Each may be repeated."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from peagle.aws import s3, sagemaker
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import BROKEN, BUSY, Endpoint
from peagle.deploy import alarms
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import DesiredState
from peagle.deploy.removal import delete_endpoint
from peagle.deploy.revisions import is_comparison
from peagle.deploy.scaling import end_scaling_for_new_type, keeps_count, scaling_tag
from peagle.deploy.state import Deployment, Revision
from peagle.deploy.wait import EndpointLog, not_in_service, wait_while_busy
from peagle.errors import CloudError
from peagle.render.requests import REVISION_TAG
from peagle.s3uri import S3Uri


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
        objects = desired.revision.resource("S3Objects", upload.uri)
        objects = objects.model_copy(update={"keys": upload.keys, "contents": upload.contents})
        earlier = _uploaded_keys(context.record, upload.bucket)
        with context.creating(objects):
            key = desired.plan.company.kms_key
            s3.upload_missing(context.aws, upload, sent, present, earlier, key)
    if total and not uploads:
        context.say("Weights", f"{total / 1e6:.1f} MB are in S3 already")


def _uploaded_keys(record: Deployment, bucket: str) -> tuple[str, ...]:
    """The objects of the deployment's weights in that bucket."""
    folders = (one for one in record.of_type("S3Objects") if S3Uri.parse(one.name).bucket == bucket)
    return tuple(key for folder in folders for key in folder.keys)


def _ensure_bucket(context: DeploymentContext, bucket: str, desired: DesiredState) -> None:
    """Create the bucket. A bucket that another deploy created is recorded as ours as well."""
    resource = desired.revision.resource("S3Bucket", bucket)
    interrupted = any(r.name == bucket and not r.made for r in context.record.of_type("S3Bucket"))
    if s3.bucket_exists(context.aws, bucket) and not interrupted:
        with suppress(AccessDenied):  # then it is not removed later
            if s3.is_our_bucket(context.aws, bucket):
                made = resource.model_copy(update={"made": True})
                context.write(context.record.with_resource(made))
        return
    with context.creating(resource):
        context.say("Creating bucket", bucket)
        s3.create_bucket(context.aws, bucket, desired.plan.company.tag_list)


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
    with context.creating(revision.resource(kind, name)):
        context.say(f"{'Continuing with' if exists else 'Creating'} {noun}", name)
        tags = [_revision_tag(revision)]
        if kind == "EndpointConfig" and revision.plan:
            tags.append(scaling_tag(revision.plan.scaling))
        sagemaker.create(context.aws, kind, name, parameters, context.record.id, tags)


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
            tags = [_revision_tag(revision)]
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
        return live.revision == revision.name
    return live.status == "Updating" and live.pending_revision == revision.name


def wait_in_service(
    context: DeploymentContext, revision: Revision, request: dict[str, Any]
) -> float:
    """Wait until the endpoint serves the revision; raise CloudError with the cause if not, and
    WillNotServe as soon as it is known that a new endpoint never will.

    When AWS rolled an update back, what served before serves, and nothing is pending. Returns when
    SageMaker began the update, in epoch seconds; 0 for a new endpoint, or where the update had
    ended before.
    """
    live = sagemaker.describe(context.aws, context.record.name)
    if live is None:
        raise _disappeared(context)
    if context.record.billing_since is None:
        context.change(billing_since=live.created)
    updating = live.status == "Updating"
    started = live.changed if updating else live.created
    since = started if updating else context.record.billing_since or started
    log = EndpointLog(context.aws, live, started)
    live = wait_while_busy(context, revision, since, log)
    if live is None:
        raise _disappeared(context)
    if live.status != "InService" or live.revision != revision.name:
        serving = context.record.serving
        if live.status == "InService" and serving and serving.name == live.revision:
            context.change(pending=None)
        raise alarms.rolled_back(context, revision, live) or not_in_service(live, log)
    sagemaker.retag(context.aws, live.arn, [*request.get("Tags", ()), _revision_tag(revision)])
    return started if updating else 0.0


def _revision_tag(revision: Revision) -> sagemaker.Tag:
    return {"Key": REVISION_TAG, "Value": revision.fingerprint}


def _disappeared(context: DeploymentContext) -> CloudError:
    return CloudError(
        f"endpoint {context.record.name} disappeared during the deployment",
        "another client deleted it; deploy again",
        code="endpoint-disappeared",
    )
