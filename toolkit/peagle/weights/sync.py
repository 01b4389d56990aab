"""Sync weights to S3: plan what to copy, compare what is there by its checksum, copy the rest.

A file that was interrupted is copied again from its beginning; files that are complete are not.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from peagle.aws.client import Aws
from peagle.aws.s3 import (
    ALGORITHM,
    PART_BYTES,
    Transfers,
    bucket_exists,
    create_bucket,
    source_changed,
)
from peagle.checkpoints.models import hub_snapshot
from peagle.checkpoints.vocabulary import needs_vocabulary, vocabulary_folder
from peagle.errors import CloudError, PeagleError, UserError
from peagle.findings import Finding, error, warning
from peagle.planning.company import NO_COMPANY, Company
from peagle.s3uri import S3Uri
from peagle.weights.bucket import Bucket, ObjectInfo, hold_lock
from peagle.weights.layout import PARTS, WeightsPrefix, unknown_objects
from peagle.weights.manifest import (
    FileEntry,
    FolderEntry,
    Manifest,
    read_manifest,
    refuse_neighbors,
    write_manifest,
)
from peagle.weights.sources import (
    PairWeights,
    SourceFile,
    SourceStream,
    WeightSource,
    open_source,
)
from peagle_serve.contract import VOCABULARY_FILE

FILES_AT_ONCE = 4

REPLACING_CODES = frozenset({"other-weights-there", "objects-are-replaced"})
"""Findings of a sync that replaces other weights; ``where`` is their prefix."""

_SHA256 = "sha256"
"""Object metadata: the SHA-256 of the whole file, where the Hub lists it."""

_SOURCE_ETAG = "source-etag"
"""Object metadata of a server-side copy: the ETag of the original."""

_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class SyncFile:
    """One file of a sync: the part (target or drafter), the source, and the key in S3."""

    part: str
    source: WeightSource
    file: SourceFile
    key: str

    @property
    def name(self) -> str:
        """``target/config.json``."""
        return f"{self.part}/{self.file.name}"

    @property
    def size(self) -> int:
        return self.file.size


@dataclass(frozen=True)
class SyncPlan:
    """What a sync will do. ``present`` is size by key of the objects at the prefix."""

    prefix: WeightsPrefix
    region: str
    pair: PairWeights
    sources: Mapping[str, WeightSource]
    files: tuple[SyncFile, ...]
    creates_bucket: bool = False
    present: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def same_size(self) -> tuple[SyncFile, ...]:
        """Files that are at the prefix with the right size; their bytes are not compared yet."""
        return tuple(file for file in self.files if self.present.get(file.key) == file.size)


@dataclass(frozen=True)
class SyncProgress:
    """Bytes in place of ``total``, bytes moved by this run, bytes per second, and seconds left
    (``None`` while unknown)."""

    done: int
    total: int
    moved: int
    speed: float = 0.0
    seconds_left: float | None = None


@dataclass(frozen=True)
class SyncResult:
    """Bytes that were moved, and the manifest as it was written."""

    moved: int
    manifest: Manifest


def plan_sync(aws: Aws, prefix: WeightsPrefix, pair: PairWeights) -> SyncPlan:
    """Look at the sources and at the prefix; writes nothing.

    Raises Refused for a bucket of another account or region, UserError when a folder would be
    copied to itself, and what ``open_source`` raises.
    """
    sources = {part: open_source(each, lambda: aws) for part, each in pair.weights.items()}
    for part, source in sources.items():
        if source.copied_from and source.copied_from.uri == prefix.part_uri(part):
            raise UserError(
                f"the {part} would be copied to itself", "use another prefix", "copied-to-itself"
            )
    files = tuple(
        SyncFile(part, source, file, prefix.file_key(part, file.name))
        for part, source in sources.items()
        for file in sorted(source.files, key=lambda file: (file.size, file.name))
    )  # small files first, so that errors show early
    plan = SyncPlan(prefix, aws.region, pair, sources, files)
    if not bucket_exists(aws, prefix.bucket):
        return replace(plan, creates_bucket=True)
    bucket = Bucket(aws, prefix.bucket)
    present = bucket.sizes(prefix.key)
    manifest = read_manifest(bucket, prefix) if prefix.manifest_key in present else {}
    plan = replace(plan, present=present)
    return replace(plan, findings=tuple(_findings(bucket, plan, manifest)))


def _findings(bucket: Bucket, plan: SyncPlan, manifest: Manifest) -> Iterator[Finding]:
    prefix, present = plan.prefix, plan.present
    for part, source in plan.sources.items():
        folder = manifest.get(part)
        if folder is not None and folder.source != source.location:
            yield warning(
                "other-weights-there", prefix.part_uri(part),
                f"the {part} of {folder.pair or 'another pair'} from {folder.source} is replaced",
                "use another prefix to keep both; endpoints that use this prefix would start with "
                "different weights",
            )  # fmt: skip
    try:
        refuse_neighbors(bucket, prefix, ())
    except PeagleError as inside:
        yield error("foreign-objects", prefix.uri, inside.message, inside.remedy)
        return
    untouched = [part for part in PARTS if part not in plan.sources]
    yield from unknown_objects(prefix, present, {file.key for file in plan.files}, untouched)
    differing = [file for file in plan.files if present.get(file.key, file.size) != file.size]
    for part in dict.fromkeys(file.part for file in differing):
        names = [file.name for file in differing if file.part == part]
        yield warning(
            "objects-are-replaced", prefix.part_uri(part),
            f"{len(names)} files differ in size at the destination and are replaced: "
            f"{', '.join(names[:3])}",
            "endpoints that use this folder would start with different weights",
        )  # fmt: skip
    target = plan.sources.get("target")
    if target is None or VOCABULARY_FILE in (file.name for file in target.files):
        return
    if needs_vocabulary(target.source):
        yield warning(
            "vocabulary-missing", prefix.part_uri("target"),
            f"the engine will download {VOCABULARY_FILE} at start: it is not on this machine",
            f"for endpoints without egress, put it into {vocabulary_folder()} and sync again",
        )  # fmt: skip


def sync_weights(
    aws: Aws,
    plan: SyncPlan,
    report: Callable[[SyncProgress], object],
    take_over: bool = False,
    company: Company = NO_COMPANY,
) -> SyncResult:
    """Apply a SyncPlan; ``report`` gets the progress. The key and the tags of ``company`` are those
    of what is written, and of a new bucket.

    Raises Refused when someone else works at the prefix, unless ``take_over``, and other
    PeagleErrors; after those and KeyboardInterrupt the next call copies what is missing.
    """
    prefix = plan.prefix
    if plan.creates_bucket:
        create_bucket(aws, prefix.bucket, company.tag_list)
    bucket = Bucket(aws, prefix.bucket, company.kms_key)
    with hold_lock(bucket, prefix, f"copies {plan.pair.name}", take_over) as lock:
        before = read_manifest(bucket, prefix)
        bucket.abort_uploads(prefix.key, {file.key for file in plan.files})
        write_manifest(bucket, prefix, before | _folders(plan, {}))
        meter = _Meter(plan.size)

        def tick() -> None:
            lock.renew()
            report(meter.progress)

        entries = _copy(bucket, plan.files, meter, tick)
        manifest = before | _folders(plan, entries)
        lock.renew(now=True)
        write_manifest(bucket, prefix, manifest)
        return SyncResult(meter.moved, manifest)


def _folders(plan: SyncPlan, entries: Mapping[str, FileEntry]) -> Manifest:
    """The folders of the manifest; complete once the entries with S3's checksums are known."""
    return {
        part: FolderEntry(
            source=source.location,
            complete=bool(entries),
            files={
                file.file.name: entries.get(file.key, FileEntry(file.size, file.file.sha256))
                for file in plan.files
                if file.part == part
            },
            pair=plan.pair.name,
            parallel_drafting=plan.pair.parallel_drafting if part == "drafter" else None,
            given=part in plan.pair.named,
            commit=hub_snapshot(source.location),
        )
        for part, source in plan.sources.items()
    }


