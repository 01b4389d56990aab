"""A bucket as a sync uses it: the S3 calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from peagle.aws.client import Aws, translated
from peagle.aws.errors import Missing
from peagle.planning.company import encrypted_by
from peagle_serve import json_reader

ALGORITHM = "SHA256"
_CHECKSUMS = ("CRC64NVME", "SHA256", "SHA1", "CRC32C", "CRC32")
_WRITTEN = ("put_object", "create_multipart_upload", "copy_object")
_PART_COUNT = re.compile(r"-\d+$")


@dataclass(frozen=True)
class ObjectInfo:
    """What S3 reports about an object. ``checksum`` is ``ALGORITHM:value``, empty without one;
    ``composite`` tells whether its value depends on the part size."""

    size: int
    etag: str
    checksum: str
    composite: bool
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class UploadedPart:
    """A part of an unfinished upload. Not every S3 lists its checksums (``ChecksumSHA256`` and
    others); its ETag is then its MD5."""

    size: int
    etag: str
    checksums: Mapping[str, str]


class Bucket:
    """A bucket. What is written to it is encrypted with ``kms_key``, or in the bucket's own way."""

    def __init__(self, aws: Aws, name: str, kms_key: str | None = None) -> None:
        self.aws, self.name = aws, name
        self._encrypted = encrypted_by(kms_key)
        aws.client("s3")  # created here, before several threads need it

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        more = self._encrypted if operation in _WRITTEN else {}
        return self.aws.call("s3", operation, Bucket=self.name, **parameters, **more)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Every key below the prefix with its size in bytes."""
        entries = self.aws.items(
            "s3", "list_objects_v2", "Contents", Bucket=self.name, Prefix=prefix
        )
        return {entry["Key"]: entry["Size"] for entry in entries}

    def read(self, key: str) -> bytes:
        """The content of a small object, cut off after what the JSON reader accepts. Raises
        Missing."""
        answer = self.call("get_object", Key=key)
        with closing(answer["Body"]) as body, translated("s3", self.aws.region):
            content: bytes = body.read(json_reader.DEFAULT.size + 1)
        return content

    def head(self, key: str) -> ObjectInfo | None:
        """Size, checksum and metadata of an object; ``None`` where there is none."""
        try:
            found = self.call("head_object", Key=key, ChecksumMode="ENABLED")
        except Missing:
            return None
        checksums = ((name, found.get(f"Checksum{name}")) for name in _CHECKSUMS)
        name, value = next(((name, value) for name, value in checksums if value), ("", ""))
        in_parts = _PART_COUNT.search(found["ETag"].strip('"')) is not None
        kind = found.get("ChecksumType", "COMPOSITE" if in_parts and name[:3] == "SHA" else "")
        return ObjectInfo(
            size=found["ContentLength"],
            etag=found["ETag"],
            checksum=f"{name}:{_PART_COUNT.sub('', value)}" if name else "",
            composite=kind == "COMPOSITE",
            metadata=found.get("Metadata", {}),
        )

    def part_size(self, key: str) -> int | None:
        """Size in bytes of the first part of an object; ``None`` for an object in one piece."""
        found = self.call("head_object", Key=key, PartNumber=1)
        return found["ContentLength"] if found.get("PartsCount") else None

    def unfinished_uploads(self, prefix: str) -> dict[str, list[str]]:
        """Unfinished multipart uploads below the prefix: ids by key, the latest last."""
        listed = self.aws.items(
            "s3", "list_multipart_uploads", "Uploads", Bucket=self.name, Prefix=prefix
        )
        found: dict[str, list[str]] = {}
        for entry in sorted(listed, key=lambda entry: entry["Initiated"]):
            found.setdefault(entry["Key"], []).append(entry["UploadId"])
        return found

    def uploaded_parts(self, key: str, upload: str) -> dict[int, UploadedPart]:
        """The parts of an unfinished upload, by number. Raises Missing when it has ended."""
        parts = self.aws.items(
            "s3", "list_parts", "Parts", Bucket=self.name, Key=key, UploadId=upload
        )
        return {
            part["PartNumber"]: UploadedPart(
                part["Size"], part["ETag"].strip('"'), checksums_in(part)
            )
            for part in parts
        }

    def begin(self, key: str, metadata: Mapping[str, str]) -> str:
        """Create a multipart upload; its id."""
        answer = self.call("create_multipart_upload", Key=key, Metadata=dict(metadata),
                           ChecksumAlgorithm=ALGORITHM, ChecksumType="COMPOSITE")  # fmt: skip
        return str(answer["UploadId"])

    def abort(self, key: str, upload: str) -> None:
        """Abort an unfinished upload; tolerates one that has ended."""
        try:
            self.call("abort_multipart_upload", Key=key, UploadId=upload)
        except Missing:
            return

    def complete(self, key: str, upload: str, parts: list[dict[str, Any]]) -> None:
        """Complete a multipart upload. Tolerates a lost response: callers verify the object."""
        try:
            self.call("complete_multipart_upload", Key=key, UploadId=upload,
                      MultipartUpload={"Parts": parts})  # fmt: skip
        except Missing:
            if self.head(key) is None:
                raise

    def delete(self, key: str) -> None:
        self.call("delete_object", Key=key)


def checksums_in(answer: Mapping[str, Any]) -> dict[str, str]:
    """The checksums of a part (``ChecksumSHA256`` and others) that an answer contains."""
    found = ((f"Checksum{name}", answer.get(f"Checksum{name}")) for name in _CHECKSUMS)
    return {name: value for name, value in found if value}
