"""What a plan pins: the commits of weights on the Hub, and of what it mounts, read from S3.

A deploy pins what is there when its plan is shown: the SHA-256 of the manifest of ``peagle weights
sync``, and of each archive of ``peagle warm``. The container then accepts nothing else, so a later
write to the bucket changes neither the weights nor the code that runs.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.catalog.schema import Catalog
from peagle.checkpoints.entries import OWN
from peagle.checkpoints.hub import COMMIT, Hub, resolve_revision
from peagle.errors import CheckpointError, CloudError, Fix, HubFailed, PeagleError, Refused
from peagle.findings import Finding, error, note, warning
from peagle.planning.plan import MODEL_BUCKET, Pins, Plan, Reason
from peagle.planning.weights import MAX_ARCHIVES, with_pins
from peagle.s3uri import S3Uri
from peagle.weights.bucket import Bucket
from peagle.weights.layout import MANIFEST, WeightsPrefix
from peagle_serve.contract import MANIFEST_SUFFIX, WARM_FOLDER
from peagle_serve.warm import LARGEST, sha256_in

_HUB_SECONDS = 5.0
"""The commits are optional, so the Hub must answer soon."""

CHANGED = "weights-changed"
PIN_CODES = frozenset({CHANGED, "weights-not-pinned", "warm-not-there", "warm-too-many"})
"""All findings of this module: ``deploy`` looks again and replaces the plan's."""


def pin_plan(aws: Aws, plan: Plan, serving: Pins | None = None) -> tuple[Plan, tuple[Finding, ...]]:
    """The plan with the current pins of its mounted prefix, and findings about them; its own pins
    are kept, and compared.

    ``serving`` are the pins of what is deployed under the name. Where S3 cannot be read, they are
    kept, and preflight reports why.
    """
    # The prefix that is mounted as /opt/ml/model, unless deploy uploads it itself.
    uris = [mount.s3_uri for mount in plan.mounts if mount.channel is None]
    mine = str(S3Uri(MODEL_BUCKET))
    place = next((WeightsPrefix.parse(uri) for uri in uris if not uri.startswith(mine)), None)
    if place is None:
        return plan, ()
    pins = plan.pins
    try:
        manifest, archives = manifest_sha256(aws, place), archive_sha256s(aws, place)
    except PeagleError:
        before = serving or Pins()
        kept = pins.model_copy(
            update={"weights": pins.weights or before.weights, "warm": pins.warm or before.warm}
        )
        return with_pins(plan, kept), ()
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


def pin_revisions(
    catalog: Catalog, plan: Plan, hub_of: Callable[[], Hub] = Hub.of_environment
) -> tuple[Catalog, str | None, tuple[Reason, ...], tuple[Finding, ...]]:
    """Ask the Hub for the commits of the plan's weights that are on a branch or tag: the engine
    downloads them at every start, when a branch may be at a commit that nobody has checked.

    Returns the catalogue with commits in place of branches; the user's own head with its commit
    (``None`` where that is not on the Hub); the reasons; and findings, ``revision-not-resolved``.
    """
    parts = {
        "target": plan.target.weights,
        "drafter": plan.drafter.weights if plan.drafter else None,
    }
    commits: dict[str, str] = {}
    reasons: list[Reason] = []
    findings: list[Finding] = []
    for part, weights in parts.items():
        if weights is None or weights.kind != "hub" or COMMIT.fullmatch(weights.revision or ""):
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
        because = f"{weights.revision or 'main'} of {weights.location} on the Hub, when planned"
        reasons.append(Reason(what=f"{part} commit", value=commits[part], because=because))
    has_own_head = plan.drafter is not None and plan.drafter.name == OWN
    head = parts["drafter"] if has_own_head else None
    target = catalog.targets[plan.target.id]
    if "target" in commits:
        target = target.model_copy(update={"revision": commits["target"]})
    if plan.drafter and "drafter" in commits and not has_own_head:
        pinned = {"revision": commits["drafter"]}
        drafters = tuple(
            drafter.model_copy(update=pinned) if drafter.name == plan.drafter.name else drafter
            for drafter in target.drafters
        )
        target = target.model_copy(update={"drafters": drafters})
    targets = ChainMap({target.id: target}, catalog.targets)  # type: ignore[arg-type]
    return (
        replace(catalog, targets=targets) if commits else catalog,
        f"{head.location}@{commits['drafter']}" if head and "drafter" in commits else None,
        tuple(reasons),
        tuple(findings),
    )
