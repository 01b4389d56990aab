"""The steps that bring a plan into service. Each may be repeated; together they are ``deploy``."""

from __future__ import annotations

import threading

from peagle.aws import s3 as storage
from peagle.aws import sagemaker as endpoints
from peagle.aws.errors import AccessDenied
from peagle.aws.logs import Tail
from peagle.aws.sagemaker import BROKEN, BUSY, Endpoint
from peagle.deploy.context import Work
from peagle.deploy.desired import Wanted
from peagle.deploy.state import Generation, Resource, ResourceType
from peagle.deploy.watch import PROVISIONING_SECONDS
from peagle.errors import CloudError


def upload_weights(work: Work, wanted: Wanted) -> None:
    """Bring folders of weights to S3, into a bucket that is created when it is not there."""
    meter = _Meter(work, sum(upload.size for upload in wanted.uploads))
    for upload in wanted.uploads:
        _ensure_bucket(work, upload.bucket, wanted)
        objects = _resource(wanted, "S3Objects", upload.uri)
        objects = objects.model_copy(update={"keys": upload.keys, "contents": upload.contents})
        with work.making(objects):
            storage.send(work.aws, upload, meter.advance)


def _ensure_bucket(work: Work, bucket: str, wanted: Wanted) -> None:
    """Create the bucket; one that some deploy created is written down as ours as well."""
    resource = _resource(wanted, "S3Bucket", bucket)
    begun = any(r.name == bucket and not r.made for r in work.record.of_type("S3Bucket"))
    there = storage.bucket_exists(work.aws, bucket)
    if there and not begun:
        if storage.is_our_bucket(work.aws, bucket):
            work.keep(work.record.with_resource(resource.model_copy(update={"made": True})))
        return
    with work.making(resource):
        work.say("Creating bucket", bucket)
        storage.create_bucket(work.aws, bucket)


class _Meter:
    """Tells how much of ``total`` bytes is uploaded; the last of it is news."""

    def __init__(self, work: Work, total: int) -> None:
        self._work = work
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        """Called by several threads when a file goes in parts."""
        with self._lock:
            self._done += count
            done = self._done
        megabytes = f"{done / 1e6:.1f} of {self._total / 1e6:.1f} MB"
        self._work.say("Uploading", megabytes, lasting=done < self._total)


def create_model(work: Work, wanted: Wanted) -> None:
    """CreateModel."""
    with work.making(_resource(wanted, "Model", wanted.model_name)):
        _say_making(work, "Model", "model", wanted.model_name)
        endpoints.create(work.aws, "Model", wanted.model_name, wanted.model, work.record.id)


def create_config(work: Work, wanted: Wanted) -> None:
    """CreateEndpointConfig."""
    with work.making(_resource(wanted, "EndpointConfig", wanted.config_name)):
        _say_making(work, "EndpointConfig", "endpoint configuration", wanted.config_name)
        endpoints.create(
            work.aws, "EndpointConfig", wanted.config_name, wanted.config, work.record.id
        )


def _say_making(work: Work, kind: ResourceType, words: str, name: str) -> None:
    """What an earlier deploy made is gone on with."""
    there = any(known.made and known.name == name for known in work.record.of_type(kind))
    work.say(f"{'Continuing with' if there else 'Creating'} {words}", name)


def put_endpoint(work: Work, wanted: Wanted) -> None:
    """Create the endpoint, or move it to our configuration, unless that is under way already."""
    live = _clear_way(work, wanted)
    name = work.record.name
    if live is None:
        with work.making(_resource(wanted, "Endpoint", name)):
            work.change(billing_since=work.clock.now())
            work.say("Creating endpoint", name)
            endpoints.create(work.aws, "Endpoint", name, wanted.endpoint, work.record.id)
    elif wanted.config_name not in (live.config, live.pending_config):
        with work.making(_resource(wanted, "Endpoint", name)):
            work.say("Updating endpoint", name)
            endpoints.update(work.aws, wanted.endpoint, wanted.plan.instance_count)


