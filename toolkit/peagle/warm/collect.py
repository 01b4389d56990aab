"""Run a plan once, on AWS or on this machine, and keep what its engine compiled.

On AWS a temporary endpoint compiles. The artifact (``peagle.warm.transfer``) is stored in the
folder ``warm/`` next to the weights, so every deployment that mounts the weights mounts it too: no
request and no template changes.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from peagle.aws import runtime
from peagle.aws.client import Aws, Clock, original_status
from peagle.aws.errors import AccessDenied, Missing
from peagle.deploy.apply import deploy
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.preflight import Preflight
from peagle.deploy.records import load_record
from peagle.deploy.removal import destroy
from peagle.deploy.state import Deployment
from peagle.deploy.status import stand_in_of
from peagle.engine import state as engine_state
from peagle.engine.local import (
    StepProgress,
    end_engine,
    exchange,
    exclusive,
    start_local,
    stop_local,
)
from peagle.engine.runner import LocalOptions
from peagle.errors import CloudError, EngineError, Fix, PeagleError, Refused
from peagle.planning.plan import Plan
from peagle.planning.runtime import check_name
from peagle.warm.transfer import IncompleteResponse, WarmArtifact, WarmReply, fetch
from peagle.weights.bucket import Bucket
from peagle.weights.layout import WeightsPrefix, weights_prefix
from peagle_serve.contract import (
    ATTRIBUTES_HEADER,
    COLLECT,
    ENFORCE_EAGER,
    WARM_ATTRIBUTE,
    WARM_FOLDER,
    WARM_MODE_VARIABLE,
)

COLLECTING_SUFFIX = "-warm"
"""Suffix of the name of the endpoint or engine that collects: the plan's own may run too."""


@dataclass(frozen=True)
class CollectedWarmStart:
    """An artifact in S3. ``others`` are the artifacts next to it, size in bytes by key, which every
    start downloads too. ``stand_in`` is the pair that the sandbox ran instead, and ``seconds`` how
    long the endpoint existed."""

    artifact: WarmArtifact
    place: WeightsPrefix
    others: dict[str, int]
    stand_in: str | None = None
    seconds: float = 0.0

    @property
    def uri(self) -> str:
        """The URI of the archive."""
        return f"{self.place.part_uri(WARM_FOLDER)}{self.artifact.archive.name}"


def collecting_plan(plan: Plan) -> Plan:
    """The plan of the endpoint that collects: the same engine, once, under another name.

    Raises Refused for a plan whose engine compiles nothing.
    """
    if plan.environment.get(ENFORCE_EAGER, "false").strip().lower() != "false":
        message = f"{plan.pair} runs eagerly ({ENFORCE_EAGER}), so there is nothing to collect"
        raise Refused(message, f"remove {ENFORCE_EAGER}", "nothing-compiled")
    each = plan.price_per_hour_usd
    return plan.model_copy(
        update={
            "name": check_name(f"{plan.name}{COLLECTING_SUFFIX}"),
            # Two instances would answer in turn, each with its own artifact.
            "instance_count": 1,
            "copies": None,
            "price_per_hour_usd": None if each is None else round(each / plan.instance_count, 4),
            "environment": {**plan.environment, WARM_MODE_VARIABLE: COLLECT},
        }
    )


def prefix_of_weights(plan: Plan) -> WeightsPrefix:
    """The prefix mounted as /opt/ml/model. Raises Refused unless all weights are below it."""
    drafter = plan.drafter.weights if plan.drafter else None
    kinds = {weights.kind for weights in (plan.target.weights, drafter) if weights}
    if kinds == {"s3"} and not plan.mounts:
        message = f"a warm start needs mounted weights, but those of {plan.pair} are streamed"
        raise Refused(message, "plan with weights_by mount", "weights-streamed")
    if kinds != {"s3"} or [mount.channel for mount in plan.mounts] != [None]:
        sync = ("peagle", "weights", "sync", plan.pair, "s3://BUCKET/PREFIX")
        fix = Fix("use the --model-source and --drafter that this command prints", sync)
        message = f"a warm start needs the weights of {plan.pair} below one S3 prefix"
        raise Refused(message, fix, "weights-not-in-s3")
    return weights_prefix(plan.mounts[0].s3_uri)


def check_writable(aws: Aws, place: WeightsPrefix) -> None:
    """Raise AccessDenied, before anything costs money, if the artifact cannot be written there."""
    bucket, key = Bucket(aws, place.bucket), place.file_key(WARM_FOLDER, "probe")
    try:
        # Begun and aborted: needs the permissions of the upload, and leaves nothing.
        bucket.abort(key, bucket.call("create_multipart_upload", Key=key)["UploadId"])
    except AccessDenied as error:
        raise AccessDenied(
            f"the artifact cannot be written to {place.part_uri(WARM_FOLDER)}: {error.message}",
            error.remedy, error.code,
        ) from error  # fmt: skip


