"""A file that lies in S3 already: S3 copies it, and no byte passes through this machine.

The copy takes the kind of checksum that the original has (and the size of its parts, where that
matters), so that S3's own word for both can be compared. An original without a checksum is held by
its ETag from the first part to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.aws.errors import Missing
from toolkit.aws.weights.bucket import ALGORITHM, Bucket, Head, Kept, checksums_in
from toolkit.aws.weights.layout import Place
from toolkit.aws.weights.parts import Part, part_bytes, parts_of
from toolkit.aws.weights.runs import SOURCE_ETAG, Done, Run, verify
from toolkit.aws.weights.surveying import Item
from toolkit.errors import CheckpointError, CloudError

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
