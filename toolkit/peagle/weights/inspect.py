"""What is at a prefix: every file with its state and S3's own checksum; and how to remove it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from peagle.aws.client import Aws
from peagle.aws.s3 import bucket_exists, delete_objects
from peagle.errors import NotFound
from peagle.findings import Finding
from peagle.weights.bucket import Bucket
from peagle.weights.layout import PARTS, WeightsPrefix, unknown_objects
from peagle.weights.lock import LockState, hold_lock, read_lock
from peagle.weights.manifest import (
    FileEntry,
    Manifest,
    read_manifest,
    refuse_neighbors,
    sync_command,
)
from peagle.weights.warm_starts import StoredWarmStart, stored_warm_starts

State = Literal["whole", "unchecked", "differs", "half", "missing"]
"""``whole``: size and checksum are those of the manifest; ``unchecked``: the size is, and the sync
has not finished; ``half``: an upload is unfinished."""


@dataclass(frozen=True)
class FileStatus:
    """One file: expected and present size in bytes, and S3's checksum."""

    name: str
    state: State
    size: int
    present: int
    checksum: str = ""


@dataclass(frozen=True)
class StoredWeights:
    """A prefix and its contents. ``others`` are unknown objects with their sizes, ``lock`` tells
    who copies or removes at the moment."""

    place: WeightsPrefix
    manifest: Manifest
    files: Mapping[str, tuple[FileStatus, ...]]
    others: Mapping[str, int]
    findings: tuple[Finding, ...]
    warm: tuple[StoredWarmStart, ...] = ()
    lock: LockState | None = None

    @property
    def complete(self) -> bool:
        """Whether all files are there and the prefix can be mounted."""
        folders = [folder.complete for folder in self.manifest.values()]
        files = [file.state == "whole" for files in self.files.values() for file in files]
        return bool(folders) and all(folders) and all(files) and not self.findings

    @property
    def pairs(self) -> tuple[str, ...]:
        """The catalogue's names of the synced pairs, usually one."""
        names = (folder.pair for folder in self.manifest.values())
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def mountable(self) -> bool:
        """Whether no known problem keeps the prefix from being mounted. Of folders without a
        manifest nothing is known."""
        return self.complete or not (self.manifest or self.findings)

    @property
    def finish(self) -> tuple[str, ...]:
        """The command that completes the copy; empty when it is complete or the pair unknown."""
        partial = [
            part
            for part, folder in self.manifest.items()
            if not folder.complete or any(file.state != "whole" for file in self.files[part])
        ]
        return sync_command(self.place, self.manifest, partial) if partial else ()

    def warm_start(self, key: str) -> StoredWarmStart:
        """The warm start with that key. Raises NotFound with the keys that exist."""
        for one in self.warm:
            if one.key == key:
                return one
        known = ", ".join(one.key for one in self.warm)
        raise NotFound(f"no warm start {key} at {self.place.uri}",
                       f"its warm starts are {known}" if known else "it has no warm start",
                       code="no-such-warm-start")  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes that are stored and paid for, including unfinished uploads."""
        files = (file.present for files in self.files.values() for file in files)
        return sum(self.others.values()) + sum(files) + sum(one.size for one in self.warm)


def inspect_weights(aws: Aws, place: WeightsPrefix) -> StoredWeights:
    """Look at a prefix. Raises NotFound when bucket or prefix are empty or the pair is one level
    above or below, and Refused for a bucket of another account or region."""
    if not bucket_exists(aws, place.bucket):
        raise NotFound(f"there is no bucket {place.bucket}", "check the URI", code="no-bucket")
    bucket = Bucket(aws, place.bucket)
    uploads = bucket.unfinished_uploads(place.key)  # first: one can become an object meanwhile
    present = bucket.sizes(place.key)
    if not present and not uploads:
        raise NotFound(f"there are no objects below {place.uri}", "check the URI")
    refuse_neighbors(bucket, place, present)
    manifest = read_manifest(bucket, place) if place.manifest_key in present else {}
    named = {
        place.file_key(part, name) for part, folder in manifest.items() for name in folder.files
    }
    warm = tuple(
        one
        for at in place.mountable_prefixes
        for one in stored_warm_starts(bucket, at, present, manifest)
    )
    ours = {*named, place.manifest_key, place.lock_key}
    ours |= {key for one in warm for key in one.objects}
    return StoredWeights(
        place,
        manifest,
        {part: tuple(_files(bucket, place, part, manifest, present, uploads)) for part in manifest},
        {key: size for key, size in present.items() if key not in ours},
        tuple(unknown_objects(place, present, named, PARTS)),
        warm,
        read_lock(bucket, place) if place.lock_key in present else None,
    )


def remove_warm_start(aws: Aws, place: WeightsPrefix, one: StoredWarmStart) -> None:
    """Remove one warm start, the manifest first: without it, no engine uses the archive."""
    for name in sorted(one.objects):
        delete_objects(aws, place.bucket, [name])


def remove_weights(aws: Aws, found: StoredWeights, take_over: bool = False) -> None:
    """Remove the files that the manifest names, their unfinished uploads, the warm starts, and the
    manifest last; nothing else, so an interrupted removal can be repeated.

    Raises Refused when someone else works at the prefix, unless ``take_over``.
    """
    place = found.place
    keys = [place.file_key(part, file.name) for part in found.files for file in found.files[part]]
    keys += [key for one in found.warm for key in one.objects]
    with hold_lock(Bucket(aws, place.bucket), place, "removes the weights", take_over) as lock:
        delete_objects(aws, place.bucket, keys)
        lock.keep(now=True)
        delete_objects(aws, place.bucket, [place.manifest_key])


def _files(bucket: Bucket, place: WeightsPrefix, part: str, manifest: Manifest,
           present: Mapping[str, int],
           uploads: Mapping[str, list[str]]) -> Iterator[FileStatus]:  # fmt: skip
    for name, entry in sorted(manifest[part].files.items()):
        key = place.file_key(part, name)
        if key in present:
            yield _file(bucket, key, name, entry)
            continue
        kept = sum(
            piece.size
            for upload in uploads.get(key, ())
            for piece in bucket.uploaded_parts(key, upload).values()
        )
        yield FileStatus(name, "half" if key in uploads else "missing", entry.size, kept)


def _file(bucket: Bucket, key: str, name: str, entry: FileEntry) -> FileStatus:
    head = bucket.head(key)
    if head is None:
        return FileStatus(name, "missing", entry.size, 0)
    state: State = "whole"
    if head.size != entry.size or (entry.checksum and head.checksum != entry.checksum):
        state = "differs"
    elif not entry.checksum:
        state = "unchecked"
    return FileStatus(name, state, entry.size, head.size, head.checksum)
