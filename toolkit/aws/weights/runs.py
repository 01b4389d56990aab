"""One file on its way. A run is opened, does its parts in other threads, and is closed.

``work`` runs in a worker's thread; ``open`` and ``take`` run in one thread, ``take`` in the order
of the parts. ``close`` comes last and may hand back another run, which the file needs still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from toolkit.aws.weights.bucket import Bucket, Head
from toolkit.aws.weights.parts import Part, combined, part_bytes, parts_of, sha256
from toolkit.aws.weights.surveying import Item
from toolkit.errors import CloudError

PART_SIZE = "part-size"
"""Metadata of an object: how large its parts are, which its checksum depends on."""

SHA256 = "sha256"
"""Metadata of an object: the SHA-256 of all of it, where the hub says it."""

SOURCE_ETAG = "source-etag"
"""Metadata of an object that S3 copied: the ETag of what it was copied from."""


@dataclass(frozen=True)
class Done:
    """A part that is done. ``said`` is what S3 told of its checksums, and ``content`` its bytes,
    each only where the next step needs it."""

    part: Part
    checksum: str = ""
    etag: str = ""
    said: Mapping[str, str] = field(default_factory=dict)
    moved: bool = False
    content: bytes | None = None


class Run(Protocol):
    """See the module."""

    item: Item
    parts: tuple[Part, ...]

    def open(self) -> None:
        """Ask what must be known, and begin."""

    def work(self, part: Part) -> Done:
        """Do one part."""

    def take(self, done: Done) -> None:
        """Take note of a part that is done."""

    def close(self) -> Run | None:
        """Finish, and raise for what is not as it should be."""


class Compare:
    """Whether what lies there has the bytes of the origin; if not, ``otherwise`` follows."""

    def __init__(self, bucket: Bucket, item: Item, otherwise: Run) -> None:
        self.item = item
        self.parts: tuple[Part, ...] = ()
        self._bucket, self._otherwise = bucket, otherwise
        self._head: Head | None = None
        self._checksums: list[str] = []

    def open(self) -> None:
        """What the hub's listing can answer needs no reading."""
        self._head = head = self._bucket.head(self.item.key)
        if head is None or _known_same(head, self.item):
            return
        each = head.metadata.get(PART_SIZE, "")
        if head.checksum.startswith("SHA256:") and (each.isdigit() or not head.composite):
            size = self.item.file.size
            self.parts = parts_of(size, int(each) if each.isdigit() else part_bytes(size))

    def work(self, part: Part) -> Done:
        """A part's checksum."""
        content = self.item.origin.read(self.item.file.name, part.start, part.size)
        return Done(part, sha256(content))

    def take(self, done: Done) -> None:
        """Remember it."""
        self._checksums.append(done.checksum)

    def close(self) -> Run | None:
        """Nothing more to do when all agrees."""
        head = self._head
        if head and _known_same(head, self.item):
            return None
        if head and self.parts and head.checksum == f"SHA256:{combined(self._checksums)}":
            return None
        return self._otherwise


def _known_same(head: Head, item: Item) -> bool:
    known = item.file.sha256
    return known is not None and head.size == item.file.size and head.metadata.get(SHA256) == known


def verify(bucket: Bucket, item: Item, checksum: str) -> None:
    """Look at the finished object. Raises CloudError when S3 has other bytes, and removes them."""
    head = bucket.head(item.key)
    if head and head.size == item.file.size and head.checksum in ("", checksum):
        return
    found = f"{head.size:,} bytes, {head.checksum}" if head else "nothing"
    if head:
        bucket.delete(item.key)
    raise CloudError(
        f"s3://{bucket.name}/{item.key} should have {item.file.size:,} bytes, {checksum}, and S3 "
        f"has {found}",
        "it was removed: repeat the command",
    )
