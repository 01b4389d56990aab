"""One file on its way to S3: its parts, their checksums, and the comparison with the object there.

A transfer is opened, works on its parts in other threads, and is closed. S3's checksum of an object
in parts is the SHA-256 of the SHA-256s of its parts (ChecksumType COMPOSITE), so it can only be
compared with the part size known; the part size is kept in the object's metadata.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from peagle.errors import CloudError
from peagle.weights.bucket import Bucket, ObjectInfo
from peagle.weights.sources import SourceFile, WeightSource

PART_BYTES = 16 * 1024 * 1024
"""Large enough that requests cost little, small enough that repeating one does too."""

_MAX_PARTS = 10_000
"""Of an S3 multipart upload."""

_MIB = 1024 * 1024

PART_SIZE = "part-size"
"""Object metadata: the part size in bytes, on which the checksum depends."""

SHA256 = "sha256"
"""Object metadata: the SHA-256 of the whole file, where the Hub lists it."""

SOURCE_ETAG = "source-etag"
"""Object metadata of a server-side copy: the ETag of the original."""


@dataclass(frozen=True)
class FilePart:
    """``size`` bytes of a file from ``start``; numbers begin at 1, as in S3."""

    number: int
    start: int
    size: int


def part_bytes(size: int) -> int:
    """The part size of a file of ``size`` bytes: the same in every run."""
    smallest = -(-size // _MAX_PARTS)
    return max(PART_BYTES, -(-smallest // _MIB) * _MIB)


def parts_of(size: int, each: int) -> tuple[FilePart, ...]:
    """The parts of a file; an empty file is one empty part."""
    starts = range(0, size, each) if size else (0,)
    return tuple(FilePart(n, at, min(each, size - at)) for n, at in enumerate(starts, 1))


def sha256(content: bytes) -> str:
    """SHA-256 as S3 writes it."""
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def combined(checksums: Iterable[str]) -> str:
    """The checksum of an object from those of its parts."""
    each = list(checksums)
    if len(each) == 1:
        return each[0]
    return sha256(b"".join(base64.b64decode(checksum) for checksum in each))


@dataclass(frozen=True)
class FileTransfer:
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

    def read(self, start: int, size: int) -> bytes:
        """Exactly these bytes of the source. Raises CheckpointError."""
        return self.source.read(self.file.name, start, size)


@dataclass(frozen=True)
class PartResult:
    """A finished part. ``checksums`` are those that S3 reported, and ``content`` its bytes, each
    only where the next step needs it."""

    part: FilePart
    checksum: str = ""
    etag: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)
    moved: bool = False
    content: bytes | None = None


class Transfer(Protocol):
    """What brings or verifies one file. ``work`` runs in worker threads; ``open`` and ``take`` run
    in one thread, ``take`` in the order of the parts."""

    item: FileTransfer
    parts: tuple[FilePart, ...]

    def open(self) -> None:
        """Look at the source and at S3, and begin."""

    def work(self, part: FilePart) -> PartResult:
        """Process one part."""

    def take(self, result: PartResult) -> None:
        """Record a finished part."""

    def close(self) -> Transfer | None:
        """Finish and verify; another transfer where the file still needs one."""


class VerifyExisting:
    """Compares an existing object with the source; ``otherwise`` follows when they differ."""

    def __init__(self, bucket: Bucket, item: FileTransfer, otherwise: Transfer) -> None:
        self.item = item
        self.parts: tuple[FilePart, ...] = ()
        self._bucket, self._otherwise = bucket, otherwise
        self._head: ObjectInfo | None = None
        self._checksums: list[str] = []

    def open(self) -> None:
        """Where the Hub lists the file's SHA-256, nothing is read."""
        self._head = head = self._bucket.head(self.item.key)
        if head is None or self._is_listed(head):
            return
        each = head.metadata.get(PART_SIZE, "")
        if head.checksum.startswith("SHA256:") and (each.isdigit() or not head.composite):
            size = self.item.size
            self.parts = parts_of(size, int(each) if each.isdigit() else part_bytes(size))

    def work(self, part: FilePart) -> PartResult:
        return PartResult(part, sha256(self.item.read(part.start, part.size)))

    def take(self, result: PartResult) -> None:
        self._checksums.append(result.checksum)

    def close(self) -> Transfer | None:
        """``None`` when the object has the bytes of the source."""
        head = self._head
        if head and self._is_listed(head):
            return None
        if head and self.parts and head.checksum == f"SHA256:{combined(self._checksums)}":
            return None
        return self._otherwise

    def _is_listed(self, head: ObjectInfo) -> bool:
        """Whether the object was uploaded from a file with the SHA-256 that the Hub lists."""
        known = self.item.file.sha256
        return bool(known) and head.size == self.item.size and head.metadata.get(SHA256) == known


def verify(bucket: Bucket, item: FileTransfer, checksum: str) -> None:
    """Check the finished object. Raises CloudError, and deletes it, when S3 has other bytes."""
    head = bucket.head(item.key)
    if head and head.size == item.size and head.checksum in ("", checksum):
        return
    found = f"{head.size:,} bytes, {head.checksum}" if head else "nothing"
    if head:
        bucket.delete(item.key)
    raise CloudError(
        f"s3://{bucket.name}/{item.key} should have {item.size:,} bytes, {checksum}, but S3 has "
        f"{found}",
        "the object was removed; run the command again",
        code="checksum-mismatch",
    )
