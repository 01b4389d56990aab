"""Whether the weights that a plan reads from S3 are there and complete, before anything is created.

SageMaker downloads whatever is below a prefix, so a partial copy wastes a whole start before the
container can report it. The manifest of ``peagle weights sync`` tells; without one, the file names
and the index of the shards do. A few small reads per prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.checkpoints.files import files_read
from peagle.checkpoints.vocabulary import vocabulary_folder
from peagle.errors import CheckpointError, Fix, PeagleError, UserError
from peagle.findings import Finding, error, warning
from peagle.planning.plan import MODEL_BUCKET, Plan, Weights
from peagle.s3uri import S3Uri
from peagle.weights.bucket import Bucket, read_lock
from peagle.weights.layout import PARTS, WeightsPrefix, unknown_objects
from peagle.weights.manifest import Manifest, incomplete, mismatch, read_manifest, sync_command
from peagle_serve.contract import VOCABULARY_FILE, VOCABULARY_VARIABLE

PARTIAL, MISSING, NOT_CHECKED = "weights-half", "weights-missing", "weights-not-seen"
WEIGHTS_CODES = frozenset(
    {PARTIAL, MISSING, NOT_CHECKED, "weights-of-another-pair", "vocabulary-not-there",
     "weights-elsewhere", "folder-keys", "foreign-objects"}
)  # fmt: skip
"""All findings of this module: ``deploy`` checks the weights again and replaces the plan's."""

MAX_OBJECTS = 5_000
"""Listing more would take minutes."""


def mounted_findings(aws: Aws, plan: Plan) -> tuple[Finding, ...]:
    """Problems with the weights that the plan mounts or streams from S3; none of those that deploy
    uploads itself. Missing read permissions give a warning."""
    quick = aws.best_effort() if aws.is_amazon else aws
    findings: list[Finding] = []
    for prefix, mounted in prefixes_read(plan).items():
        try:
            for finding in _check_prefix(Bucket(quick, prefix.bucket), plan, prefix, mounted):
                findings.append(finding)
        except PeagleError as failed:
            findings.append(_not_checked(prefix, failed))
    return tuple(findings)


def prefixes_read(plan: Plan) -> dict[WeightsPrefix, bool]:
    """The prefixes in S3 that the plan's weights come from, except those that deploy uploads, and
    whether SageMaker mounts them."""
    uploaded = str(S3Uri(MODEL_BUCKET))
    streamed = {
        WeightsPrefix.parse(weights.location): False
        for _, weights in _in_s3(plan)
        if weights.streamed
    }
    uris = [mount.s3_uri for mount in plan.mounts]
    return streamed | {
        WeightsPrefix.parse(uri): True for uri in uris if not uri.startswith(uploaded)
    }


def _in_s3(plan: Plan) -> Iterator[tuple[str, Weights]]:
    drafter = plan.drafter.weights if plan.drafter else None
    for name, weights in (("target", plan.target.weights), ("drafter", drafter)):
        if weights is not None and weights.kind == "s3":
            yield name, weights


def _not_checked(prefix: WeightsPrefix, failed: PeagleError) -> Finding:
    sentence = "check it yourself"
    if isinstance(failed, AccessDenied):
        sentence = "grant s3:ListBucket and s3:GetObject to these credentials, or check it yourself"
    return warning(
        NOT_CHECKED, prefix.uri, f"the weights were not checked: {failed.message}",
        Fix(sentence, ("peagle", "weights", "list", prefix.uri)),
    )  # fmt: skip