def _clear_way(work: Work, wanted: Wanted) -> Endpoint | None:
    """The endpoint once it takes a change: not busy with something else, and not broken."""
    live = endpoints.describe(work.aws, work.record.name)
    if live and live.status in BUSY and not _is_coming(live, wanted):
        watch = work.watch(wanted.generation, limit_of(wanted.generation))
        live = watch.until_settled(work.clock.now())
    if live and live.status in BROKEN:
        work.say("Removing", f"the endpoint is {live.status}: {live.failure or 'no reason given'}")
        delete_endpoint(work, live)
        return None
    return live


def _is_coming(live: Endpoint, wanted: Wanted) -> bool:
    """Whether SageMaker is bringing up our configuration already."""
    if live.status == "Creating":
        return live.config == wanted.config_name
    return live.status == "Updating" and live.pending_config == wanted.config_name


def delete_endpoint(work: Work, live: Endpoint) -> None:
    """Delete the endpoint and wait until it is gone.

    A busy one must first come to rest: SageMaker then refuses the deletion, or accepts it and
    does nothing.
    """
    watch = work.watch(work.record.current, limit_of(work.record.current))
    since = work.clock.now()
    if live.status in BUSY and live.status != "Deleting":
        settled = watch.until_settled(since, purpose="Waiting for the endpoint to come to rest")
        if settled is None:
            return
    if live.status != "Deleting":
        endpoints.delete(work.aws, "Endpoint", live.name)
    left = watch.until_settled(since)
    if left is not None:
        raise CloudError(
            f"the endpoint {left.name} was not deleted: {left.status} {left.failure or ''}",
            f"repeat: peagle destroy {left.name}",
        )
    work.change(billing_since=None)


def wait_in_service(work: Work, wanted: Wanted) -> None:
    """Wait until the endpoint serves our configuration; raise CloudError with the cause if not."""
    live = endpoints.describe(work.aws, work.record.name)
    if live is None:
        raise _gone(work)
    if work.record.billing_since is None:
        work.change(billing_since=live.created)
    begun = live.changed if live.status == "Updating" else live.created
    since = begun if live.status == "Updating" else work.record.billing_since or begun
    tail = work.tail(begun)
    settled = work.watch(wanted.generation, limit_of(wanted.generation)).until_settled(since, tail)
    if settled is None:
        raise _gone(work)
    if settled.status != "InService":
        raise _failed(work, settled, tail)
    if settled.config != wanted.config_name:
        raise _rolled_back(work, settled, tail)
    endpoints.retag(work.aws, settled.arn, wanted.tags)


def _resource(wanted: Wanted, kind: ResourceType, name: str) -> Resource:
    return Resource(type=kind, name=name, generation=wanted.fingerprint)


def limit_of(generation: Generation) -> float:
    """How long the endpoint may take, in seconds."""
    plan = generation.plan
    return plan.download_timeout_seconds + plan.startup_timeout_seconds + PROVISIONING_SECONDS


def _gone(work: Work) -> CloudError:
    return CloudError(
        f"the endpoint {work.record.name} disappeared while it was waited for",
        "somebody deleted it; deploy again",
    )


def _failed(work: Work, settled: Endpoint, tail: Tail) -> CloudError:
    cause, fix = _cause(work, settled, tail)
    return CloudError(f"the endpoint is {settled.status}: {cause}", fix)


def _rolled_back(work: Work, settled: Endpoint, tail: Tail) -> CloudError:
    cause, fix = _cause(work, settled, tail)
    return CloudError(
        f"the update was rolled back: {cause}",
        f"the earlier configuration {settled.config} serves on; {fix}",
    )


def _cause(work: Work, settled: Endpoint, tail: Tail) -> tuple[str, str]:
    """SageMaker's reason, with the log line that decided unless the reason says it already."""
    reason = settled.failure or "SageMaker gives no reason"
    try:
        line, fix = work.explain([event.raw for event in work.tail(tail.since).new()])
    except AccessDenied:
        line, fix = "", ""
    said = f"; the log says: {line}" if line and line not in reason else ""
    return f"{reason}{said}", fix or f"see `peagle logs {settled.name}`"