def collect_on_aws(
    aws: Aws,
    preflight: Preflight,
    place: WeightsPrefix,
    observe: Observer = unobserved,
    failed: Callable[[BaseException, Deployment], object] = lambda error, record: None,
    clock: Clock | None = None,
) -> CollectedWarmStart:
    """Deploy what ``preflight`` describes, prove it, store its artifact at ``place``, and remove
    the deployment, however this ends.

    After an error, ``failed`` is called with it and the record before the removal. Raises what
    ``deploy``, ``fetch`` and ``destroy`` raise; the record is left if the removal failed.
    """
    clock = clock or Clock()
    try:
        record = deploy(aws, preflight, observe, clock=clock)
        with TemporaryDirectory(prefix="peagle-warm-") as folder:
            context = DeploymentContext(aws, record, observe, clock)
            stored = _fetch_and_store(context, place, Path(folder))
    except BaseException as error:
        if left := load_record(aws.scope, aws.region, preflight.desired.plan.name):
            failed(error, left)
            destroy(aws, left, observe, clock)
        raise
    destroy(aws, record, observe, clock)
    created = record.billing_since
    return replace(stored, seconds=clock.now() - created if created else 0.0)


def _fetch_and_store(
    context: DeploymentContext, place: WeightsPrefix, folder: Path
) -> CollectedWarmStart:
    name = context.record.name
    stand_in = stand_in_of(context.aws, name)
    context.say("Packing", "compile caches")
    artifact = fetch(
        lambda body: _send(context.aws, name, body),
        folder,
        lambda done, size: context.say_bytes("Fetching", done, size),
        context.clock.sleep,
    )
    _store(context, artifact, place)
    return CollectedWarmStart(artifact, place, _others(context.aws, artifact, place), stand_in)


def _send(aws: Aws, endpoint: str, body: dict[str, Any]) -> WarmReply:
    """Invoke the container's route: the transport of ``peagle.warm.transfer``."""
    try:
        data = json.dumps(body).encode()
        attributes = {"Accept": "*/*", "CustomAttributes": WARM_ATTRIBUTE}
        return WarmReply(200, runtime.invoke(aws, endpoint, data, **attributes))
    except (AccessDenied, Missing):
        raise
    except PeagleError as error:
        reply = _container_reply(error)
        if reply is not None:
            return reply
        if isinstance(error, (CloudError, EngineError)):
            raise IncompleteResponse(error) from error
        raise


def _container_reply(error: PeagleError) -> WarmReply | None:
    """The container's own reply inside SageMaker's ModelError."""
    response = getattr(error.__cause__, "response", None) or {}
    if response.get("Error", {}).get("Code") != "ModelError":
        return None
    text = str(response.get("OriginalMessage", ""))
    return WarmReply(original_status(response), text.encode(errors="replace"))


def _store(context: DeploymentContext, artifact: WarmArtifact, place: WeightsPrefix) -> None:
    """Delete the old manifest first and upload the new one last: without a manifest no engine uses
    the archive, so an interruption never combines an old manifest with a new archive."""
    done = 0
    bucket = Bucket(context.aws, place.bucket)
    manifest = place.file_key(WARM_FOLDER, artifact.manifest.name)
    if manifest in bucket.sizes(manifest):  # deleting nothing leaves a marker in versioned buckets
        with suppress(AccessDenied):  # without s3:DeleteObject the upload still replaces it
            bucket.call("delete_object", Key=manifest)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        context.say_bytes("Storing", min(done, artifact.size), artifact.size)

    for path in (artifact.archive, artifact.manifest):
        key = place.file_key(WARM_FOLDER, path.name)
        context.aws.upload(path, place.bucket, key, {}, advance)


def _others(aws: Aws, artifact: WarmArtifact, place: WeightsPrefix) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for name, size in Bucket(aws, place.bucket).sizes(place.file_key(WARM_FOLDER, "")).items():
        sizes[place.warm_start_id(name) or ""] += size
    return {key: size for key, size in sizes.items() if key not in ("", artifact.key)}


def collect_locally(
    plan: Plan, folder: Path, progress: StepProgress, options: LocalOptions | None = None
) -> WarmArtifact:
    """Start ``plan`` on this machine, compiled; keep its artifact in ``folder``; stop it.

    Nothing runs afterwards, however this ends; the log of a failure is kept. Raises what ``up``
    and ``peagle.warm.transfer.fetch`` raise.
    """
    collecting_plan = plan.model_copy(update={"name": f"{plan.name}{COLLECTING_SUFFIX}"})
    with exclusive(collecting_plan.name, "warm --local"):
        try:
            return _collect(collecting_plan, options or LocalOptions(), folder, progress)
        finally:
            shutil.rmtree(engine_state.collected_folder(collecting_plan.name), ignore_errors=True)


def _collect(
    plan: Plan, options: LocalOptions, folder: Path, progress: StepProgress
) -> WarmArtifact:
    options = replace(options, compiled=not options.gpus, collecting=True)
    engine = start_local(plan, progress=progress, options=options)

    def send(body: dict[str, Any]) -> WarmReply:
        headers = {"Content-Type": "application/json", ATTRIBUTES_HEADER: WARM_ATTRIBUTE}
        try:
            content = json.dumps(body).encode()
            return WarmReply(*exchange(engine.process.port, content, headers))
        except EngineError as error:
            raise IncompleteResponse(error) from error

    def show_bytes(done: int, size: int) -> None:
        progress("fetching", f"{done / 1e6:.1f} of {size / 1e6:.1f} MB")

    try:
        progress("packing", "compile caches")
        artifact = fetch(send, folder, show_bytes, log=engine.process.log)
        stop_local(plan.name, now=True)
    except BaseException:
        end_engine(engine)
        raise
    return artifact
