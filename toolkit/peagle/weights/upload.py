"""Bring one file to S3: upload it through this machine, or let S3 copy it from another prefix.

A server-side copy takes the kind of checksum of the original (and its part size, where that
matters), so that S3's checksums of both can be compared. An original without a checksum is pinned
by its ETag from the first part to the last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from peagle.aws.errors import Missing
from peagle.errors import CheckpointError, CloudError
from peagle.weights.bucket import ALGORITHM, Bucket, ObjectInfo, UploadedPart, checksums_in
from peagle.weights.layout import WeightsPrefix
from peagle.weights.transfer import (
    PART_SIZE,
    SHA256,
    SOURCE_ETAG,
    FilePart,
    FileTransfer,
    PartResult,
    Transfer,
    VerifyExisting,
    combined,
    part_bytes,
    parts_of,
    sha256,
    verify,
)

_COPY_PART_BYTES = 128 * 1024 * 1024
"""A server-side copy uses larger parts; S3 copies no object above 5 GB in one request."""


class UploadWhole:
    """Uploads a small file in one request."""

    def __init__(self, bucket: Bucket, item: FileTransfer) -> None:
        self.item = item
        self.parts = parts_of(item.size, max(item.size, 1))
        self._bucket = bucket
        self._checksum = ""

    def open(self) -> None:
        """Nothing to begin."""

    def work(self, part: FilePart) -> PartResult:
        """Read, check and upload the file."""
        item = self.item
        content = item.read(0, item.size)
        item.source.check(item.file, content)
        checksum = sha256(content)
        self._bucket.call(
            "put_object", Key=item.key, Body=content, Metadata=_metadata(item, len(content)),
            ChecksumAlgorithm=ALGORITHM, ChecksumSHA256=checksum,
        )  # fmt: skip
        return PartResult(part, checksum, moved=True)

    def take(self, result: PartResult) -> None:
        """Record the checksum."""
        self._checksum = result.checksum

    def close(self) -> None:
        """Verify the object. Raises CloudError."""
        verify(self._bucket, self.item, f"{ALGORITHM}:{self._checksum}")


class UploadInParts:
    """Uploads a large file and keeps the parts that an earlier run brought.

    Those parts are read again, but not sent, so every byte of the object is compared with the
    source, and the whole file with the SHA-256 that the hub lists, however often runs are killed.

    ``differs``: an existing object is known to have other bytes.
    """

    def __init__(
        self, bucket: Bucket, item: FileTransfer, uploads: Sequence[str], differs: bool = False
    ) -> None:
        self.item = item
        self._each = part_bytes(item.size)
        self.parts = parts_of(item.size, self._each)
        self._bucket, self._uploads = bucket, uploads
        self._upload = uploads[-1] if uploads else ""
        self._differs = differs
        self._kept: dict[int, UploadedPart] = {}
        self._results: list[PartResult] = []
        self._whole = hashlib.sha256()

    def open(self) -> None:
        """Resume an unfinished upload or begin one; neither if S3 has completed it since it was
        listed, which happens after a client was killed."""
        item = self.item
        if self._upload:
            try:
                self._kept = self._bucket.uploaded_parts(item.key, self._upload)
                return
            except Missing:
                self._uploads, self._upload = (), ""
        if not self._differs:
            head = self._bucket.head(item.key)
            if head is not None and head.size == item.size:
                self.parts = ()
                return
        self._upload = self._bucket.begin(item.key, _metadata(item, self._each))

    def work(self, part: FilePart) -> PartResult:
        """Read a part, and upload it unless it is there."""
        item = self.item
        content = item.read(part.start, part.size)
        checksum = sha256(content)
        hashed = content if item.file.sha256 else None
        kept = self._kept.get(part.number)
        if kept and _is_same(kept, content, checksum):
            return PartResult(part, checksum, kept.etag, content=hashed)
        answer = self._bucket.call(
            "upload_part", Key=item.key, UploadId=self._upload, PartNumber=part.number,
            Body=content, ChecksumAlgorithm=ALGORITHM, ChecksumSHA256=checksum,
        )  # fmt: skip
        return PartResult(part, checksum, answer["ETag"], moved=True, content=hashed)

    def take(self, result: PartResult) -> None:
        """Hash the whole file: results come in order."""
        if result.content is not None:
            self._whole.update(result.content)
        self._results.append(PartResult(result.part, result.checksum, result.etag))

    def close(self) -> Transfer | None:
        """Complete the object, unless its bytes are not those that the hub lists."""
        item = self.item
        if not self._upload:
            again = UploadInParts(self._bucket, item, (), differs=True)
            return VerifyExisting(self._bucket, item, again)
        if item.file.sha256 is not None:
            try:
                item.source.check_sha256(item.file, self._whole.hexdigest())
            except Exception:
                self._bucket.abort(item.key, self._upload)
                raise
        parts = [
            {"PartNumber": result.part.number, "ETag": result.etag,
             f"Checksum{ALGORITHM}": result.checksum}
            for result in self._results
        ]  # fmt: skip
        self._bucket.complete(item.key, self._upload, parts)
        checksum = combined(result.checksum for result in self._results)
        verify(self._bucket, item, f"{ALGORITHM}:{checksum}")
        for other in self._uploads[:-1]:
            self._bucket.abort(item.key, other)
        return None


def _metadata(item: FileTransfer, each: int) -> dict[str, str]:
    known = {SHA256: item.file.sha256} if item.file.sha256 else {}
    return {PART_SIZE: str(each), **known}


def _is_same(kept: UploadedPart, content: bytes, checksum: str) -> bool:
    if kept.size != len(content):
        return False
    known = kept.checksums.get(f"Checksum{ALGORITHM}")
    if known is not None:
        return known == checksum
    return kept.etag == hashlib.md5(content, usedforsecurity=False).hexdigest()


class ServerCopy:
    """Lets S3 copy an object, in parts when it is large; no byte passes through this machine."""

    def __init__(
        self, bucket: Bucket, item: FileTransfer, origin: WeightsPrefix, uploads: Sequence[str]
    ) -> None:
        self.item = item
        self.parts: tuple[FilePart, ...] = ()
        self._bucket, self._uploads = bucket, uploads
        self._origin = Bucket(bucket.aws, origin.bucket)
        self._key = origin.key + item.file.name
        self._same = False
        self._upload = ""
        self._kept: dict[int, UploadedPart] = {}
        self._results: list[PartResult] = []

    def open(self) -> None:
        """Compare the original with an existing copy; begin to copy when they differ."""
        head = self._origin.head(self._key)
        if head is None or head.size != self.item.size:
            raise self._changed()
        self._head = head
        copy = self._bucket.head(self.item.key)
        self._same = copy is not None and _is_copy(head, copy)
        if self._same:
            return
        each = max(_COPY_PART_BYTES, part_bytes(head.size))
        if head.composite:
            each = self._origin.part_size(self._key) or each
        self.parts = parts_of(head.size, each)
        if len(self.parts) > 1:
            self._resume_or_begin(head)

    def _resume_or_begin(self, head: ObjectInfo) -> None:
        key = self.item.key
        if self._uploads:
            self._upload = self._uploads[-1]
            try:
                self._kept = self._bucket.uploaded_parts(key, self._upload)
                return
            except Missing:  # it has ended since it was listed
                self._uploads = ()
        algorithm = head.checksum.partition(":")[0] or ALGORITHM
        whole = bool(head.checksum) and not head.composite
        # An object in one piece has a checksum of the whole, which S3 keeps for parts as CRC only.
        kind = "FULL_OBJECT" if whole and algorithm.startswith("CRC") else "COMPOSITE"
        metadata = {SOURCE_ETAG: head.etag.strip('"')}
        self._upload = self._bucket.begin(key, metadata, algorithm, kind)

    def work(self, part: FilePart) -> PartResult:
        """Copy one part, unless it is there."""
        kept = self._kept.get(part.number)
        if kept and kept.size == part.size:
            return PartResult(part, etag=kept.etag, checksums=kept.checksums)
        parameters: dict[str, Any] = {
            "Key": self.item.key,
            "CopySource": {"Bucket": self._origin.name, "Key": self._key},
            "CopySourceIfMatch": self._head.etag,
        }
        try:
            if len(self.parts) == 1:
                algorithm = self._head.checksum.partition(":")[0] or ALGORITHM
                self._bucket.call(
                    "copy_object", **parameters, ChecksumAlgorithm=algorithm,
                    Metadata={SOURCE_ETAG: self._head.etag.strip('"')},
                    MetadataDirective="REPLACE",
                )  # fmt: skip
                return PartResult(part, moved=True)
            answer = self._bucket.call(
                "upload_part_copy", **parameters, UploadId=self._upload, PartNumber=part.number,
                CopySourceRange=f"bytes={part.start}-{part.start + part.size - 1}",
            )["CopyPartResult"]  # fmt: skip
        except Missing as error:
            raise self._changed() from error
        except CloudError as error:
            if error.code != "PreconditionFailed":
                raise
            raise self._changed() from error
        return PartResult(part, etag=answer["ETag"], checksums=checksums_in(answer), moved=True)

    def take(self, result: PartResult) -> None:
        """Record a copied part."""
        self._results.append(result)

    def close(self) -> Transfer | None:
        """Complete the object, and compare S3's checksums of both."""
        if self._same:
            return None
        if self._upload:
            parts = [
                {"PartNumber": result.part.number, "ETag": result.etag, **result.checksums}
                for result in self._results
            ]
            self._bucket.complete(self.item.key, self._upload, parts)
        head = self._head
        crc = head.checksum.startswith("CRC")
        comparable = head.checksum and (head.composite or crc or not self._upload)
        made = self._bucket.head(self.item.key)
        expected = head.checksum if comparable or made is None else made.checksum
        verify(self._bucket, self.item, expected)
        for other in self._uploads[:-1]:
            self._bucket.abort(self.item.key, other)
        return None

    def _changed(self) -> CheckpointError:
        return CheckpointError(
            f"{self.item.source.location}/{self.item.file.name} has changed since it was listed",
            "repeat the command",
            code="source-changed",
        )


def _is_copy(original: ObjectInfo, copy: ObjectInfo) -> bool:
    if original.size != copy.size:
        return False
    same = original.checksum == copy.checksum and original.composite == copy.composite
    tag = copy.metadata.get(SOURCE_ETAG)
    return bool(same and original.checksum) or tag == original.etag.strip('"')
