"""Destroy: remove everything that deploy made, and nothing else."""

from __future__ import annotations

from peagle.aws import s3 as storage
from peagle.aws import sagemaker as endpoints
from peagle.aws.errors import AccessDenied, Busy
from peagle.aws.sagemaker import describe
from peagle.deploy import state as records
from peagle.deploy import steps
from peagle.deploy.context import Work
from peagle.deploy.state import Resource
from peagle.errors import CloudError, Refused
from peagle.s3uri import S3Uri

ORDER = ("Endpoint", "EndpointConfig", "Model", "S3Objects", "S3Bucket")
"""An endpoint needs its configuration while it lives, and that its model."""


def destroy(work: Work) -> tuple[tuple[Resource, ...], tuple[Resource, ...]]:
    """Remove all resources of the record, the record last; what went, and what was kept.

    Each step may be repeated and tolerates what is gone already, so that it also cleans up after
    a deploy or a destroy that was interrupted anywhere.
    """
    removed: list[Resource] = []
    kept: list[Resource] = []
    for kind in ORDER:
        for resource in work.record.resources:
            if resource.type == kind:
                (removed if remove_resource(work, resource) else kept).append(resource)
    records.remove(work.record)
    return tuple(removed), tuple(kept)


def remove_resource(work: Work, resource: Resource) -> bool:
    """Remove one resource and strike it from the record; whether it is really gone.

    What bears our name but not our id was made by somebody else, and stays.
    """
    work.say("Removing", f"{resource.type} {resource.name}")
    gone = _remove(work, resource)
    work.forget(resource)
    return gone


def _remove(work: Work, resource: Resource) -> bool:
    if resource.type == "S3Bucket":
        return _remove_bucket(work, resource)
    if resource.type == "S3Objects":
        bucket = S3Uri.parse(resource.name).bucket
        storage.delete_objects(work.aws, bucket, resource.keys)
        return True
    if not _is_ours(work, resource):
        return False
    if resource.type == "Endpoint":
        _remove_endpoint(work)
    else:
        endpoints.delete(work.aws, resource.type, resource.name)
    return True


def _is_ours(work: Work, resource: Resource) -> bool:
    """True also for what is not there. Where tags may not be read, AWS's confirmation counts."""
    try:
        owner = endpoints.owner(work.aws, resource.type, resource.name)
    except AccessDenied:
        return resource.made
    return owner in (None, work.record.id)


def _remove_endpoint(work: Work) -> None:
    live = describe(work.aws, work.record.name)
    if live is None:
        return
    try:
        steps.delete_endpoint(work, live)
    except Busy as error:
        raise CloudError(
            f"the endpoint {live.name} is being changed by somebody else: {error.message}",
            f"repeat in a minute: peagle destroy {live.name}",
        ) from error


def _remove_bucket(work: Work, resource: Resource) -> bool:
    """Only a bucket that a deploy made, and only when nothing is in it."""
    try:
        there = storage.bucket_exists(work.aws, resource.name)
    except Refused:
        return False
    ours = not resource.made or not there or storage.is_our_bucket(work.aws, resource.name)
    return ours and storage.delete_bucket(work.aws, resource.name)
