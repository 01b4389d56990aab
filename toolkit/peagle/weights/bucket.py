"""The calls of S3 that copying needs, on one bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from peagle.aws import s3 as storage
from peagle.aws.client import Aws
from peagle.aws.errors import Missing, translated
from peagle.errors import CloudError, Refused

ALGORITHM = "SHA256"
_CHECKSUMS = ("CRC64NVME", "SHA256", "SHA1", "CRC32C", "CRC32")
_IN_PARTS = re.compile(r"-\d+$")


@dataclass(frozen=True)
class Head:
    """What S3 says of an object. ``checksum`` is ``ALGORITHM:value``, or empty when it has none;
    ``composite`` whether that depends on the size of its parts."""

    size: int
    etag: str
    checksum: str
    composite: bool
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Kept:
    """A part that an unfinished upload holds already. Not every S3 tells its checksums (such as
    ``ChecksumSHA256``); its ETag is then its MD5."""

    size: int
    etag: str
    checksums: Mapping[str, str]


class Bucket:
    """One bucket of an account."""

    def __init__(self, aws: Aws, name: str) -> None:
        self.aws, self.name = aws, name
        aws.client("s3")  # made here, before several threads want it

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """One call about this bucket."""
        return self.aws.call("s3", operation, Bucket=self.name, **parameters)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Every key below the prefix with its size in bytes."""
        entries = self.aws.items(
            "s3", "list_objects_v2", "Contents", Bucket=self.name, Prefix=prefix
        )
        return {entry["Key"]: entry["Size"] for entry in entries}

    def read(self, key: str) -> bytes:
        """A small object."""
        answer = self.call("get_object", Key=key)
        with closing(answer["Body"]) as body, translated("s3", self.aws.region):
            content: bytes = body.read()
        return content

    def head(self, key: str) -> Head | None:
        """The object, when it is there."""
        try:
            found = self.call("head_object", Key=key, ChecksumMode="ENABLED")
        except Missing:
            return None
        said = ((name, found.get(f"Checksum{name}")) for name in _CHECKSUMS)
        name, value = next(((name, value) for name, value in said if value), ("", ""))
        in_parts = _IN_PARTS.search(found["ETag"].strip('"')) is not None
        kind = found.get("ChecksumType", "COMPOSITE" if in_parts and name[:3] == "SHA" else "")
        return Head(
            size=found["ContentLength"],
            etag=found["ETag"],
            checksum=f"{name}:{_IN_PARTS.sub('', value)}" if name else "",
            composite=kind == "COMPOSITE",
            metadata=found.get("Metadata", {}),
        )

    def first_part(self, key: str) -> int | None:
        """How large the first of an object's parts is; ``None`` for one that is in one piece."""
        found = self.call("head_object", Key=key, PartNumber=1)
        return found["ContentLength"] if found.get("PartsCount") else None

    def begun(self, prefix: str) -> dict[str, list[str]]:
        """Unfinished uploads below the prefix: ids by key, the latest last."""
        listed = self.aws.items(
            "s3", "list_multipart_uploads", "Uploads", Bucket=self.name, Prefix=prefix
        )
        found: dict[str, list[str]] = {}
        for entry in sorted(listed, key=lambda entry: entry["Initiated"]):
            found.setdefault(entry["Key"], []).append(entry["UploadId"])
        return found

    def kept(self, key: str, upload: str) -> dict[int, Kept]:
        """The parts that an unfinished upload holds, by number."""
        return {
            entry["PartNumber"]: Kept(entry["Size"], entry["ETag"].strip('"'), checksums_in(entry))
            for entry in self._parts(key, upload)
        }

    def _parts(self, key: str, upload: str) -> Iterator[dict[str, Any]]:
        return self.aws.items(
            "s3", "list_parts", "Parts", Bucket=self.name, Key=key, UploadId=upload
        )

    def begin(self, key: str, metadata: Mapping[str, str], algorithm: str = ALGORITHM,
              kind: str = "COMPOSITE") -> str:  # fmt: skip
        """A new upload in parts; its id."""
        answer = self.call("create_multipart_upload", Key=key, Metadata=dict(metadata),
                           ChecksumAlgorithm=algorithm, ChecksumType=kind)  # fmt: skip
        return str(answer["UploadId"])

    def abort(self, key: str, upload: str) -> None:
        """Throw away an unfinished upload; tolerates one that is gone."""
        try:
            self.call("abort_multipart_upload", Key=key, UploadId=upload)
        except Missing:
            return

    def complete(self, key: str, upload: str, parts: list[dict[str, Any]]) -> None:
        """Make the object of its parts. An answer that got lost does not matter: the caller looks
        at the object anyway."""
        try:
            self.call("complete_multipart_upload", Key=key, UploadId=upload,
                      MultipartUpload={"Parts": parts})  # fmt: skip
        except Missing:
            if self.head(key) is None:
                raise

    def delete(self, key: str) -> None:
        """Remove an object."""
        self.call("delete_object", Key=key)


def checksums_in(answer: Mapping[str, Any]) -> dict[str, str]:
    """``ChecksumSHA256`` and the like, as far as an answer about a part has them."""
    found = ((f"Checksum{name}", answer.get(f"Checksum{name}")) for name in _CHECKSUMS)
    return {name: value for name, value in found if value}


def region_of(aws: Aws, bucket: str) -> str | None:
    """``storage.region_of``, where S3 may also answer that the bucket is elsewhere."""
    try:
        return storage.region_of(aws, bucket, "name a bucket of your own")
    except CloudError as error:
        if error.code not in ("301", "PermanentRedirect"):
            raise
        raise Refused(f"the bucket {bucket} is in another region than {aws.region}",
                      "name its region with --region") from error  # fmt: skip
