"""Warm starts: run a plan once, on AWS or on this machine, and keep what its engine compiled.

    <key>.tar.gz   the engine's compile and kernel caches, packed by ``peagle_serve``
    <key>.json     the manifest: what they were compiled for, size, SHA-256; written last

The two files are one artifact. A container that finds an artifact with its own key starts with warm
caches. On AWS a temporary endpoint compiles, and the artifact is stored in the folder ``warm/``
next to the weights, so every deployment that mounts the weights mounts it too.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field

from peagle.aws import runtime
from peagle.aws.client import Aws, original_status
from peagle.aws.errors import AccessDenied, Missing
from peagle.deploy.apply import deploy
from peagle.deploy.context import DeploymentContext
from peagle.deploy.preflight import Preflight
from peagle.deploy.records import load_record
from peagle.deploy.removal import destroy
from peagle.deploy.status import read_stand_in
from peagle.engine import state as engine_state
from peagle.engine.local import (
    StepProgress,
    end_engine,
    exchange,
    exclusive,
    start_local,
    stop_local,
)
from peagle.engine.runner import AS_PROCESS, LocalRunner
from peagle.errors import (
    CloudError,
    EngineError,
    Fix,
    PeagleError,
    Refused,
    parsing,
    to_count,
)
from peagle.frozen import Result
from peagle.planning.plan import Plan
from peagle.planning.runtime import check_name
from peagle.protocol import engine_message
from peagle.store import replacing, require_free
from peagle.weights.bucket import Bucket
from peagle.weights.layout import WeightsPrefix, weights_prefix
from peagle_serve import json_reader
from peagle_serve.contract import (
    ATTRIBUTES_HEADER,
    COLLECT,
    ENFORCE_EAGER,
    HEX_32,
    SHA256,
    WARM_ATTRIBUTE,
    WARM_FOLDER,
    WARM_MODE_VARIABLE,
)

COLLECTING_SUFFIX = "-warm"
"""Suffix of the name of the endpoint or engine that collects: the plan's own may run too."""

