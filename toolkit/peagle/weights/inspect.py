"""What is at a prefix: files with their state and S3's checksum, and warm starts; and its removal.

A warm start (``peagle warm``) is an archive of compile caches and a manifest below ``warm/``,
``<key>.tar.gz`` and ``<key>.json``, the manifest written last. The container reads their contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.aws.s3 import bucket_exists, delete_objects
from peagle.errors import NotFound
from peagle.findings import Finding
from peagle.frozen import Result
from peagle.text import sanitize
from peagle.weights.bucket import (
    Bucket,
    FileEntry,
    Manifest,
    ObjectInfo,
    read_manifest,
    sync_command,
)
from peagle.weights.layout import PARTS, WeightsPrefix, unknown_objects
from peagle_serve import json_reader
from peagle_serve.contract import WARM_FOLDER
from peagle_serve.warm import device_text

FileState = Literal["whole", "unchecked", "differs", "missing"]
"""``whole``: size and checksum are those of the manifest; ``unchecked``: the size is, and the sync
has not finished."""

_MAX_MANIFEST = 1_000_000
_MAX_TEXT = 80
_MAX_DATE = 20


@dataclass(frozen=True)
class FileStatus:
    """One file: expected and present size in bytes, and S3's checksum."""

    name: str
    state: FileState
    bytes: int
    bytes_there: int
    checksum: str | None = None


class StoredWarmStart(Result):
    """The ``objects`` of a warm start with their ``bytes``, and what its manifest says; ``made`` is
    UTC in ISO 8601. No engine uses one that is not ``complete``."""

    key: str
    complete: bool
    bytes: int
    device: str | None
    made: str | None
    objects: tuple[str, ...] = Field(exclude=True)


@dataclass(frozen=True)
class StoredWeights:
    """A prefix and its contents. ``others`` are unknown objects with their sizes."""

    prefix: WeightsPrefix
    manifest: Manifest
    files: Mapping[str, tuple[FileStatus, ...]]
    others: Mapping[str, int]
    findings: tuple[Finding, ...]
    warm: tuple[StoredWarmStart, ...] = ()

    @property
    def partial(self) -> list[str]:
        """The parts whose copy is incomplete."""
        return [
            part
            for part, folder in self.manifest.items()
            if not folder.complete or any(file.state != "whole" for file in self.files[part])
        ]

    @property
    def complete(self) -> bool:
        """Whether all files are there and the prefix can be mounted."""
        return bool(self.manifest) and not self.partial and not self.findings

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
        return sync_command(self.prefix, self.manifest, self.partial) if self.partial else ()

    def warm_start(self, key: str) -> StoredWarmStart:
        """The warm start with that key. Raises NotFound with the keys that exist."""
        for warm in self.warm:
            if warm.key == key:
                return warm
        keys = ", ".join(warm.key for warm in self.warm)
        raise NotFound(f"no warm start {key} at {self.prefix.uri}",
                       f"its warm starts are {keys}" if keys else "the prefix has no warm starts",
                       code="no-such-warm-start")  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes of all objects."""
        files = (file.bytes_there for files in self.files.values() for file in files)
        return sum(self.others.values()) + sum(files) + sum(warm.bytes for warm in self.warm)


def inspect_weights(aws: Aws, prefix: WeightsPrefix) -> StoredWeights:
    """Inspect a prefix. Raises NotFound where there is nothing, and Refused for a bucket of another
    account or region."""
    if not bucket_exists(aws, prefix.bucket):
        raise NotFound(f"there is no bucket {prefix.bucket}", "check the URI", code="no-bucket")
    bucket = Bucket(aws, prefix.bucket)
    present = bucket.sizes(prefix.key)
    if not present:
        raise NotFound(
            f"there are no objects below {prefix.uri}", "check the URI", code="no-objects"
        )
    manifest = read_manifest(bucket, prefix) if prefix.manifest_key in present else {}
    files = {
        part: tuple(
            _file_status(name, entry, bucket.head(key) if key in present else None)
            for name, entry in sorted(folder.files.items())
            for key in [prefix.file_key(part, name)]
        )
        for part, folder in manifest.items()
    }
    warm = tuple(
        start
        for place in prefix.mountable_prefixes
        for start in _read_warm_starts(bucket, place, present)
    )
    named = {prefix.file_key(part, name) for part in manifest for name in manifest[part].files}
    ours = {*named, prefix.manifest_key, *(key for start in warm for key in start.objects)}
    return StoredWeights(
        prefix,
        manifest,
        files,
        {key: size for key, size in present.items() if key not in ours},
        tuple(unknown_objects(prefix, present, named, PARTS)),
        warm,
    )


def _file_status(name: str, entry: FileEntry, head: ObjectInfo | None) -> FileStatus:
    """The file of the manifest's ``entry``, of which S3 has ``head``."""
    if head is None:
        return FileStatus(name, "missing", entry.size, 0)
    state: FileState = "whole" if entry.checksum else "unchecked"
    if head.size != entry.size or (entry.checksum and head.checksum != entry.checksum):
        state = "differs"
    return FileStatus(name, state, entry.size, head.size, head.checksum or None)


def remove_weights(aws: Aws, weights: StoredWeights) -> None:
    """Remove the files that the manifest names, their unfinished uploads, the warm starts, and the
    manifest last; nothing else, so an interrupted removal can be repeated."""
    prefix = weights.prefix
    keys = [prefix.file_key(part, file.name) for part, files in weights.files.items()
            for file in files]  # fmt: skip
    keys += [key for warm in weights.warm for key in warm.objects]
    delete_objects(aws, prefix.bucket, keys)
    delete_objects(aws, prefix.bucket, [prefix.manifest_key])


def _read_warm_starts(
    bucket: Bucket, prefix: WeightsPrefix, present: Mapping[str, int]
) -> Iterator[StoredWarmStart]:
    """The warm starts among the objects ``present`` (size by key)."""
    objects: dict[str, dict[str, int]] = {}
    for key, size in sorted(present.items()):
        if name := prefix.warm_start_id(key):
            objects.setdefault(name, {})[key] = size
    for name, sizes in objects.items():
        stem = f"{prefix.key}{WARM_FOLDER}/{name}"
        try:
            if not 0 < sizes.get(f"{stem}.json", 0) <= _MAX_MANIFEST:
                raise ValueError("no manifest")
            document = json_reader.read(bucket.read(f"{stem}.json"), "the manifest")
            yield _warm_start(name, sizes, document, sizes.get(f"{stem}.tar.gz"))
        except (Missing, ValueError, LookupError, TypeError, AttributeError):
            unknown = dict.fromkeys(("device", "made"))
            size = sum(sizes.values())
            yield StoredWarmStart(
                key=name, complete=False, bytes=size, objects=tuple(sizes), **unknown
            )


def _warm_start(
    key: str, objects: Mapping[str, int], document: Any, archive: int | None
) -> StoredWarmStart:
    """Raises ValueError, LookupError, TypeError or AttributeError for a damaged manifest."""
    return StoredWarmStart(
        key=key,
        objects=tuple(objects),
        bytes=sum(objects.values()),
        complete=document["size"] == archive,
        device=sanitize(device_text(document["subject"]["device"]), _MAX_TEXT) or None,
        made=sanitize(document.get("made", ""), _MAX_DATE) or None,
    )
