"""A file whose bytes pass through this machine, on the way from a folder or the hub.

A file that lies in S3 already: S3 copies it, and no byte passes through this machine.

The copy takes the kind of checksum that the original has (and the size of its parts, where that
matters), so that S3's own word for both can be compared. An original without a checksum is held by
its ETag from the first part to the last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from peagle.aws.errors import Missing
from peagle.errors import CheckpointError, CloudError
from peagle.weights.bucket import ALGORITHM, Bucket, Head, Kept, checksums_in
from peagle.weights.layout import Place
from peagle.weights.queue import PART_SIZE, SHA256, SOURCE_ETAG, Compare, Done, Run, verify
from peagle.weights.sources import (
    Part,
    check_digest,
    check_whole,
    combined,
    part_bytes,
    parts_of,
    sha256,
)
from peagle.weights.sync_plan import Item


class UploadWhole:
    """A file that is one part: it is there or not."""

    def __init__(self, bucket: Bucket, item: Item) -> None:
        self.item = item
        self.parts = parts_of(item.file.size, max(item.file.size, 1))
        self._bucket = bucket
        self._checksum = ""

    def open(self) -> None:
        """Nothing to begin."""

    def work(self, part: Part) -> Done:
        """Read, check and send it."""
        item = self.item
        content = item.origin.read(item.file.name, 0, item.file.size)
        check_whole(item.origin, item.file, content)
        checksum = sha256(content)
        self._bucket.call(
            "put_object", Key=item.key, Body=content, Metadata=metadata_of(item, len(content)),
            ChecksumAlgorithm=ALGORITHM, ChecksumSHA256=checksum,
        )  # fmt: skip
        return Done(part, checksum, moved=True)

    def take(self, done: Done) -> None:
        """Remember its checksum."""
        self._checksum = done.checksum

    def close(self) -> None:
        """Raise when S3 has something else."""
        verify(self._bucket, self.item, f"{ALGORITHM}:{self._checksum}")


class UploadInParts:
    """A large file. Parts that an earlier run brought there are kept.

    They are read again, but not sent: so every byte of the object has been compared with the
    origin, and the whole with the SHA-256 of the hub, whatever was killed in between.

    ``compared``: what lies there, if anything, is known to be something else.
    """

    def __init__(
        self, bucket: Bucket, item: Item, begun: Sequence[str], compared: bool = False
    ) -> None:
        self.item = item
        self._each = part_bytes(item.file.size)
        self.parts = parts_of(item.file.size, self._each)
        self._bucket, self._begun = bucket, begun
        self._upload = begun[-1] if begun else ""
        self._compared = compared
        self._kept: dict[int, Kept] = {}
        self._done: list[Done] = []
        self._whole = hashlib.sha256()

    def open(self) -> None:
        """Go on with an upload that was begun, or begin one; neither if one has ended since that
        was listed, as S3 still ends one whose client was killed."""
        item = self.item
        if self._upload:
            try:
                self._kept = self._bucket.kept(item.key, self._upload)
                return
            except Missing:
                self._begun, self._upload = (), ""
        if not self._compared and self._is_there():
            self.parts = ()
            return
        self._upload = self._bucket.begin(item.key, metadata_of(item, self._each))

    def _is_there(self) -> bool:
        head = self._bucket.head(self.item.key)
        return head is not None and head.size == self.item.file.size

    def work(self, part: Part) -> Done:
        """Read a part, and send it unless it is there."""
        item = self.item
        content = item.origin.read(item.file.name, part.start, part.size)
        checksum = sha256(content)
        wanted = content if item.file.sha256 else None
        kept = self._kept.get(part.number)
        if kept and _same(kept, content, checksum):
            return Done(part, checksum, kept.etag, content=wanted)
        answer = self._bucket.call(
            "upload_part", Key=item.key, UploadId=self._upload, PartNumber=part.number,
            Body=content, ChecksumAlgorithm=ALGORITHM, ChecksumSHA256=checksum,
        )  # fmt: skip
        return Done(part, checksum, answer["ETag"], moved=True, content=wanted)

    def take(self, done: Done) -> None:
        """Parts come in order, so the whole can be hashed."""
        if done.content is not None:
            self._whole.update(done.content)
        self._done.append(Done(done.part, done.checksum, done.etag))

    def close(self) -> Run | None:
        """Make the object, unless its bytes are not what the hub promised."""
        item = self.item
        if not self._upload:
            return Compare(self._bucket, item, UploadInParts(self._bucket, item, (), True))
        if item.file.sha256 is not None:
            try:
                check_digest(item.origin, item.file, self._whole.hexdigest())
            except Exception:
                self._bucket.abort(item.key, self._upload)
                raise
        self._bucket.complete(item.key, self._upload, [_named(done) for done in self._done])
        checksum = combined(done.checksum for done in self._done)
        verify(self._bucket, item, f"{ALGORITHM}:{checksum}")
        for other in self._begun[:-1]:
            self._bucket.abort(item.key, other)
        return None


def metadata_of(item: Item, each: int) -> dict[str, str]:
    """What an object carries, so that the next run knows it again."""
    known = {SHA256: item.file.sha256} if item.file.sha256 else {}
    return {PART_SIZE: str(each), **known}


def _same(kept: Kept, content: bytes, checksum: str) -> bool:
    if kept.size != len(content):
        return False
    known = kept.checksums.get(f"Checksum{ALGORITHM}")
    if known is not None:
        return known == checksum
    return kept.etag == hashlib.md5(content, usedforsecurity=False).hexdigest()


def _named(done: Done) -> dict[str, Any]:
    return {
        "PartNumber": done.part.number,
        "ETag": done.etag,
        f"Checksum{ALGORITHM}": done.checksum,
    }


_PIECE = 128 * 1024 * 1024
"""S3 copies without us, so parts may be larger; it takes no object of more than 5 GB at once."""


class ServerCopy:
    """Copy an object, in parts when it is large."""

    def __init__(self, bucket: Bucket, item: Item, origin: Place, begun: Sequence[str]) -> None:
        self.item = item
        self.parts: tuple[Part, ...] = ()
        self._bucket, self._begun = bucket, begun
        self._origin = Bucket(bucket.aws, origin.bucket)
        self._key = origin.prefix + item.file.name
        self._head: Head | None = None
        self._same = False
        self._upload = ""
        self._kept: dict[int, Kept] = {}
        self._done: list[Done] = []

    def open(self) -> None:
        """Compare original and copy, if there is one; else begin."""
        self._head = head = self._origin.head(self._key)
        if head is None or head.size != self.item.file.size:
            raise _changed(self.item)
        there = self._bucket.head(self.item.key)
        self._same = there is not None and _copied(head, there)
        if self._same:
            return
        self.parts = parts_of(head.size, self._each(head))
        if len(self.parts) > 1:
            self._continue_or_begin(head)

    def _each(self, head: Head) -> int:
        each = max(_PIECE, part_bytes(head.size))
        return (self._origin.first_part(self._key) or each) if head.composite else each

    def _continue_or_begin(self, head: Head) -> None:
        key = self.item.key
        if self._begun:
            self._upload = self._begun[-1]
            try:
                self._kept = self._bucket.kept(key, self._upload)
                return
            except Missing:  # it has ended since it was listed
                self._begun = ()
        algorithm = head.checksum.partition(":")[0] or ALGORITHM
        whole = bool(head.checksum) and not head.composite
        # Of one object in one piece S3 has the checksum of the whole, which SHA has not for parts.
        kind = "FULL_OBJECT" if whole and algorithm.startswith("CRC") else "COMPOSITE"
        metadata = {SOURCE_ETAG: head.etag.strip('"')}
        self._upload = self._bucket.begin(key, metadata, algorithm, kind)

    def work(self, part: Part) -> Done:
        """Have one part copied, unless it is there."""
        assert self._head is not None
        given: dict[str, Any] = {
            "Key": self.item.key,
            "CopySource": {"Bucket": self._origin.name, "Key": self._key},
            "CopySourceIfMatch": self._head.etag,
        }
        kept = self._kept.get(part.number)
        if kept and kept.size == part.size:
            return Done(part, etag=kept.etag, said=kept.checksums)
        try:
            if len(self.parts) == 1:
                return self._at_once(part, given)
            answer = self._bucket.call(
                "upload_part_copy", **given, UploadId=self._upload, PartNumber=part.number,
                CopySourceRange=f"bytes={part.start}-{part.start + part.size - 1}",
            )["CopyPartResult"]  # fmt: skip
        except Missing as error:
            raise _changed(self.item) from error
        except CloudError as error:
            if error.code != "PreconditionFailed":
                raise
            raise _changed(self.item) from error
        return Done(part, etag=answer["ETag"], said=checksums_in(answer), moved=True)

    def _at_once(self, part: Part, given: dict[str, Any]) -> Done:
        assert self._head is not None
        algorithm = self._head.checksum.partition(":")[0] or ALGORITHM
        metadata = {SOURCE_ETAG: self._head.etag.strip('"')}
        self._bucket.call("copy_object", **given, ChecksumAlgorithm=algorithm, Metadata=metadata,
                          MetadataDirective="REPLACE")  # fmt: skip
        return Done(part, moved=True)

    def take(self, done: Done) -> None:
        """Remember it."""
        self._done.append(done)

    def close(self) -> Run | None:
        """Make the object, and compare what S3 says of both."""
        if self._same:
            return None
        assert self._head is not None
        if self._upload:
            parts = [
                {"PartNumber": done.part.number, "ETag": done.etag, **done.said}
                for done in self._done
            ]
            self._bucket.complete(self.item.key, self._upload, parts)
        verify(self._bucket, self.item, self._comparable(self._head))
        for other in self._begun[:-1]:
            self._bucket.abort(self.item.key, other)
        return None

    def _comparable(self, head: Head) -> str:
        """The original's checksum where the copy's must be the same; else what the copy has."""
        crc = head.checksum.startswith("CRC")
        comparable = head.checksum and (head.composite or crc or not self._upload)
        made = self._bucket.head(self.item.key)
        return head.checksum if comparable or made is None else made.checksum


def _copied(original: Head, copy: Head) -> bool:
    if original.size != copy.size:
        return False
    same = original.checksum == copy.checksum and original.composite == copy.composite
    tag = copy.metadata.get(SOURCE_ETAG)
    return bool(same and original.checksum) or tag == original.etag.strip('"')


def _changed(item: Item) -> CheckpointError:
    return CheckpointError(
        f"{item.origin.location}/{item.file.name} has changed since it was listed",
        "repeat the command",
    )
