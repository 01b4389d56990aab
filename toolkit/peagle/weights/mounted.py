"""The weights that a plan reads from S3: whether they are there and complete, and what is pinned.

SageMaker downloads whatever is below a prefix, so a partial copy wastes a whole start before the
container can report it. The manifest of ``peagle weights sync`` tells; without one, the file names
and the index of the shards do. A few small reads per prefix.

A deploy pins what is there when its plan is shown: the SHA-256 of the manifest, and of each archive
of ``peagle warm``; a plan pins the commits of weights on the Hub. The container accepts nothing
else, so a later write changes neither the weights nor the code that runs.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.catalog.schema import Catalog
from peagle.checkpoints.entries import OWN
from peagle.checkpoints.files import files_read, vocabulary_folder
from peagle.checkpoints.hub import COMMIT, Hub, resolve_revision
from peagle.errors import (
    CheckpointError,
    CloudError,
    Fix,
    HubFailed,
    PeagleError,
    Refused,
    UserError,
)
from peagle.findings import Finding, error, note, warning
from peagle.planning.plan import MODEL_BUCKET, Pins, Plan, Reason, reason
from peagle.planning.weights import MAX_ARCHIVES, with_pins
from peagle.s3uri import S3Uri
from peagle.weights.bucket import (
    Bucket,
    FolderEntry,
    Manifest,
    read_manifest,
    sync_command,
)
from peagle.weights.layout import MANIFEST, PARTS, WeightsPrefix, unknown_objects
from peagle_serve.checkpoint import first_names
from peagle_serve.contract import MANIFEST_SUFFIX, VOCABULARY_FILE, VOCABULARY_VARIABLE, WARM_FOLDER
from peagle_serve.warm import LARGEST, read_sha256

PARTIAL, MISSING, NOT_CHECKED = "weights-half", "weights-missing", "weights-not-seen"
CHANGED = "weights-changed"
WEIGHTS_CODES = frozenset(
    {PARTIAL, MISSING, NOT_CHECKED, CHANGED, "weights-of-another-pair", "vocabulary-not-there",
     "weights-elsewhere", "folder-keys", "foreign-objects", "weights-not-pinned"}
)  # fmt: skip
"""All findings of this module: ``deploy`` looks again and replaces the plan's."""

_HUB_SECONDS = 5.0
"""The commits are optional, so the Hub must answer soon."""


def _parts_in_s3(plan: Plan) -> Iterator[tuple[str, WeightsPrefix, bool]]:
    """Target and drafter, as far as they are in S3, with their prefix and whether vLLM streams
    them."""
    for part, weights in plan.weights.items():
        if weights.kind == "s3":
            yield part, WeightsPrefix.parse(weights.location), weights.streamed


def _mounts(plan: Plan) -> dict[WeightsPrefix, str | None]:
    """The mounted prefixes, except those that deploy uploads, with their channels."""
    uploaded = str(S3Uri(MODEL_BUCKET))
    return {
        WeightsPrefix.parse(mount.s3_uri): mount.channel
        for mount in plan.mounts
        if not mount.s3_uri.startswith(uploaded)
    }


def prefixes_read(plan: Plan) -> dict[WeightsPrefix, bool]:
    """The prefixes in S3 that the plan's weights come from, except those that deploy uploads, and
    whether SageMaker mounts them."""
    streamed = {place: False for _, place, is_streamed in _parts_in_s3(plan) if is_streamed}
    return streamed | dict.fromkeys(_mounts(plan), True)


def mounted_findings(aws: Aws, plan: Plan) -> tuple[Finding, ...]:
    """Problems with the weights that the plan mounts or streams from S3; none of those that deploy
    uploads itself. Missing read permissions give a warning."""
    findings: list[Finding] = []
    for prefix, mounted in prefixes_read(plan).items():
        try:
            for finding in _check_prefix(Bucket(aws, prefix.bucket), plan, prefix, mounted):
                findings.append(finding)
        except PeagleError as failed:
            fix = Fix("check it yourself", ("peagle", "weights", "list", prefix.uri))
            message = f"the weights were not checked: {failed.message}"
            findings.append(warning(NOT_CHECKED, prefix.uri, message, fix))
    return tuple(findings)