PART_BYTES = 4 * 1024 * 1024
"""The most that a container sends at once: InvokeEndpoint responses are limited to 6 MB."""

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between attempts after an incomplete response."""

_FORMAT = 1
_REPEAT = "nothing was stored; run the command again"
_REBUILD = Fix(
    "build the image again with this version", ("peagle", "image", "build", "PAIR", "--push")
)


@dataclass(frozen=True)
class WarmReply:
    """HTTP status and body of a response of the container."""

    status: int
    body: bytes


SendRequest = Callable[[dict[str, Any]], WarmReply]
"""Sends a body to the container's route: by InvokeEndpoint, or HTTP to a local engine. Raises
CloudError or EngineError without a reply."""

OnBytes = Callable[[int, int], object]
"""Called with bytes received and bytes in total."""


class WarmArtifact(Result):
    """An artifact on this machine. ``bytes`` are those of the archive; ``seconds_cold`` is how long
    the engine took to become healthy without it."""

    key: str
    archive: Path = Field(exclude=True)
    manifest: Path = Field(exclude=True)
    bytes: int
    sha256: str
    files: int
    unpacked_bytes: int
    seconds_cold: float


@dataclass(frozen=True)
class CollectedWarmStart:
    """An artifact in S3. ``others`` are the artifacts next to it, size in bytes by key,
    ``stand_in`` the pair that the sandbox ran instead, ``seconds`` how long the endpoint
    existed."""

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
    """The plan of the endpoint that collects: the same engine, once, under another name. Raises
    Refused for a plan whose engine compiles nothing."""
    if plan.environment.get(ENFORCE_EAGER, "false").strip().lower() != "false":
        message = f"{plan.pair} runs eagerly ({ENFORCE_EAGER}), so there is nothing to collect"
        raise Refused(message, f"remove {ENFORCE_EAGER}", "nothing-compiled")
    usd = plan.price_per_hour_usd
    return plan.model_copy(
        update={
            "name": check_name(f"{plan.name}{COLLECTING_SUFFIX}"),
            # Two instances would answer in turn, each with its own artifact.
            "instance_count": 1,
            "copies": None,
            "price_per_hour_usd": None if usd is None else round(usd / plan.instance_count, 4),
            "environment": {**plan.environment, WARM_MODE_VARIABLE: COLLECT},
        }
    )


def find_weights_prefix(plan: Plan) -> WeightsPrefix:
    """The prefix mounted as /opt/ml/model. Raises Refused unless all weights are below it."""
    kinds = {weights.kind for weights in plan.weights.values()}
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
    # Begun and aborted: needs the permissions of the upload, and leaves nothing.
    upload = bucket.call("create_multipart_upload", Key=key)["UploadId"]
    begun = {"Bucket": bucket.name, "Key": key, "UploadId": upload}
    bucket.aws.delete("s3", "abort_multipart_upload", **begun)


def collect_on_aws(
    context: DeploymentContext,
    preflight: Preflight,
    place: WeightsPrefix,
    failed: Callable[[BaseException], object] = lambda error: None,
) -> CollectedWarmStart:
    """Deploy what ``preflight`` describes, prove it, store its artifact at ``place``, and remove
    the deployment, however this ends. After an error, ``failed`` is called before the removal."""
    aws, clock, name = context.aws, context.clock, context.record.name
    try:
        deploy(context, preflight)
        with TemporaryDirectory(prefix="peagle-warm-") as folder:
            stand_in = read_stand_in(aws, name)
            context.say("Packing", "compile caches")
            artifact = fetch(
                partial(_send_to_endpoint, aws, name),
                Path(folder),
                partial(context.say_bytes, "Fetching"),
                clock.sleep,
            )
            _store(context, artifact, place)
            sizes: Counter[str] = Counter()
            there = Bucket(aws, place.bucket).sizes(place.file_key(WARM_FOLDER, ""))
            for file, size in there.items():
                sizes[place.warm_start_id(file) or ""] += size
            others = {key: size for key, size in sizes.items() if key not in ("", artifact.key)}
    except BaseException as error:
        if left := load_record(*context.record.key):
            context.record = left
            failed(error)
            destroy(context)
        raise
    created = context.record.billing_since
    destroy(context)
    seconds = clock.now() - created if created else 0.0
    return CollectedWarmStart(artifact, place, others, stand_in, seconds)


def _send_to_endpoint(aws: Aws, endpoint: str, body: dict[str, Any]) -> WarmReply:
    try:
        data = json.dumps(body).encode()
        attributes = {"Accept": "*/*", "CustomAttributes": WARM_ATTRIBUTE}
        return WarmReply(200, runtime.invoke(aws, endpoint, data, **attributes))
    except PeagleError as error:  # the container's own reply is inside SageMaker's ModelError
        response = getattr(error.__cause__, "response", None) or {}
        if response.get("Error", {}).get("Code") != "ModelError":
            raise
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
        context.say_bytes("Storing", min(done, artifact.bytes), artifact.bytes)

    for path in (artifact.archive, artifact.manifest):
        key = place.file_key(WARM_FOLDER, path.name)
        context.aws.upload(path, place.bucket, key, {}, advance)


def collect_locally(
    plan: Plan, folder: Path, progress: StepProgress, runner: LocalRunner = AS_PROCESS
) -> WarmArtifact:
    """Start ``plan`` on this machine, compiled; keep its artifact in ``folder``; stop it, however
    this ends. The log of a failure is kept."""
    plan = plan.model_copy(update={"name": f"{plan.name}{COLLECTING_SUFFIX}"})
    runner = replace(runner, compiled=not runner.gpus, collecting=True)

    def send(body: dict[str, Any]) -> WarmReply:
        headers = {"Content-Type": "application/json", ATTRIBUTES_HEADER: WARM_ATTRIBUTE}
        return WarmReply(*exchange(engine.process.port, json.dumps(body).encode(), headers))

    def show_bytes(done: int, size: int) -> None:
        progress("fetching", f"{done / 1e6:.1f} of {size / 1e6:.1f} MB")

    with exclusive(plan.name, "warm --local"):
        try:
            engine = start_local(plan, progress=progress, runner=runner)
            try:
                progress("packing", "compile caches")
                artifact = fetch(send, folder, show_bytes, log=engine.process.log)
                stop_local(plan.name, now=True)
            except BaseException:
                end_engine(engine)
                raise
            return artifact
        finally:
            shutil.rmtree(engine_state.collected_folder(plan.name), ignore_errors=True)


def fetch(
    send: SendRequest,
    folder: Path,
    progress: OnBytes = lambda done, size: None,
    sleep: Callable[[float], object] = time.sleep,
    log: str = "the container's log",
) -> WarmArtifact:
    """Bring the container's artifact into ``folder``, completely or not at all. Raises Refused when
    there is nothing to fetch or the image is too old, EngineError when the container fails or sends
    other bytes than its manifest lists, UserError when the disk is full."""
    request = partial(_request, send, sleep, log)
    text = request({})
    artifact = _read_manifest(text, folder)
    require_free(folder, artifact.bytes, "the artifact")
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(artifact.archive) as draft:
        sha256 = hashlib.sha256()
        progress(0, artifact.bytes)
        with draft.open("wb") as stream:
            for done in range(0, artifact.bytes, PART_BYTES):
                length = min(PART_BYTES, artifact.bytes - done)
                part = request({"offset": done, "length": length}, length)
                stream.write(part)
                sha256.update(part)
                progress(done + length, artifact.bytes)
        if sha256.hexdigest() != artifact.sha256:
            message = f"the bytes of {artifact.key} do not match the container's manifest"
            raise EngineError(message, _REPEAT, "checksum-mismatch")
        draft.chmod(0o644)  # the container's own user reads it
        # Without a manifest there is no artifact: no reader combines an old one with new bytes.
        artifact.manifest.unlink(missing_ok=True)
    with replacing(artifact.manifest) as draft:
        draft.write_bytes(text)
        draft.chmod(0o644)
    return artifact


def _request(
    send: SendRequest,
    sleep: Callable[[float], object],
    log: str,
    body: dict[str, Any],
    length: int | None = None,
) -> bytes:
    """The response to ``body``, of ``length`` bytes where given; retried after pauses while the
    container fails, or no or only a part of a response arrives."""
    failure: PeagleError
    for pause in (*PAUSES, None):
        try:
            response = send(body)
            if response.status == 200 and length in (None, len(response.body)):
                return response.body
            failure = _failure(response, log, length)
        except (CloudError, EngineError) as error:
            failure = error
        if pause is None or isinstance(failure, (Refused, AccessDenied, Missing)):
            break
        sleep(pause)
    raise failure


def _failure(response: WarmReply, log: str, length: int | None) -> PeagleError:
    if response.status == 200:
        size = f"{len(response.body):,} of {length or 0:,} bytes"
        message = f"a part of the artifact is truncated: {size}"
        return EngineError(message, _REPEAT, "incomplete-response")
    text = response.body[:2000].decode("utf-8", errors="replace")
    reason = f"{response.status}: {engine_message(text)[:300] or 'empty response'}"
    if response.status >= 500:
        message = f"the container failed to collect ({reason})"
        return EngineError(message, f"see {log}", "collection-failed")
    if response.status == 409:
        return Refused(f"there is nothing to collect ({reason})", f"see {log}", "nothing-compiled")
    message = f"the container does not offer compile caches ({reason})"
    return Refused(message, _REBUILD, "image-too-old")


def _read_manifest(text: bytes, folder: Path) -> WarmArtifact:
    """The artifact of a manifest. Raises Refused for a format of another version."""
    with parsing("the container's manifest", Refused, _REBUILD, "manifest-format"):
        document = json_reader.read(text, "the manifest")
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}")
        key, sha256 = str(document["key"]), str(document["sha256"])
        if not HEX_32.fullmatch(key) or not SHA256.fullmatch(sha256):
            raise ValueError(f"key {key!r}, sha256 {sha256!r}")
        return WarmArtifact(
            key=key,
            archive=folder / f"{key}.tar.gz",
            manifest=folder / f"{key}.json",
            bytes=to_count(document["size"]),
            sha256=sha256,
            files=to_count(document["files"]),
            unpacked_bytes=to_count(document["unpacked_bytes"]),
            seconds_cold=float(document["seconds_cold"]),
        )
