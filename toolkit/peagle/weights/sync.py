"""Sync weights to S3: plan what to copy, compare what is there by its checksum, copy the rest.

They come from a folder, the Hub at one commit, or another S3 prefix. A file that was interrupted is
copied again from its beginning; files that are complete are not. An engine of this machine reads
weights in S3 from a folder, to which they are downloaded in the same way.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import sleep
from typing import TypeVar

from peagle.aws.client import Aws
from peagle.aws.s3 import (
    ALGORITHM,
    PART_BYTES,
    abort_uploads,
    bucket_exists,
    copy_object,
    create_bucket,
    download_object,
    source_changed,
    upload_stream,
)
from peagle.catalog.schema import Catalog
from peagle.checkpoints import Source, read_checkpoint
from peagle.checkpoints.files import (
    CONFIG,
    check_links,
    files_read,
    needs_vocabulary,
    vocabulary_folder,
    with_vocabulary,
)
from peagle.checkpoints.hub import COMMIT, Hub, resolve_revision
from peagle.checkpoints.models import hub_snapshot
from peagle.data import weights_folder
from peagle.errors import CheckpointError, CloudError, UserError
from peagle.findings import Finding, warning
from peagle.options import Options
from peagle.planning.company import NO_COMPANY, Company
from peagle.planning.plan import Decisions, Plan, Weights
from peagle.planning.speculation import choose_drafter
from peagle.planning.weights import place_weights
from peagle.s3uri import S3Uri
from peagle.store import home, locked, require_free
from peagle.weights.bucket import (
    Bucket,
    FileEntry,
    FolderEntry,
    Manifest,
    ObjectInfo,
    read_manifest,
    write_manifest,
)
from peagle.weights.layout import (
    PARTS,
    WeightsPrefix,
    choose_source,
    unknown_objects,
    weights_prefix,
)
from peagle_serve.contract import VOCABULARY_FILE

T = TypeVar("T")

ATTEMPTS = 5
"""How often a part is read from the Hub before the sync fails."""

FILES_AT_ONCE = 4

REPLACING_CODES = frozenset({"other-weights-there", "objects-are-replaced"})
"""Findings of a sync that replaces other weights; ``where`` is their prefix."""

_SHA256 = "sha256"
"""Object metadata: the SHA-256 of the whole file, where the Hub lists it."""

_SOURCE_ETAG = "source-etag"
"""Object metadata of a server-side copy: the ETag of the original."""

_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class PairWeights:
    """The weights of a pair by part, and what the manifest says of it: the catalogue's ``name``,
    and the parts whose location the user named."""

    weights: Mapping[str, Weights]
    name: str
    named: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()


def find_pair_weights(
    catalog: Catalog,
    name: str,
    named: Mapping[str, Weights],
    parts: tuple[str, ...] = PARTS,
) -> PairWeights:
    """The weights of a pair, from the catalogue or as ``named`` by the user. Raises UserError."""
    # The user's own head replaces any other, public or not.
    options = Options(pair=name, speculation="drafter" in parts and "drafter" not in named)
    selected = choose_drafter(options, catalog, decisions := Decisions())
    placed = place_weights(options, catalog, selected, "weights", Decisions())
    weights = dict(zip(PARTS, placed, strict=True)) | dict(named)
    if parts == ("drafter",) and weights["drafter"] is None:
        raise UserError(
            f"{name} drafts without weights", "leave out --drafter-only", code="drafts-without-head"
        )
    return PairWeights(
        {part: each for part, each in weights.items() if each and part in parts},
        selected.name,
        frozenset(named),
        tuple(decisions.findings),
    )


@dataclass(frozen=True)
class WeightSource:
    """The weights at one location, which includes the commit, where there is one. ``files`` are by
    name, small ones first, so that errors show early. ``copied_from`` is the prefix of a
    server-side copy. A ``remote`` source is read again after a network failure."""

    location: str
    files: Mapping[str, FileEntry]
    source: Source
    copied_from: WeightsPrefix | None = None
    remote: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def read(self, name: str, start: int, size: int) -> bytes:
        """Exactly these bytes of a file. Raises CheckpointError when they cannot be read."""
        for attempt in range(ATTEMPTS if self.remote else 1):
            if attempt:
                sleep(2.0 ** (attempt - 1))
            try:
                content = self.source.read(name, start, size) if size else b""
            except CheckpointError as error:
                failure = error
                continue
            if len(content) == size:
                return content
            failure = CheckpointError(
                f"{self.location}/{name} ends too early: {len(content):,} of {size:,} bytes at "
                f"{start:,}",
                "the file may be changing; run the command again",
                code="source-changed",
            )
        raise failure


class _Stream:
    """The bytes of a file in order, as a transfer reads them. The last read raises CheckpointError
    unless they are those that the Hub lists, so that other bytes never become an object."""

    def __init__(self, source: WeightSource, name: str) -> None:
        self._source, self._name, self._at = source, name, 0
        self._size = source.files[name].size
        digests = source.source.digests(name) if source.remote else {}
        self._listed, self._hash = digests.get("sha256"), hashlib.sha256()
        if self._listed is None and "git" in digests:
            blob = b"blob %d\0" % self._size
            self._listed, self._hash = digests["git"], hashlib.sha1(blob, usedforsecurity=False)

    def read(self, size: int = -1) -> bytes:
        left = self._size - self._at
        content = self._source.read(self._name, self._at, left if size < 0 else min(size, left))
        self._at += len(content)
        if self._listed is not None:
            self._hash.update(content)
            if self._at == self._size and self._hash.hexdigest() != self._listed:
                raise CheckpointError(
                    f"{self._source.location}/{self._name} does not match the checksum on the Hub",
                    "run the command again; a proxy or mirror may be the cause",
                    code="checksum-mismatch",
                )
        return content


def open_source(weights: Weights, connect: Callable[[], Aws]) -> WeightSource:
    """The files that vLLM reads of these weights; a branch of the Hub becomes its current commit.
    Reads the headers of all weight files, so that no damaged file is copied."""
    copied_from = weights_prefix(weights.location) if weights.kind == "s3" else None
    place = weights.location
    if weights.kind == "hub":
        commit = weights.revision
        if not (commit and COMMIT.fullmatch(commit)):
            hub = Hub.of_environment()
            commit = resolve_revision(hub, weights.location, weights.revision).commit
        place = f"{weights.location}@{commit}"
    elif weights.kind == "directory":
        place = str(Path(weights_folder(weights.location)).absolute())
        check_links(Path(place))
    source = choose_source(place, connect)
    location = weights.location if weights.kind == "directory" else source.location
    source = source if copied_from else with_vocabulary(source)
    sizes = source.names()
    names = files_read(location, sizes, lambda name: source.read(name, 0, sizes[name]))
    if CONFIG in sizes and any(name.endswith(".safetensors") for name in names):
        read_checkpoint(source)
    remote = weights.kind == "hub"
    files = {
        name: FileEntry(sizes[name], source.digests(name).get("sha256") if remote else None)
        for name in sorted(names, key=lambda name: (sizes[name], name))
    }
    return WeightSource(location, files, source, copied_from, remote)


@dataclass(frozen=True)
class SyncPlan:
    """What a sync will do. ``present`` is size by key of the objects at the prefix."""

    prefix: WeightsPrefix
    region: str
    pair: PairWeights
    sources: Mapping[str, WeightSource]
    creates_bucket: bool = False
    present: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def files(self) -> dict[str, FileEntry]:
        """The files of all sources, by key in S3."""
        return {
            self.prefix.file_key(part, name): file
            for part, source in self.sources.items()
            for name, file in source.files.items()
        }

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources.values())

    @property
    def same_size(self) -> tuple[FileEntry, ...]:
        """Files that are at the prefix with the right size; their bytes are not compared yet."""
        return tuple(file for key, file in self.files.items() if self.present.get(key) == file.size)


class SyncProgress:
    """Bytes in place (``done``) of ``total``, and bytes ``moved`` by this run, counted by several
    threads."""

    def __init__(self, total: int) -> None:
        self.total, self.moved = total, 0
        self.stopped = False
        self._in_place, self._begin = 0, time.monotonic()
        self._lock = threading.Lock()

    def move(self, bytes_transferred: int) -> None:
        """``bytes_transferred`` have left; negative where a part is sent again."""
        self.compare(bytes_transferred)
        with self._lock:
            self.moved += bytes_transferred

    def compare(self, count: int) -> None:
        """``count`` bytes that are there are those of the source (negative: they are not). Raises
        CancelledError when the sync has ended early."""
        if self.stopped:
            raise CancelledError
        with self._lock:
            self._in_place += count

    @property
    def done(self) -> int:
        return min(self._in_place, self.total)

    @property
    def speed(self) -> float:
        """Bytes per second."""
        return self.moved / max(time.monotonic() - self._begin, 1e-3)

    @property
    def seconds_left(self) -> float | None:
        """``None`` while unknown."""
        if self.moved <= 0 or time.monotonic() - self._begin < 2:
            return None
        return (self.total - self.done) / self.speed


@dataclass(frozen=True)
class SyncResult:
    """Bytes that were moved, and the manifest as it was written."""

    moved: int
    manifest: Manifest


def plan_sync(aws: Aws, prefix: WeightsPrefix, pair: PairWeights) -> SyncPlan:
    """Look at the sources and at the prefix; writes nothing."""
    sources = {part: open_source(each, lambda: aws) for part, each in pair.weights.items()}
    plan = SyncPlan(prefix, aws.region, pair, sources)
    if not bucket_exists(aws, prefix.bucket):
        return replace(plan, creates_bucket=True)
    bucket = Bucket(aws, prefix.bucket)
    plan = replace(plan, present=bucket.sizes(prefix.key))
    manifest = read_manifest(bucket, prefix) if prefix.manifest_key in plan.present else {}
    return replace(plan, findings=tuple(_findings(plan, manifest)))


def _findings(plan: SyncPlan, manifest: Manifest) -> Iterator[Finding]:
    prefix, present = plan.prefix, plan.present
    other_start = "endpoints that use this prefix would start with different weights"
    for part, source in plan.sources.items():
        folder = manifest.get(part)
        if folder is not None and folder.source != source.location:
            yield warning(
                "other-weights-there", prefix.part_uri(part),
                f"the {part} of {folder.pair or 'another pair'} from {folder.source} is replaced",
                f"use another prefix to keep both; {other_start}",
            )  # fmt: skip
    untouched = [part for part in PARTS if part not in plan.sources]
    yield from unknown_objects(prefix, present, plan.files, untouched)
    for part, source in plan.sources.items():
        keys = {name: prefix.file_key(part, name) for name in source.files}
        names = [name for name, file in source.files.items()
                 if present.get(keys[name], file.size) != file.size]  # fmt: skip
        if names:
            yield warning(
                "objects-are-replaced", prefix.part_uri(part),
                f"{len(names)} files differ in size at the destination and are replaced: "
                f"{', '.join(names[:3])}",
                other_start,
            )  # fmt: skip
    target = plan.sources.get("target")
    if target and VOCABULARY_FILE not in target.files and needs_vocabulary(target.source):
        yield warning(
            "vocabulary-missing", prefix.part_uri("target"),
            f"the engine will download {VOCABULARY_FILE} at start: it is not on this machine",
            f"for endpoints without egress, put it into {vocabulary_folder()} and sync again",
        )  # fmt: skip


def sync_weights(
    aws: Aws,
    plan: SyncPlan,
    report: Callable[[SyncProgress], object],
    company: Company = NO_COMPANY,
) -> SyncResult:
    """Apply a SyncPlan; ``report`` gets the progress. The key and the tags of ``company`` are those
    of what is written. After an error or an interrupt the next call copies what is missing."""
    prefix = plan.prefix
    if plan.creates_bucket:
        create_bucket(aws, prefix.bucket, company.tag_list)
    bucket = Bucket(aws, prefix.bucket, company.kms_key)
    before = read_manifest(bucket, prefix)
    abort_uploads(aws, prefix.bucket, plan.files, prefix.key)
    write_manifest(bucket, prefix, before | _folders(plan, {}))
    progress = SyncProgress(plan.size)

    copied = _copy(bucket, plan, progress, lambda: report(progress))
    manifest = before | _folders(plan, copied)
    write_manifest(bucket, prefix, manifest)
    return SyncResult(progress.moved, manifest)


def _folders(plan: SyncPlan, copied: Mapping[str, FileEntry]) -> Manifest:
    """The folders of the manifest; complete once the files with S3's checksums are known, by
    key."""
    return {
        part: FolderEntry(
            source=source.location,
            complete=bool(copied),
            files={
                name: copied.get(plan.prefix.file_key(part, name), file)
                for name, file in source.files.items()
            },
            pair=plan.pair.name,
            given=part in plan.pair.named,
            commit=hub_snapshot(source.location),
        )
        for part, source in plan.sources.items()
    }


def _copy(
    bucket: Bucket, plan: SyncPlan, progress: SyncProgress, tick: Callable[[], object]
) -> dict[str, FileEntry]:
    """Bring all files to S3; their manifest entries by key."""
    transfers = {
        key: partial(_bring, bucket, key, source, name, progress)
        for part, source in plan.sources.items()
        for name in source.files
        for key in [plan.prefix.file_key(part, name)]
    }
    return _run(transfers, progress, tick)


def _run(
    transfers: Mapping[str, Callable[[], T]], progress: SyncProgress, tick: Callable[[], object]
) -> dict[str, T]:
    """The results of transfers, several files at a time. ``tick`` is called regularly. Raises the
    first failure, after parts in flight have ended."""
    workers = ThreadPoolExecutor(FILES_AT_ONCE)
    futures = {key: workers.submit(transfer) for key, transfer in transfers.items()}
    pending = set(futures.values())
    try:
        while pending:
            tick()
            done, pending = wait(pending, _TICK_SECONDS, FIRST_EXCEPTION)
            for future in done:
                future.result()
    except BaseException:
        progress.stopped = True
        raise
    finally:
        workers.shutdown(cancel_futures=True)
    tick()
    return {key: future.result() for key, future in futures.items()}


def _bring(
    bucket: Bucket,
    key: str,
    source: WeightSource,
    name: str,
    progress: SyncProgress,
) -> FileEntry:
    """Copy a file to its key, unless S3 has these bytes there. S3 copies between prefixes itself;
    the original is pinned by its ETag."""
    file, place, head = source.files[name], S3Uri(bucket.name, key), bucket.head(key)
    if origin := source.copied_from:
        uri = S3Uri(origin.bucket, origin.key + name)
        original = Bucket(bucket.aws, uri.bucket).head(uri.key)
        if original is None or original.size != file.size:
            raise source_changed(uri)
        marks = {_SOURCE_ETAG: original.etag.strip('"')}
        if head and head.size == file.size and marks.items() <= head.metadata.items():
            progress.compare(file.size)
        else:
            more = {"Metadata": marks, **bucket.encryption}
            copy_object(bucket.aws, uri, original.etag, file.size, place, more, progress.move)
    elif head is None or not _is_same(source, name, head, progress):
        listed = {_SHA256: file.sha256} if file.sha256 else {}
        more = {"Metadata": listed, **bucket.encryption}
        upload_stream(bucket.aws, _Stream(source, name), file.size, place, more, progress.move)
    head = bucket.head(key)
    if head is None or head.size != file.size:
        raise CloudError(
            f"{place} should have {file.size:,} bytes, but has {head.size if head else 0:,}",
            "another client may write there; run the command again",
            code="checksum-mismatch",
        )
    return replace(file, checksum=head.checksum)


def _is_same(source: WeightSource, name: str, head: ObjectInfo, progress: SyncProgress) -> bool:
    """Whether the object has the bytes of the source. Where the Hub lists the file's SHA-256 and
    the object was uploaded from such a file, nothing is read."""
    file = source.files[name]
    if head.size != file.size:
        return False
    if file.sha256 is not None and head.metadata.get(_SHA256) == file.sha256:
        progress.compare(file.size)
        return True
    if not head.checksum:
        return False
    size, each = file.size, head.part_size or max(file.size, 1)
    digests = []
    for start in range(0, max(size, 1), each):
        end, digest = min(start + each, size), hashlib.sha256()
        for at in range(start, end, PART_BYTES):
            digest.update(source.read(name, at, min(PART_BYTES, end - at)))
            progress.compare(min(PART_BYTES, end - at))
        digests.append(digest.digest())
    whole = hashlib.sha256(b"".join(digests)).digest() if head.part_size else digests[0]
    if f"{ALGORITHM}:{base64.b64encode(whole).decode()}" == head.checksum:
        return True
    progress.compare(-size)
    return False


def with_local_weights(
    aws: Callable[[], Aws], plan: Plan, report: Callable[[SyncProgress], object]
) -> Plan:
    """The plan with the folders of this machine in place of its prefixes in S3, which are
    downloaded where they are missing; ``report`` gets the progress. Streamed weights stay in S3.
    Raises UserError when the disk is full, and what reading S3 raises."""
    for part in PARTS:
        model = getattr(plan, part)
        weights = model.weights if model else None
        if weights is not None and weights.kind == "s3" and not weights.streamed:
            folder = download_weights(aws(), weights, report)
            local = weights.model_copy(update={"kind": "directory", "location": str(folder)})
            plan = plan.model_copy(update={part: model.model_copy(update={"weights": local})})
    return plan


def download_weights(aws: Aws, weights: Weights, report: Callable[[SyncProgress], object]) -> Path:
    """The folder below ``$PEAGLE_HOME/weights`` with the files that vLLM reads of a prefix in S3.
    It is that of these objects, by their ETags: others of the same names get another folder, and
    files that are there are not read again."""
    source = open_source(weights, lambda: aws)
    assert source.copied_from is not None, "the weights are in S3"
    bucket, prefix = Bucket(aws, source.copied_from.bucket), source.copied_from.key
    etags = bucket.etags(prefix)
    if gone := [name for name in source.files if prefix + name not in etags]:
        raise source_changed(S3Uri(bucket.name, prefix + gone[0]))
    version = {name: (file.size, etags[prefix + name]) for name, file in source.files.items()}
    digest = hashlib.sha256(json.dumps(version, sort_keys=True).encode()).hexdigest()[:16]
    folder = home() / "weights" / digest
    with locked(folder.with_suffix(".lock")):
        folder.mkdir(mode=0o700, exist_ok=True)
        present = {file.name for file in folder.iterdir()}
        for rest in present - version.keys():  # of a download that was killed
            (folder / rest).unlink()
        missing = {name: version[name] for name in version if name not in present}
        size = sum(size for size, _ in missing.values())
        fix = "remove folders there that no engine uses, or set PEAGLE_HOME to another disk"
        require_free(folder.parent, size, source.location, fix)
        progress = SyncProgress(size)
        transfers = {
            name: partial(
                download_object, aws, S3Uri(bucket.name, prefix + name), etag, length,
                folder / name, progress.move,
            )
            for name, (length, etag) in missing.items()
        }  # fmt: skip
        if transfers:
            _run(transfers, progress, lambda: report(progress))
    return folder
