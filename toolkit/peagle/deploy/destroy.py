"""Destroy: remove everything that deploy created, and nothing else."""

from __future__ import annotations

from peagle.aws import s3, sagemaker
from peagle.aws.errors import AccessDenied, Busy
from peagle.deploy import state, steps
from peagle.deploy.context import DeploymentContext
from peagle.deploy.state import Resource
from peagle.errors import CloudError, Fix, Refused
from peagle.s3uri import S3Uri

ORDER = ("Endpoint", "EndpointConfig", "Model", "S3Objects", "S3Bucket")
"""An endpoint needs its configuration while it exists, and the configuration its model."""


def destroy(context: DeploymentContext) -> tuple[tuple[Resource, ...], tuple[Resource, ...]]:
    """Remove all resources of the record, then the record; what was removed, and what was kept.

    Each step may be repeated and tolerates what is gone already, so this also cleans up after an
    interrupted deploy or destroy.
    """
    removed: list[Resource] = []
    kept: list[Resource] = []
    for kind in ORDER:
        for resource in context.record.resources:
            if resource.type == kind:
                (removed if remove_resource(context, resource) else kept).append(resource)
    state.remove_record(context.record)
    return tuple(removed), tuple(kept)


def remove_resource(context: DeploymentContext, resource: Resource) -> bool:
    """Remove one resource and its entry in the record; whether the resource was removed.

    A resource of our name without our deployment id belongs to someone else, and stays.
    """
    context.say("Removing", f"{resource.type} {resource.name}")
    removed = _remove(context, resource)
    context.forget(resource)
    return removed


def _remove(context: DeploymentContext, resource: Resource) -> bool:
    if resource.type == "S3Bucket":
        return _remove_bucket(context, resource)
    if resource.type == "S3Objects":
        bucket = S3Uri.parse(resource.name).bucket
        s3.delete_objects(context.aws, bucket, resource.keys)
        return True
    try:
        owner = sagemaker.owner(context.aws, resource.type, resource.name)
    except AccessDenied:  # tags may not be read: then the record counts
        owner = context.record.id if resource.made else ""
    if owner not in (None, context.record.id):
        return False
    if resource.type == "Endpoint":
        _remove_endpoint(context)
    else:
        sagemaker.delete(context.aws, resource.type, resource.name)
    return True


def _remove_endpoint(context: DeploymentContext) -> None:
    live = sagemaker.describe(context.aws, context.record.name)
    if live is None:
        return
    try:
        steps.delete_endpoint(context, live)
    except Busy as error:
        raise CloudError(
            f"another client is changing endpoint {live.name}: {error.message}",
            Fix("Repeat in a minute", ("peagle", "destroy", live.name)),
            code="endpoint-busy",
        ) from error


def _remove_bucket(context: DeploymentContext, resource: Resource) -> bool:
    """Remove a bucket that a deploy created, if it is empty."""
    try:
        exists = s3.bucket_exists(context.aws, resource.name)
    except Refused:
        return False
    ours = not resource.made or not exists or s3.is_our_bucket(context.aws, resource.name)
    return ours and s3.delete_bucket(context.aws, resource.name)
