"""A file whose bytes pass through this machine, on the way from a folder or the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from toolkit.aws.errors import Missing
from toolkit.aws.weights.bucket import ALGORITHM, Bucket, Kept
from toolkit.aws.weights.origins import check_digest, check_whole
from toolkit.aws.weights.parts import Part, combined, part_bytes, parts_of, sha256
from toolkit.aws.weights.runs import PART_SIZE, SHA256, Compare, Done, Run, verify
from toolkit.aws.weights.surveying import Item


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
