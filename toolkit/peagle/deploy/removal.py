"""The steps that remove a deployment, also one whose engine cannot start. Each may be repeated."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from peagle.aws import autoscaling, s3, sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, Busy
from peagle.aws.sagemaker import BUSY, Endpoint
from peagle.deploy import records
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.copies import remove_copies
from peagle.deploy.resources import KINDS
from peagle.deploy.revisions import stale_resources
from peagle.deploy.state import Deployment, Resource, ResourceType
from peagle.deploy.wait import WillNotServe, wait_while_busy
from peagle.errors import CloudError, Fix, Refused

_REMOVAL: tuple[ResourceType, ...] = (
    "Endpoint",
    "Schedule",
    "SchedulerRole",
    "Alarm",
    "MetricFilter",
    "Dashboard",
    "LifecycleRule",
    "EndpointConfig",
    "Model",
    "S3Objects",
    "S3Bucket",
)
"""An endpoint needs its configuration while it exists, and the configuration its model."""

_STAY_WITH_ENDPOINT = (
    "Schedule",
    "SchedulerRole",
    "EndpointConfig",
    "Model",
    "S3Objects",
    "S3Bucket",
)
"""An endpoint that may not be deleted keeps what it serves, and the schedule that ends it."""


class Unknown(CloudError, code="resources-unknown"):
    """Resources may exist, and may not be looked at."""


def destroy(
    aws: Aws, record: Deployment, observer: Observer = unobserved, clock: Clock | None = None
) -> tuple[tuple[Resource, ...], tuple[Resource, ...]]:
    """Remove all resources of the record, then the record; what was removed, and what was kept.

    Also cleans up after an interrupted deploy or destroy. What could not be looked at stays in the
    record: raises Unknown after everything else is removed. An endpoint that stays keeps its
    schedule, configuration and model, and objects their bucket.
    """
    context = DeploymentContext(aws, record, observer, clock or Clock())
    removed: list[Resource] = []
    kept: list[Resource] = []
    denied: list[AccessDenied] = []
    for kind in _REMOVAL:
        if kind in _STAY_WITH_ENDPOINT and context.record.of_type("Endpoint"):
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
    records.remove_record(context.record)
    return tuple(removed), tuple(kept)


def _unknown(record: Deployment, denied: AccessDenied) -> Unknown:
    names = ", ".join(resource.text for resource in record.resources)
    return Unknown(
        f"these may still exist and cost money, and are kept in the record: {names}; "
        f"{denied.message}",
        Fix(f"{denied.fix}, then run the command again", ("peagle", "destroy", record.name)),
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
    if resource.type in KINDS:
        KINDS[resource.type].delete(context, resource)
        return True
    assert resource.type in ("Endpoint", "EndpointConfig", "Model")
    owner = sagemaker.owner(context.aws, resource.type, resource.name)
    # What a template left carries no deployment id.
    if owner not in (None, context.record.id) and not (context.record.owner and owner == ""):
        return False
    if resource.type != "Endpoint":
        sagemaker.delete(context.aws, resource.type, resource.name)
    elif live := sagemaker.describe(context.aws, resource.name):
        try:
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
    if live.component is not None:
        left = remove_copies(context, live)
        if left is None:
            return
        live = left
    revision, since = context.record.current, context.clock.now()
    is_deleting = live.status == "Deleting"
    if live.status == "Creating":
        is_deleting = begin_deletion(context, live)
    if live.status in BUSY and not is_deleting:
        purpose = "Waiting for the endpoint's current change to end"
        if wait_while_busy(context, revision, since, purpose=purpose) is None:
            return
    if not is_deleting:
        autoscaling.deregister_before_deletion(context.aws, live.name)
        sagemaker.delete(context.aws, "Endpoint", live.name)
    remaining = wait_while_busy(context, revision, since)
    if remaining is not None:
        raise CloudError(
            f"endpoint {remaining.name} was not deleted: {remaining.status} "
            f"{remaining.failure or ''}",
            Fix("run the command again", ("peagle", "destroy", remaining.name)),
            code="endpoint-not-deleted",
        )
    context.change(billing_since=None)


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


@dataclass(frozen=True)
class Saving:
    """The time for which SageMaker would have gone on starting the engine, in seconds, and its
    price; ``usd`` is ``None`` when the price is unknown."""

    seconds: float
    usd: float | None


def possible_saving(record: Deployment, error: WillNotServe, clock: Clock | None = None) -> Saving:
    """What deleting the endpoint now saves at most; nothing once SageMaker has given up, because
    a Failed endpoint costs nothing."""
    now = (clock or Clock()).now()
    seconds = max(0.0, error.gives_up - now) if error.gives_up else 0.0
    price = record.current.served.usd_per_hour
    return Saving(seconds, None if price is None else price * seconds / 3600)


def remove_failed_start(
    aws: Aws,
    record: Deployment,
    error: WillNotServe,
    observer: Observer = unobserved,
    clock: Clock | None = None,
) -> Saving:
    """Remove what the deploy that ended with ``error`` created; returns what that saves.

    Earlier revisions stay. Nothing is saved if SageMaker accepts no deletion while it creates the
    endpoint: the removal then waits until SageMaker gives up. Raises what ``destroy`` raises, and
    Refused for an endpoint that has come into service after all.
    """
    context = DeploymentContext(aws, record, observer, clock or Clock())
    live = sagemaker.describe(aws, record.name)
    if live and live.status not in ("Creating", "Failed", "Deleting"):
        raise Refused(
            f"endpoint {live.name} is {live.status} after all, so nothing was removed",
            "deploy again to prove it",
            code="serves-after-all",
        )
    saving = Saving(0.0, None)
    if live and live.status == "Creating" and begin_deletion(context, live):
        saving = possible_saving(record, error, context.clock)
    if record.serving is None:
        destroy(aws, record, observer, context.clock)
    else:
        context.change(pending=None)
        endpoints = [one for one in record.of_type("Endpoint") if one.name == record.name]
        for resource in (*endpoints, *stale_resources(context.record)):
            remove_resource(context, resource)
    return saving