def _check_prefix(
    bucket: Bucket, plan: Plan, prefix: WeightsPrefix, mounted: bool
) -> Iterator[Finding]:
    """Raises PeagleErrors for what cannot be read."""
    try:
        region = bucket.call("head_bucket").get("BucketRegion") or plan.region
    except Missing:
        yield error(MISSING, prefix.uri, f"there is no bucket {prefix.bucket}", "check the URI")
        return
    if region != plan.region:
        yield error(
            "weights-elsewhere", prefix.uri,
            f"the bucket is in {region}, and SageMaker reads weights in its own region only",
            f"plan for --region {region}, or copy the weights to a bucket in {plan.region}",
        )  # fmt: skip
        return
    present = bucket.sizes(prefix.key)
    parts = []
    for part, place, _ in _parts_in_s3(plan):
        folder, above = place.in_pair
        pair = above if folder == part else place
        if prefix in (place, pair):
            parts.append((part, place, pair))
    if mounted:
        # What keeps SageMaker from mounting the prefix; unknown objects only cost time.
        is_pair = any(pair == prefix != place for _, place, pair in parts)
        for finding in unknown_objects(prefix, present, () if is_pair else tuple(present), PARTS):
            harmless = finding.code == "foreign-objects"
            yield finding.model_copy(update={"level": "warning"}) if harmless else finding
    for part, place, pair in parts:
        below = {
            key.removeprefix(place.key): size
            for key, size in present.items()
            if key.startswith(place.key)
        }
        yield from _check_part(bucket, plan, part, place, pair, below)
        vocabulary = plan.environment.get(VOCABULARY_VARIABLE)
        needed = part == "target" and vocabulary == plan.target.weights.engine_path
        if needed and VOCABULARY_FILE not in below:
            message = f"{VOCABULARY_VARIABLE} names this folder, which has no {VOCABULARY_FILE}"
            fix = f"put it into {vocabulary_folder()} and copy the target again"
            yield error("vocabulary-not-there", place.uri, message, fix)


def _check_part(
    bucket: Bucket,
    plan: Plan,
    part: str,
    place: WeightsPrefix,
    pair: WeightsPrefix,
    below: Mapping[str, int],
) -> Iterator[Finding]:
    """Compare the part with the plan, and with its objects (size by name). ``pair`` is the prefix
    of the synced pair whose folder it would be."""
    option = "--model-source" if part == "target" else "--drafter"
    sync = Fix(
        f"check {option}, or copy a pair there", ("peagle", "weights", "sync", "PAIR", pair.uri)
    )
    manifest: Manifest = {}
    if pair != place:
        with suppress(AccessDenied, UserError):
            manifest = read_manifest(bucket, pair)
    if folder := manifest.get(part):
        if folder.pair and folder.pair.partition("+")[0] != plan.target.id:
            message = f"according to {MANIFEST}, the {part} there is from {folder.pair}"
            fix = f"use another {option}, or plan for that pair"
            yield error("weights-of-another-pair", place.uri, message, fix)
        elif reason := _incomplete(folder, below):
            command = sync_command(pair, manifest, [part]) or sync.command
            message = f"the copy of the {part} is incomplete: {reason}"
            yield error(PARTIAL, place.uri, message, Fix("complete it", command))
    elif not below:
        yield error(MISSING, place.uri, f"the {part}'s weights are missing at this prefix", sync)
    else:  # without a manifest: the configuration, and every shard that the index names
        uri = place.uri.rstrip("/")
        try:
            files_read(uri, below, lambda name: bucket.read(place.key + name))
        except CheckpointError as wrong_files:
            yield error(PARTIAL, option, wrong_files.message, wrong_files.remedy)


def _incomplete(folder: FolderEntry, below: Mapping[str, int]) -> str:
    """What is missing compared with the manifest; "" when nothing is. ``below`` is size by name."""
    missing = [name for name in folder.files if name not in below]
    if missing:
        return f"it lacks {first_names(missing)}"
    differing = [name for name, entry in folder.files.items() if below[name] != entry.size]
    if differing:
        return f"other sizes than the source have {first_names(differing)}"
    return "" if folder.complete else "the sync has not finished"


def pin_plan(aws: Aws, plan: Plan, serving: Pins | None = None) -> tuple[Plan, tuple[Finding, ...]]:
    """The plan with the current pins of its mounted prefix, and findings about them; its own pins
    are kept, and compared. Where S3 cannot be read, those of what is ``serving`` are kept."""
    # The prefix that is mounted as /opt/ml/model.
    place = next((place for place, channel in _mounts(plan).items() if channel is None), None)
    if place is None:
        return plan, ()
    pins, before = plan.pins, serving or Pins()
    try:
        manifest, archives = manifest_sha256(aws, place), archive_sha256s(aws, place)
    except PeagleError:
        kept = {"weights": pins.weights or before.weights, "warm": pins.warm or before.warm}
        return with_pins(plan, pins.model_copy(update=kept)), ()
    findings: list[Finding] = []
    pinned = pins.weights or before.weights
    if pinned is not None and pinned != manifest:
        by = "this plan was made" if pins.weights else f"{plan.name} was deployed"
        findings.append(error(
            CHANGED, place.uri,
            f"{_change(pinned, manifest, by)}; instances that start now are refused",
            Fix("if the change is yours, make a plan that pins the new one, and deploy that file",
                ("peagle", "plan", plan.pair, "--online", "--output", "FILE")),
        ))  # fmt: skip
    elif manifest is None:
        findings.append(note(
            "weights-not-pinned", place.uri,
            f"without {MANIFEST}, later changes of these weights are not detected",
            Fix("copy them with", ("peagle", "weights", "sync", plan.pair, "s3://BUCKET/PREFIX")),
        ))  # fmt: skip
    warm = pins.warm
    if not (pins.warm or pins.any_warm):
        warm = archives[:MAX_ARCHIVES]
    pins = pins.model_copy(update={"weights": pins.weights or manifest, "warm": warm})
    return with_pins(plan, pins), tuple(findings)