class _Meter:
    """Counts the bytes of a sync, from several threads."""

    def __init__(self, total: int) -> None:
        self.done = self.moved = 0
        self.stopped = False
        self._total, self._begin = total, time.monotonic()
        self._lock = threading.Lock()

    def move(self, bytes_transferred: int) -> None:
        """``bytes_transferred`` have left; negative where a part is sent again."""
        with self._lock:
            self.done += bytes_transferred
            self.moved += bytes_transferred

    def compare(self, count: int) -> None:
        """``count`` bytes that are there are those of the source (negative: they are not). Raises
        CancelledError when the sync has ended early."""
        if self.stopped:
            raise CancelledError
        with self._lock:
            self.done += count

    @property
    def progress(self) -> SyncProgress:
        seconds = time.monotonic() - self._begin
        speed = self.moved / seconds if seconds else 0.0
        left = (self._total - self.done) / speed if speed > 0 and seconds > 2 else None
        return SyncProgress(min(self.done, self._total), self._total, self.moved, speed, left)


def _copy(
    bucket: Bucket, files: Iterable[SyncFile], meter: _Meter, tick: Callable[[], object]
) -> dict[str, FileEntry]:
    """Bring all files to S3, several at a time; their manifest entries by key. ``tick`` is called
    regularly. Raises the first failure, after parts in flight have ended."""
    workers = ThreadPoolExecutor(FILES_AT_ONCE)
    with Transfers(bucket.aws, FILES_AT_ONCE, bucket.encryption) as transfers:
        futures = {
            file.key: workers.submit(_bring, bucket, file, transfers, meter) for file in files
        }
        pending = set(futures.values())
        try:
            while pending:
                tick()
                done, pending = wait(pending, _TICK_SECONDS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
        except BaseException:
            meter.stopped = True
            workers.shutdown(wait=False, cancel_futures=True)
            raise
    workers.shutdown()
    tick()
    return {key: future.result() for key, future in futures.items()}


def _bring(bucket: Bucket, file: SyncFile, transfers: Transfers, meter: _Meter) -> FileEntry:
    """Copy a file to its key, unless S3 has these bytes there. S3 copies between prefixes itself;
    the original is pinned by its ETag."""
    place, head = S3Uri(bucket.name, file.key), bucket.head(file.key)
    if origin := file.source.copied_from:
        source = S3Uri(origin.bucket, origin.key + file.file.name)
        original = Bucket(bucket.aws, source.bucket).head(source.key)
        if original is None or original.size != file.size:
            raise source_changed(source)
        marks = {_SOURCE_ETAG: original.etag.strip('"')}
        if head and head.size == file.size and marks.items() <= head.metadata.items():
            meter.compare(file.size)
        else:
            transfers.copy(source, original.etag, file.size, place, marks, meter.move)
    elif head is None or not _is_same(file, head, meter):
        listed = {_SHA256: file.file.sha256} if file.file.sha256 else {}
        stream = SourceStream(file.source, file.file)
        transfers.upload(stream, file.size, place, listed, meter.move)
    head = bucket.head(file.key)
    if head is None or head.size != file.size:
        raise CloudError(
            f"{place} should have {file.size:,} bytes, but has {head.size if head else 0:,}",
            "another client may write there; run the command again",
            code="checksum-mismatch",
        )
    return FileEntry(file.size, file.file.sha256, head.checksum, head.part_size)


def _is_same(file: SyncFile, head: ObjectInfo, meter: _Meter) -> bool:
    """Whether the object has the bytes of the source. Where the Hub lists the file's SHA-256 and
    the object was uploaded from such a file, nothing is read."""
    if head.size != file.size:
        return False
    listed = file.file.sha256
    if listed is not None and head.metadata.get(_SHA256) == listed:
        meter.compare(file.size)
        return True
    algorithm, _, checksum = head.checksum.partition(":")
    if algorithm != ALGORITHM:
        return False
    size, each = file.size, head.part_size or max(file.size, 1)
    digests = []
    for start in range(0, max(size, 1), each):
        end, digest = min(start + each, size), hashlib.sha256()
        for at in range(start, end, PART_BYTES):
            digest.update(file.source.read(file.file.name, at, min(PART_BYTES, end - at)))
            meter.compare(min(PART_BYTES, end - at))
        digests.append(digest.digest())
    whole = hashlib.sha256(b"".join(digests)).digest() if head.part_size else digests[0]
    if base64.b64encode(whole).decode() == checksum:
        return True
    meter.compare(-size)
    return False
