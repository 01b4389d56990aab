"""What a plan pins of the weights and warm starts that it mounts, read from S3.

A deploy pins what is there when its plan is shown: the SHA-256 of the manifest of ``peagle weights
sync``, and of each archive of ``peagle warm``. The container then accepts nothing else, so a later
write to the bucket changes neither the weights nor the code that runs.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass

from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.errors import CloudError, Fix, PeagleError, Refused
from peagle.findings import Finding, error, note, warning
from peagle.planning.plan import MODEL_BUCKET, Pins, Plan
from peagle.planning.weights import MAX_ARCHIVES, with_pins
from peagle.s3uri import S3Uri
from peagle.weights.bucket import Bucket
from peagle.weights.layout import MANIFEST, WeightsPrefix
from peagle_serve.contract import MANIFEST_SUFFIX, WARM_FOLDER
from peagle_serve.warm import LARGEST, sha256_in

CHANGED = "weights-changed"
PIN_CODES = frozenset({CHANGED, "weights-not-pinned", "warm-not-there", "warm-too-many"})
"""All findings of this module: ``deploy`` looks again and replaces the plan's."""


@dataclass(frozen=True)
class PinnedPlan:
    """A plan with all pins that are known, and findings about them."""

    plan: Plan
    findings: tuple[Finding, ...]


def pin_plan(aws: Aws, plan: Plan, serving: Pins | None = None) -> PinnedPlan:
    """The plan with the current pins of its mounted prefix; its own pins are kept, and compared.

    ``serving`` are the pins of what is deployed under the name. Where S3 cannot be read, they are
    kept, and preflight reports why.
    """
    place = mounted_prefix(plan)
    if place is None:
        return PinnedPlan(plan, ())
    pins = plan.pins
    try:
        manifest, archives = manifest_sha256(aws, place), archive_sha256s(aws, place)
    except PeagleError:
        before = serving or Pins()
        kept = pins.model_copy(
            update={"weights": pins.weights or before.weights, "warm": pins.warm or before.warm}
        )
        return PinnedPlan(with_pins(plan, kept), ())
    findings: list[Finding] = []
    pinned = pins.weights or (serving.weights if serving else None)
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
    folder = place.part_uri(WARM_FOLDER)
    if gone := [archive for archive in pins.warm if archive not in archives]:
        findings.append(warning(
            "warm-not-there", folder,
            f"no archive there has the pinned SHA-256 {gone[0]}, so starts are cold",
            "omit warm_sha256: deploy then pins what is there",
        ))  # fmt: skip
    warm = pins.warm
    if not (pins.warm or pins.any_warm):
        warm = archives[:MAX_ARCHIVES]
        if len(archives) > MAX_ARCHIVES:
            findings.append(warning(
                "warm-too-many", folder,
                f"{len(archives)} archives are there, and a plan pins {MAX_ARCHIVES}; starts that "
                "need another one are cold",
                Fix("remove some", ("peagle", "weights", "list", place.uri)),
            ))  # fmt: skip
    pins = pins.model_copy(update={"weights": pins.weights or manifest, "warm": warm})
    return PinnedPlan(with_pins(plan, pins), tuple(findings))


def _change(pinned: str, now: str | None, by: str) -> str:
    """How the manifest differs from the pinned one."""
    there = f"has the SHA-256 {now}" if now else "is gone"
    return f"{MANIFEST} has changed since {by}: it {there}, and {pinned} is pinned"


def mounted_prefix(plan: Plan) -> WeightsPrefix | None:
    """The prefix that the plan mounts as /opt/ml/model; ``None`` without one, and where deploy
    uploads it itself."""
    uris = [mount.s3_uri for mount in plan.mounts if mount.channel is None]
    mine = str(S3Uri(MODEL_BUCKET))
    return next((WeightsPrefix.parse(uri) for uri in uris if not uri.startswith(mine)), None)


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
                digests.add(sha256_in(bucket.read(key)))
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
    if now == pins.weights:
        return
    change = _change(pins.weights, now, "it was deployed")
    raise Refused(
        f"{name} cannot start that revision again: {place.uri}{change}",
        Fix("put its weights back (the same source gives the same manifest), or deploy a new plan",
            ("peagle", "weights", "list", place.uri)),
        code=CHANGED,
    )  # fmt: skip