def _check_prefix(
    bucket: Bucket, plan: Plan, prefix: WeightsPrefix, mounted: bool
) -> Iterator[Finding]:
    """Raises PeagleErrors for what cannot be read."""
    with suppress(AccessDenied):  # SageMaker reads weights in its own region only
        try:
            region = bucket.call("head_bucket").get("BucketRegion") or plan.region
        except Missing:
            message = f"there is no bucket {prefix.bucket}"
            yield error(MISSING, prefix.uri, message, "check the URI")
            return
        if region != plan.region:
            yield error(
                "weights-elsewhere", prefix.uri,
                f"the bucket is in {region}, and SageMaker reads weights in its own region only",
                f"plan for --region {region}, or copy the weights to a bucket in {plan.region}",
            )  # fmt: skip
            return
    present: dict[str, int] | None = None  # unknown
    try:
        entries = bucket.aws.items(
            "s3", "list_objects_v2", "Contents", Bucket=prefix.bucket, Prefix=prefix.key
        )
        present = {entry["Key"]: entry["Size"] for entry in islice(entries, MAX_OBJECTS)}
    except AccessDenied as denied:
        yield _not_checked(prefix, denied)
    if present is not None and len(present) == MAX_OBJECTS:
        present = None
        message = f"the prefix has more than {MAX_OBJECTS:,} objects; not all were checked"
        yield warning(NOT_CHECKED, prefix.uri, message, "use the folder of one model")
    parts = [
        (part, place, pair) for part, place, pair in _planned_parts(plan) if prefix in (place, pair)
    ]
    if mounted and present is not None:
        # What keeps SageMaker from mounting the prefix; unknown objects only cost time.
        is_pair = any(pair == prefix != place for _, place, pair in parts)
        for finding in unknown_objects(prefix, present, () if is_pair else tuple(present), PARTS):
            harmless = finding.code == "foreign-objects"
            yield finding.model_copy(update={"level": "warning"}) if harmless else finding
    for part, place, pair in parts:
        below = present if present is None else {
            key.removeprefix(place.key): size
            for key, size in present.items()
            if key.startswith(place.key)
        }  # fmt: skip
        yield from _check_part(bucket, plan, part, place, pair, below)
        folder = plan.environment.get(VOCABULARY_VARIABLE)
        needed = part == "target" and folder == plan.target.weights.engine_path
        if needed and below is not None and VOCABULARY_FILE not in below:
            message = f"{VOCABULARY_VARIABLE} names this folder, which has no {VOCABULARY_FILE}"
            fix = f"put it into {vocabulary_folder()} and copy the target again"
            yield error("vocabulary-not-there", place.uri, message, fix)


def _planned_parts(plan: Plan) -> Iterator[tuple[str, WeightsPrefix, WeightsPrefix]]:
    """Target and drafter, as far as they are in S3: the part, its prefix, and the prefix of the
    synced pair whose folder that would be."""
    for part, weights in _in_s3(plan):
        place = WeightsPrefix.parse(weights.location)
        is_folder = f"/{place.key}".endswith(f"/{part}/")
        above = WeightsPrefix(place.bucket, place.key.removesuffix(f"{part}/"))
        yield part, place, above if is_folder else place


def _check_part(
    bucket: Bucket,
    plan: Plan,
    part: str,
    place: WeightsPrefix,
    pair: WeightsPrefix,
    below: Mapping[str, int] | None,
) -> Iterator[Finding]:
    """Compare the part with the plan, and with its objects (size by name, ``None``: unknown)."""
    option = "--model-source" if part == "target" else "--drafter"
    sync = Fix(
        f"check {option}, or copy a pair there", ("peagle", "weights", "sync", "PAIR", pair.uri)
    )
    manifest: Manifest = {}
    if pair != place:
        with suppress(AccessDenied, UserError):
            manifest = read_manifest(bucket, pair)
    if folder := manifest.get(part):
        if wrong := mismatch(plan, part, folder):
            fix = f"use another {option}, or plan for that pair"
            yield error("weights-of-another-pair", place.uri, wrong, fix)
        elif reason := incomplete(folder, below):
            command = sync_command(pair, manifest, [part]) or sync.command
            with suppress(PeagleError):
                lock = read_lock(bucket, pair)
                reason += f"; {lock}" if lock is not None and not lock.stale else ""
            message = f"the copy of the {part} is incomplete: {reason}"
            yield error(PARTIAL, place.uri, message, Fix("complete it", command))
    elif below is None:
        return
    elif not below:
        yield error(MISSING, place.uri, f"the {part}'s weights are missing at this prefix", sync)
    elif f"{part}/config.json" in below and "config.json" not in below:
        message = f"the {part} is in a subfolder of this prefix"
        yield error(MISSING, place.uri, message, f"use {option} {place.part_uri(part)}")
    else:  # without a manifest: the configuration, and every shard that the index names
        uri = place.uri.rstrip("/")
        try:
            files_read(uri, below, lambda name: bucket.read(place.key + name))
        except CheckpointError as wrong_files:
            yield error(PARTIAL, option, wrong_files.message, wrong_files.remedy)
