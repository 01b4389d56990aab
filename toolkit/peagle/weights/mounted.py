"""Whether the weights that a plan reads from S3 are there and complete, before anything is created.

SageMaker downloads whatever is below a prefix, so a partial copy wastes a whole start before the
container can report it. The manifest of ``peagle weights sync`` tells; without one, the file names
and the index of the shards do. A few small reads per prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
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
from peagle.weights.layout import MANIFEST, PARTS, WeightsPrefix, unknown_objects
from peagle.weights.manifest import Manifest, incomplete, mismatch, read_manifest, sync_command
from peagle_serve.contract import VOCABULARY_FILE, VOCABULARY_VARIABLE

PARTIAL, OTHER_PAIR, MISSING = "weights-half", "weights-of-another-pair", "weights-missing"
NOT_CHECKED, OTHER_PART = "weights-not-seen", "weights-of-the-other-part"
NO_VOCABULARY = "vocabulary-not-there"
WEIGHTS_CODES = frozenset(
    {PARTIAL, OTHER_PAIR, MISSING, NOT_CHECKED, OTHER_PART, NO_VOCABULARY, "weights-elsewhere",
     "file-and-folder", "folder-keys", "foreign-objects"}
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


@dataclass(frozen=True)
class _Part:
    """Target or drafter as the plan reads it; ``pair`` is the prefix of a synced pair whose folder
    that is, if it has such a name, and ``manifest`` the one there."""

    name: str
    prefix: WeightsPrefix
    pair: WeightsPrefix
    manifest: Manifest

    @property
    def option(self) -> str:
        """The option that names its location."""
        return "--model-source" if self.name == "target" else "--drafter"


def _planned_parts(bucket: Bucket, plan: Plan, prefix: WeightsPrefix) -> Iterator[_Part]:
    """Target and drafter, as far as they come from this prefix."""
    manifests: dict[WeightsPrefix, Manifest] = {}
    for name, weights in _in_s3(plan):
        place = WeightsPrefix.parse(weights.location)
        folder = next((part for part in PARTS if place.uri.endswith(f"/{part}/")), None)
        pair = WeightsPrefix.parse(place.uri.removesuffix(f"{folder}/")) if folder else place
        if prefix not in (place, pair):
            continue
        if folder and pair not in manifests:
            manifests[pair] = {}
            with suppress(AccessDenied, UserError):
                manifests[pair] = read_manifest(bucket, pair)
        yield _Part(name, place, pair, manifests.get(pair, {}))


def _check_prefix(
    bucket: Bucket, plan: Plan, prefix: WeightsPrefix, mounted: bool
) -> Iterator[Finding]:
    """Raises PeagleErrors for what cannot be read."""
    if elsewhere := _wrong_bucket(bucket, plan, prefix):
        yield elsewhere
        return
    parts = tuple(_planned_parts(bucket, plan, prefix))
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
    if mounted and present is not None:
        # What keeps SageMaker from mounting the prefix; unknown objects only cost time.
        is_pair = any(part.pair == prefix != part.prefix for part in parts)
        for finding in unknown_objects(prefix, present, () if is_pair else tuple(present), PARTS):
            harmless = finding.code == "foreign-objects"
            yield finding.model_copy(update={"level": "warning"}) if harmless else finding
    for part in parts:
        below = present if present is None else {
            key.removeprefix(part.prefix.key): size
            for key, size in present.items()
            if key.startswith(part.prefix.key)
        }  # fmt: skip
        yield from _check_part(bucket, plan, part, below)
        folder = plan.environment.get(VOCABULARY_VARIABLE)
        needed = part.name == "target" and folder == plan.target.weights.engine_path
        if needed and below is not None and VOCABULARY_FILE not in below:
            message = f"{VOCABULARY_VARIABLE} names this folder, which has no {VOCABULARY_FILE}"
            fix = f"put it into {vocabulary_folder()} and copy the target again"
            yield error(NO_VOCABULARY, part.prefix.uri, message, fix)


def _wrong_bucket(bucket: Bucket, plan: Plan, prefix: WeightsPrefix) -> Finding | None:
    """SageMaker reads weights in its own region only. ``None`` also where that may not be asked."""
    try:
        region = bucket.call("head_bucket").get("BucketRegion") or plan.region
    except Missing:
        return error(
            MISSING, prefix.uri, f"there is no bucket {prefix.bucket}", "check the URI"
        )  # fmt: skip
    except AccessDenied:
        return None
    if region == plan.region:
        return None
    return error(
        "weights-elsewhere", prefix.uri,
        f"the bucket is in {region}; SageMaker in {plan.region} reads weights in its own region "
        "only",
        f"plan for --region {region}, or copy the weights to a bucket in {plan.region}",
    )  # fmt: skip


def _check_part(
    bucket: Bucket, plan: Plan, part: _Part, below: Mapping[str, int] | None
) -> Iterator[Finding]:
    """Compare the part with the plan, and with its objects (size by name, ``None``: unknown)."""
    where = part.prefix.uri
    sync = Fix(
        f"check {part.option}, or copy a pair there",
        ("peagle", "weights", "sync", "PAIR", part.pair.uri),
    )
    other = "target" if part.name == "drafter" else "drafter"
    if where.endswith(f"/{other}/") and other in part.manifest:
        right = f"use {part.option} {part.pair.part_uri(part.name)}"
        yield error(
            OTHER_PART, where,
            f"according to {MANIFEST}, this is the folder of a {other}, not of a {part.name}",
            right if part.name in part.manifest else f"use another {part.option}",
        )  # fmt: skip
    elif where.endswith(f"/{part.name}/") and (folder := part.manifest.get(part.name)):
        if wrong := mismatch(plan, part.name, folder):
            fix = f"use another {part.option}, or plan for that pair"
            yield error(OTHER_PAIR, where, wrong, fix)
        elif reason := incomplete(folder, below):
            command = sync_command(part.pair, part.manifest, [part.name]) or sync.command
            with suppress(PeagleError):
                lock = read_lock(bucket, part.pair)
                reason += f"; {lock}" if lock is not None and not lock.stale else ""
            message = f"the copy of the {part.name} is incomplete: {reason}"
            yield error(PARTIAL, where, message, Fix("complete it", command))
    elif below is None:
        return
    elif not below:
        message = f"the {part.name}'s weights are missing at this prefix"
        yield error(MISSING, where, message, sync)
    elif f"{part.name}/config.json" in below and "config.json" not in below:
        message = f"the {part.name} is in a subfolder of this prefix"
        fix = f"use {part.option} {part.prefix.part_uri(part.name)}"
        yield error(MISSING, where, message, fix)
    else:  # without a manifest: the configuration, and every shard that the index names
        try:
            files_read(where.rstrip("/"), below, lambda name: bucket.read(part.prefix.key + name))
        except CheckpointError as wrong_files:
            yield error(PARTIAL, part.option, wrong_files.message, wrong_files.remedy)