def _change(pinned: str, now: str | None, by: str) -> str:
    """How the manifest differs from the pinned one."""
    there = f"has the SHA-256 {now}" if now else "is gone"
    return f"{MANIFEST} has changed since {by}: it {there}, and {pinned} is pinned"


def manifest_sha256(aws: Aws, place: WeightsPrefix) -> str | None:
    """SHA-256 of the manifest at the prefix; ``None`` where there is none."""
    try:
        return hashlib.sha256(Bucket(aws, place.bucket).read(place.manifest_key)).hexdigest()
    except Missing:
        return None


def archive_sha256s(aws: Aws, place: WeightsPrefix) -> tuple[str, ...]:
    """The SHA-256s in the manifests of the warm starts at the prefix, sorted. The container
    compares the archives themselves."""
    bucket = Bucket(aws, place.bucket)
    digests = set()
    for key, size in bucket.sizes(place.file_key(WARM_FOLDER, "")).items():
        if place.warm_start_id(key) and key.endswith(MANIFEST_SUFFIX) and size <= LARGEST:
            with suppress(Missing):
                digests.add(read_sha256(bucket.read(key)))
    return tuple(sorted(filter(None, digests)))


def require_pinned(aws: Aws, name: str, uri: str | None, pins: Pins) -> None:
    """Raise Refused if the manifest at ``uri`` is not the pinned one: an endpoint that returns to
    that revision would not start. Passes where S3 cannot be read."""
    if uri is None or pins.weights is None:
        return
    place = WeightsPrefix.parse(uri)
    try:
        now = manifest_sha256(aws, place)
    except CloudError:
        return
    if now != pins.weights:
        change = _change(pins.weights, now, "it was deployed")
        raise Refused(
            f"{name} cannot start that revision again: {place.uri}{change}",
            Fix("put its weights back (the same source gives the same manifest), or deploy a new "
                "plan", ("peagle", "weights", "list", place.uri)),
            code=CHANGED,
        )  # fmt: skip


def pin_revisions(
    catalog: Catalog, plan: Plan, hub_of: Callable[[], Hub] = Hub.of_environment
) -> tuple[Catalog, str | None, tuple[Reason, ...], tuple[Finding, ...]]:
    """Ask the Hub for the commits of the plan's weights that are on a branch or tag, which the
    engine downloads at every start. Returns the catalogue with commits, the user's own head with
    its commit (``None`` where that is not on the Hub), reasons and findings."""
    commits: dict[str, str] = {}
    reasons: list[Reason] = []
    findings: list[Finding] = []
    for part, weights in plan.weights.items():
        if weights.kind != "hub" or COMMIT.fullmatch(weights.revision or ""):
            continue
        try:
            hub = replace(hub_of(), seconds=_HUB_SECONDS)
            commits[part] = resolve_revision(hub, weights.location, weights.revision).commit
        except (CheckpointError, HubFailed) as failed:
            findings.append(note(
                "revision-not-resolved", part,
                f"the commit of {weights.location} is unknown: {failed.message}",
                failed.fix or "name a commit, or try again later",
            ))  # fmt: skip
            continue
        revision, location = weights.revision or "main", weights.location
        reasons.append(
            reason(
                f"{part} commit",
                commits[part],
                "commit-on-hub",
                revision=revision,
                location=location,
            )
        )
    head = None
    target = catalog.targets[plan.target.id]
    if "target" in commits:
        target = target.model_copy(update={"revision": commits["target"]})
    if plan.drafter and plan.drafter.name == OWN and "drafter" in commits:
        head = f"{plan.weights['drafter'].location}@{commits['drafter']}"
    elif plan.drafter and "drafter" in commits:
        pinned = {"revision": commits["drafter"]}
        drafters = tuple(
            drafter.model_copy(update=pinned) if drafter.name == plan.drafter.name else drafter
            for drafter in target.drafters
        )
        target = target.model_copy(update={"drafters": drafters})
    targets = ChainMap({target.id: target}, catalog.targets)  # type: ignore[arg-type]
    catalog = replace(catalog, targets=targets) if commits else catalog
    return catalog, head, tuple(reasons), tuple(findings)
