"""Sync weights to S3: plan what to copy, then compare and copy several parts at a time.

Whatever ends a sync early, the next one resumes: it compares finished objects by checksum, and
keeps the parts that S3 holds of unfinished ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.aws.s3 import bucket_exists, create_bucket
from peagle.checkpoints.models import hub_snapshot
from peagle.checkpoints.vocabulary import needs_vocabulary, vocabulary_folder
from peagle.errors import UserError
from peagle.findings import Finding, warning
from peagle.planning.company import NO_COMPANY, Company
from peagle.planning.plan import Weights
from peagle.weights.bucket import Bucket, ObjectInfo
from peagle.weights.layout import PARTS, WeightsPrefix, unknown_objects
from peagle.weights.lock import hold_lock
from peagle.weights.manifest import (
    FileEntry,
    FolderEntry,
    Manifest,
    SyncedPair,
    inside_a_pair,
    read_manifest,
    write_manifest,
)
from peagle.weights.sources import WeightSource, open_source
from peagle.weights.transfer import (
    PART_SIZE,
    FileTransfer,
    Meter,
    SyncProgress,
    Transfer,
    TransferQueue,
    part_bytes,
)
from peagle.weights.upload import ServerCopy, UploadInParts, UploadWhole, VerifyExisting
from peagle_serve.contract import VOCABULARY_FILE

REPLACING_CODES = frozenset({"other-weights-there", "objects-are-replaced"})
"""Findings of a sync that replaces other weights; ``where`` is their prefix."""


@dataclass(frozen=True)
class SyncPlan:
    """What a sync will do. ``present`` is size by key of the objects at the prefix, and
    ``partial_bytes`` what unfinished uploads hold of the files."""

    prefix: WeightsPrefix
    region: str
    sources: Mapping[str, WeightSource]
    items: tuple[FileTransfer, ...]
    creates_bucket: bool = False
    present: Mapping[str, int] = field(default_factory=dict)
    manifest: Manifest = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    partial_bytes: int = 0

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    @property
    def same_size(self) -> tuple[FileTransfer, ...]:
        """Files that are at the prefix with the right size; their bytes are not compared yet."""
        return tuple(item for item in self.items if self.present.get(item.key) == item.size)


@dataclass(frozen=True)
class SyncResult:
    """Bytes that were moved, and the manifest as it was written."""

    moved: int
    manifest: Manifest


def plan_sync(aws: Aws, prefix: WeightsPrefix, weights: Mapping[str, Weights]) -> SyncPlan:
    """Look at the sources (``weights`` by part) and at the prefix; writes nothing.

    Raises Refused for a bucket of another account or region, UserError when a folder would be
    copied to itself, and what ``open_source`` raises.
    """
    sources = {part: open_source(each, lambda: aws) for part, each in weights.items()}
    for part, source in sources.items():
        origin = source.copied_from
        if origin and origin.uri == prefix.part_uri(part):
            raise UserError(
                f"the {part} would be copied to itself",
                "use another prefix",
                code="copied-to-itself",
            )
    items = tuple(_items(prefix, sources))
    if not bucket_exists(aws, prefix.bucket):
        return SyncPlan(prefix, aws.region, sources, items, creates_bucket=True)
    bucket = Bucket(aws, prefix.bucket)
    present = bucket.sizes(prefix.key)
    manifest = read_manifest(bucket, prefix) if prefix.manifest_key in present else {}
    untouched = [part for part in PARTS if part not in sources]
    findings = tuple(inside_a_pair(bucket, prefix)) or (
        *unknown_objects(prefix, present, {item.key for item in items}, untouched),
        *_replaced(prefix, items, present),
    )
    resumable = [item for item in items if _is_from_source(item, manifest)]
    uploads = bucket.unfinished_uploads(prefix.key) if resumable else {}
    partial = sum(_partial_bytes(bucket, resumable, uploads).values())
    replaced = tuple(other_sources(prefix, sources, manifest))
    return SyncPlan(
        prefix, aws.region, sources, items, False, present, manifest,
        (*replaced, *findings, *lacks_vocabulary(prefix, sources)), partial,
    )  # fmt: skip


def _items(prefix: WeightsPrefix, sources: Mapping[str, WeightSource]) -> Iterator[FileTransfer]:
    """Small files first, so that errors show early."""
    for part, source in sources.items():
        for file in sorted(source.files, key=lambda file: (file.size, file.name)):
            yield FileTransfer(part, source, file, prefix.file_key(part, file.name))


def other_sources(
    prefix: WeightsPrefix, sources: Mapping[str, WeightSource], manifest: Manifest
) -> Iterator[Finding]:
    """A warning for each part that was synced from another source."""
    for part, source in sources.items():
        folder = manifest.get(part)
        if folder is None or folder.source == source.location:
            continue
        of = f"of {folder.pair} " if folder.pair else ""
        yield warning(
            "other-weights-there", prefix.part_uri(part),
            f"the {part} {of}from {folder.source} is replaced",
            "use another prefix to keep both; endpoints that use this prefix would start with "
            "different weights",
        )  # fmt: skip


def lacks_vocabulary(
    prefix: WeightsPrefix, sources: Mapping[str, WeightSource]
) -> Iterator[Finding]:
    """A warning for a target that needs a vocabulary which neither its source nor this machine
    has."""
    target = sources.get("target")
    if target is None or VOCABULARY_FILE in (file.name for file in target.files):
        return
    if needs_vocabulary(target.source):
        yield warning(
            "vocabulary-missing", prefix.part_uri("target"),
            f"the engine will download {VOCABULARY_FILE} at start: it is not on this machine",
            f"for endpoints without egress, put it into {vocabulary_folder()} and sync again",
        )  # fmt: skip


def _replaced(
    prefix: WeightsPrefix, items: Iterable[FileTransfer], present: Mapping[str, int]
) -> Iterator[Finding]:
    every = [item for item in items if present.get(item.key, item.size) != item.size]
    for part in PARTS:
        differing = [item for item in every if item.part == part]
        if differing:
            yield warning(
                "objects-are-replaced", prefix.part_uri(part),
                f"{len(differing)} files differ in size at the destination and are replaced: "
                f"{', '.join(item.name for item in differing[:3])}",
                "endpoints that use this folder would start with different weights",
            )  # fmt: skip


def _is_from_source(item: FileTransfer, manifest: Manifest) -> bool:
    """Whether an earlier sync copied the file from the same source."""
    before = manifest.get(item.part)
    return before is not None and before.source == item.source.location


def _partial_bytes(
    bucket: Bucket, items: Iterable[FileTransfer], uploads: Mapping[str, list[str]]
) -> dict[str, int]:
    """Bytes in the parts of each file's last unfinished upload, by key."""
    found: dict[str, int] = {}
    for item in items:
        for upload in uploads.get(item.key, ())[-1:]:
            with suppress(Missing):
                parts = bucket.uploaded_parts(item.key, upload).values()
                found[item.key] = sum(part.size for part in parts)
    return found


