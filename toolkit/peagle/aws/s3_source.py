"""A checkpoint below a prefix in S3: the names of its files, and their contents in ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.translation import translated
from peagle.checkpoints.models import s3_prefix
from peagle.errors import CheckpointError, CloudError
from peagle.s3uri import S3Uri
from peagle_serve.contract import HEX_32

_MAX_FILES = 5_000


OTHER_REGION_CODES = (
    "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException",
    "PermanentRedirect",
)  # fmt: skip
"""Errors of a request to a bucket in another region."""

_CHECK_URI = "check the URI; a folder in S3 is a prefix: s3://bucket/folder"


class S3Source:
    """A checkpoint: the objects directly below an ``s3://`` prefix, read in parts."""

    def __init__(self, aws: Aws, uri: str) -> None:
        """Raises CheckpointError for anything but an ``s3://`` URI. Sends nothing yet."""
        prefix = s3_prefix(uri)
        self._aws = aws
        self._bucket, self._prefix = prefix.bucket, prefix.key
        self._listing: dict[str, dict[str, Any]] = {}

    @property
    def location(self) -> str:
        """``s3://bucket/prefix``."""
        return str(S3Uri(self._bucket, self._prefix)).rstrip("/")

    def names(self) -> dict[str, int]:
        """The objects directly below the prefix with their sizes in bytes.

        Raises CheckpointError when there are no objects, and CloudError.
        """
        listed = self._aws.items(
            "s3", "list_objects_v2", "Contents",
            Bucket=self._bucket, Prefix=self._prefix, Delimiter="/",
        )  # fmt: skip
        self._listing = {}
        with self._explained("s3:ListBucket", self._bucket):
            for entry in listed:
                name = str(entry["Key"])[len(self._prefix) :]
                if name and "/" not in name:  # the folder itself can be an object, too
                    self._listing[name] = entry
                if len(self._listing) > _MAX_FILES:
                    raise CheckpointError(
                        f"{self.location} holds more than {_MAX_FILES:,} objects",
                        _CHECK_URI,
                        code="too-many-files",
                    )
        if not self._listing:
            raise CheckpointError(self._why_empty(), _CHECK_URI, code="no-objects")
        return {name: entry["Size"] for name, entry in self._listing.items()}

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A byte range of an object."""
        key, end = self._prefix + name, "" if length is None else str(start + length - 1)
        with self._explained("s3:GetObject", f"{self._bucket}/{key}"):
            response = self._aws.call(
                "s3", "get_object", Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end}"
            )
        with closing(response["Body"]) as body:
            if start and not str(response.get("ContentRange", "")).startswith(f"bytes {start}-"):
                raise CheckpointError(
                    f"{self.location}/{name}: the server ignores byte ranges, and complete files "
                    "are not downloaded",
                    "copy the model to this machine",
                    code="no-byte-ranges",
                )
            with translated("s3", self._aws.region):
                content: bytes = body.read(length)
        return content

    def digests(self, name: str) -> Mapping[str, str]:
        """The MD5 of an object that was uploaded in one part without KMS encryption."""
        tag = str(self._listing.get(name, {}).get("ETag", "")).strip('"')
        return {"md5": tag} if HEX_32.fullmatch(tag) else {}

    def _why_empty(self) -> str:
        key = self._prefix.rstrip("/")
        found = self._aws.call("s3", "list_objects_v2", Bucket=self._bucket, Prefix=key, MaxKeys=1)
        if key and any(entry["Key"] == key for entry in found.get("Contents") or ()):
            return f"{self.location} is one object, not a folder"
        return f"there are no objects directly below {self.location}/"

    @contextmanager
    def _explained(self, action: str, resource: str) -> Iterator[None]:
        """Add permission, bucket or region to AWS's errors."""
        try:
            yield
        except AccessDenied as error:
            response = getattr(error.__cause__, "response", None) or {}
            reason = response.get("Error", {}).get("Message") or error.code
            raise AccessDenied(
                f"access denied: {action} on arn:aws:s3:::{resource} ({reason})",
                f"ask for a policy that allows s3:ListBucket on arn:aws:s3:::{self._bucket} and "
                f"s3:GetObject on arn:aws:s3:::{self._bucket}/{self._prefix}*; an encrypted bucket "
                "also needs kms:Decrypt",
                error.code,
            ) from error
        except Missing as error:
            if error.code == "NoSuchBucket":
                raise CheckpointError(
                    f"there is no bucket {self._bucket}", _CHECK_URI, code="no-bucket"
                ) from error
            raise CheckpointError(
                f"s3://{resource} is gone",
                "another client deleted it; run the command again",
                code="source-changed",
            ) from error
        except CloudError as error:
            if error.code not in OTHER_REGION_CODES:
                raise
            raise CloudError(
                f"the bucket {self._bucket} is in a different region from {self._aws.region}",
                "pass the bucket's region with --region",
                error.code,
            ) from error
