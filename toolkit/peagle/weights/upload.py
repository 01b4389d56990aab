"""Bring one file to S3: upload it through this machine, or let S3 copy it from another prefix; and
compare an object that is there already with its source.

A server-side copy has a SHA-256 that S3 computes, which the container can compute too. Where the
original has one of the same kind (of the whole, or of parts, whose size the copy then takes), both
are compared. Every original is pinned by its ETag from the first part to the last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from peagle.aws.errors import Missing
from peagle.errors import CheckpointError, CloudError
from peagle.s3uri import S3Uri
from peagle.weights.bucket import ALGORITHM, Bucket, ObjectInfo, UploadedPart, checksums_in
from peagle.weights.layout import WeightsPrefix
from peagle.weights.transfer import (
    MAX_PARTS,
    PART_SIZE,
    SHA256,
    SOURCE_ETAG,
    FilePart,
    FileTransfer,
    PartResult,
    Transfer,
    combined,
    part_bytes,
    parts_of,
    sha256,
)

_COPY_PART_BYTES = 128 * 1024 * 1024
"""A server-side copy uses larger parts; S3 copies no object above 5 GB in one request."""


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
        size, each = self.item.size, _part_size(head.metadata.get(PART_SIZE, ""), self.item.size)
        if head.checksum.startswith("SHA256:") and (each or not head.composite):
            self.parts = parts_of(size, each or part_bytes(size))

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
        f"{S3Uri(bucket.name, item.key).uri} should have {item.size:,} bytes, {checksum}, "
        f"but S3 has {found}",
        "the object was removed; run the command again",
        code="checksum-mismatch",
    )


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
        self._checksum = result.checksum

    def close(self) -> None:
        verify(self._bucket, self.item, f"{ALGORITHM}:{self._checksum}")


class _Multipart:
    """A multipart upload; ``uploads`` are the unfinished ones of the file, the latest last."""

    def __init__(self, bucket: Bucket, item: FileTransfer, uploads: Sequence[str]) -> None:
        self.item = item
        self.parts: tuple[FilePart, ...] = ()
        self._bucket, self._uploads = bucket, uploads
        self._upload = ""
        self._kept: Mapping[int, UploadedPart] = {}
        self._results: list[PartResult] = []

    def _resume(self) -> bool:
        """Resume the latest upload, unless it has ended since it was listed."""
        if self._uploads:
            with suppress(Missing):
                self._kept = self._bucket.uploaded_parts(self.item.key, self._uploads[-1])
                self._upload = self._uploads[-1]
                return True
        self._uploads = ()
        return False

    def _complete(self) -> None:
        parts = [
            {"PartNumber": result.part.number, "ETag": result.etag, **result.checksums}
            for result in self._results
        ]
        self._bucket.complete(self.item.key, self._upload, parts)

    def _verify(self, checksum: str) -> None:
        verify(self._bucket, self.item, checksum)
        for other in self._uploads[:-1]:
            self._bucket.abort(self.item.key, other)


class UploadInParts(_Multipart):
    """Uploads a large file and keeps the parts that an earlier run brought.

    Those parts are read again, but not sent, so every byte of the object is compared with the
    source, and the whole file with the SHA-256 that the Hub lists, however often runs are killed.

    ``differs``: an existing object is known to have other bytes.
    """

    def __init__(
        self, bucket: Bucket, item: FileTransfer, uploads: Sequence[str], differs: bool = False
    ) -> None:
        super().__init__(bucket, item, uploads)
        self._each = part_bytes(item.size)
        self.parts = parts_of(item.size, self._each)
        self._differs = differs
        self._whole = hashlib.sha256()

    def open(self) -> None:
        """Resume an unfinished upload or begin one; neither if S3 has completed it since it was
        listed, which happens after a client was killed."""
        item = self.item
        if self._resume():
            return
        head = None if self._differs else self._bucket.head(item.key)
        if head is not None and head.size == item.size:
            self.parts = ()
        else:
            self._upload = self._bucket.begin(item.key, _metadata(item, self._each))

    def work(self, part: FilePart) -> PartResult:
        """Read a part, and upload it unless it is there."""
        item = self.item
        content = item.read(part.start, part.size)
        checksum = sha256(content)
        checksums = {f"Checksum{ALGORITHM}": checksum}
        hashed = content if item.file.sha256 else None
        kept = self._kept.get(part.number)
        if kept and _is_same(kept, content, checksum):
            return PartResult(part, checksum, kept.etag, checksums, content=hashed)
        answer = self._bucket.call(
            "upload_part", Key=item.key, UploadId=self._upload, PartNumber=part.number,
            Body=content, ChecksumAlgorithm=ALGORITHM, **checksums,
        )  # fmt: skip
        return PartResult(part, checksum, answer["ETag"], checksums, moved=True, content=hashed)

    def take(self, result: PartResult) -> None:
        """Hash the whole file: results come in order."""
        if result.content is not None:
            self._whole.update(result.content)
        self._results.append(replace(result, content=None))

    def close(self) -> Transfer | None:
        """Complete the object, unless its bytes are not those that the Hub lists."""
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
        self._complete()
        self._verify(f"{ALGORITHM}:{combined(result.checksum for result in self._results)}")
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


class ServerCopy(_Multipart):
    """Lets S3 copy an object, in parts when it is large; no byte passes through this machine."""

    def __init__(
        self, bucket: Bucket, item: FileTransfer, origin: WeightsPrefix, uploads: Sequence[str]
    ) -> None:
        super().__init__(bucket, item, uploads)
        self._origin = Bucket(bucket.aws, origin.bucket)
        self._key = origin.key + item.file.name
        self._same = False

    def open(self) -> None:
        """Compare the original with an existing copy; begin to copy when they differ."""
        head = self._origin.head(self._key)
        if head is None or head.size != self.item.size:
            raise self._changed()
        self._head = head
        copy = self._bucket.head(self.item.key)
        self._same = copy is not None and _has_sha256(copy) and _is_copy(head, copy)
        if self._same:
            return
        each = max(_COPY_PART_BYTES, part_bytes(head.size))
        if head.composite:
            each = self._origin.part_size(self._key) or each
        self.parts = parts_of(head.size, each)
        if len(self.parts) == 1 or self._resume():
            return
        self._upload = self._bucket.begin(self.item.key, self._metadata)

    @property
    def _metadata(self) -> dict[str, str]:
        each = {PART_SIZE: str(self.parts[0].size)} if len(self.parts) > 1 else {}
        return {SOURCE_ETAG: self._head.etag.strip('"'), **each}

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
                self._bucket.call(
                    "copy_object", **parameters, ChecksumAlgorithm=ALGORITHM,
                    Metadata=self._metadata, MetadataDirective="REPLACE",
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
        self._results.append(result)

    def close(self) -> Transfer | None:
        """Complete the object, and compare S3's checksums of both."""
        if self._same:
            return None
        if self._upload:
            self._complete()
        head = self._head
        comparable = head.checksum.startswith(ALGORITHM) and head.composite == bool(self._upload)
        made = self._bucket.head(self.item.key)
        self._verify(head.checksum if comparable or made is None else made.checksum)
        return None

    def _changed(self) -> CheckpointError:
        return CheckpointError(
            f"{self.item.source.location}/{self.item.file.name} has changed since it was listed",
            "run the command again",
            code="source-changed",
        )


def _has_sha256(copy: ObjectInfo) -> bool:
    """Whether the copy has what this version records; not every S3 has checksums."""
    return not copy.checksum or copy.checksum.startswith(ALGORITHM)


def _is_copy(original: ObjectInfo, copy: ObjectInfo) -> bool:
    if original.size != copy.size:
        return False
    same = original.checksum == copy.checksum and original.composite == copy.composite
    tag = copy.metadata.get(SOURCE_ETAG)
    return bool(same and original.checksum) or tag == original.etag.strip('"')


def _part_size(text: str, size: int) -> int | None:
    """The size of a part that an object's metadata tells; ``None`` for one that no upload has."""
    each = int(text) if text.isascii() and text.isdigit() and len(text) < 15 else 0
    return each if each and size <= each * MAX_PARTS else None