def sync_weights(
    aws: Aws,
    plan: SyncPlan,
    pair: SyncedPair,
    report: Callable[[SyncProgress], object],
    take_over: bool = False,
    company: Company = NO_COMPANY,
) -> SyncResult:
    """Apply a SyncPlan; ``report`` gets the progress. The key and the tags of ``company`` are those
    of what is written, and of a new bucket.

    Raises Refused when someone else works at the prefix, unless ``take_over``, and other
    PeagleErrors; after those and KeyboardInterrupt the next call resumes.
    """
    if plan.creates_bucket:
        create_bucket(aws, plan.prefix.bucket, company.tag_list)
    bucket = Bucket(aws, plan.prefix.bucket, company.kms_key)
    with hold_lock(bucket, plan.prefix, f"copies {pair.pair}", take_over) as lock:
        # Listed again under the lock, uploads first: one can become an object meanwhile.
        uploads = bucket.unfinished_uploads(plan.prefix.key)
        present, known = bucket.sizes(plan.prefix.key), read_manifest(bucket, plan.prefix)
        plan = replace(plan, present=present, manifest=known)
        for item in plan.items:  # uploads of other weights are not resumed
            if not _is_from_source(item, known):
                for upload in uploads.pop(item.key, ()):
                    bucket.abort(item.key, upload)
        write_manifest(bucket, plan.prefix, known | _folders(plan, pair, {}))
        meter = Meter(plan.size, report)
        for item in plan.same_size:
            meter.expect(item.name, item.size)
        partial = _partial_bytes(bucket, plan.items, uploads)
        for item in plan.items:
            if item.key in partial:
                meter.expect(item.name, partial[item.key])
        if meter.done:
            meter.tick()
        TransferQueue(meter, lock.renew).run(_transfers(bucket, plan, uploads))
        heads = ((item.key, bucket.head(item.key)) for item in plan.items)
        stored = {key: _checksum(bucket, key, head) for key, head in heads if head}
        manifest = known | _folders(plan, pair, stored)
        lock.renew(now=True)
        write_manifest(bucket, plan.prefix, manifest)
        return SyncResult(meter.moved, manifest)


def _checksum(bucket: Bucket, key: str, head: ObjectInfo) -> tuple[str, int | None]:
    """S3's checksum, and the part size that it depends on, if it does."""
    if not head.composite:
        return head.checksum, None
    given = head.metadata.get(PART_SIZE, "")
    return head.checksum, int(given) if given.isdecimal() else bucket.part_size(key)


def _folders(
    plan: SyncPlan, pair: SyncedPair, checksums: Mapping[str, tuple[str, int | None]]
) -> Manifest:
    """The folders of the manifest; complete once the checksums are known."""
    return {
        part: FolderEntry(
            source=source.location,
            complete=bool(checksums),
            files={
                item.file.name: FileEntry(
                    item.size, item.file.sha256, *checksums.get(item.key, (None, None))
                )
                for item in plan.items
                if item.part == part
            },
            pair=pair.pair,
            parallel_drafting=pair.parallel_drafting if part == "drafter" else None,
            given=part in pair.given,
            commit=hub_snapshot(source.location),
        )
        for part, source in plan.sources.items()
    }


def _transfers(
    bucket: Bucket, plan: SyncPlan, uploads: Mapping[str, list[str]]
) -> Iterator[Transfer]:
    same_size = {item.key for item in plan.same_size}
    for item in plan.items:
        unfinished = uploads.get(item.key, [])
        origin = item.source.copied_from
        if origin is not None:
            yield ServerCopy(bucket, item, origin, unfinished)
            continue
        exists = item.key in same_size
        transfer: Transfer
        if item.size <= part_bytes(item.size):
            transfer = UploadWhole(bucket, item)
        else:
            transfer = UploadInParts(bucket, item, unfinished, differs=exists)
        yield VerifyExisting(bucket, item, transfer) if exists else transfer
