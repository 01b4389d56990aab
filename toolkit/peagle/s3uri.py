"""S3 URIs: the one parser and the one type for ``s3://bucket/key``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from peagle_serve.contract import S3_SCHEME, is_s3_uri

_BUCKET = re.compile(r"(?!\d+\.\d+\.\d+\.\d+$)(?!.*\.\.)[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_MOUNTABLE_KEY = re.compile(r"([^\s%/]+/)*")
_MAX_LENGTH = 1024
"""Of an S3Uri in SageMaker's service model."""

BUCKET_NAME = "3 to 63 lowercase letters, digits, hyphens and dots"
PREFIX_FORMAT = (
    "use the form s3://bucket/folder, without spaces, % and empty parts; the name of a bucket has "
    f"{BUCKET_NAME}"
)
"""The fix for what ``S3Uri.mountable`` rejects."""


@dataclass(frozen=True)
class S3Uri:
    """A bucket, and the key of an object or a prefix in it (empty for the whole bucket)."""

    bucket: str
    key: str = ""

    def __str__(self) -> str:
        return f"{S3_SCHEME}{self.bucket}/{self.key}"

    @property
    def uri(self) -> str:
        """``s3://bucket/key``."""
        return str(self)

    @property
    def folder(self) -> Self:
        """The same with a key that is empty or ends with a slash, as a prefix needs it."""
        key = self.key.strip("/")
        return type(self)(self.bucket, f"{key}/" if key else "")

    @property
    def has_bucket_name(self) -> bool:
        """Whether the bucket has a name that S3 accepts."""
        return _BUCKET.fullmatch(self.bucket) is not None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Split a URI without validating its parts. Raises ValueError for anything but ``s3://``."""
        if not is_s3_uri(text):
            raise ValueError(f"{text!r} is not an s3:// URI")
        bucket, _, key = text[len(S3_SCHEME) :].partition("/")
        return cls(bucket, key)

    @classmethod
    def mountable(cls, text: str, reserve: int = 0) -> Self:
        """A prefix that SageMaker can mount, its key ending with a slash (or empty).

        ``reserve``: characters that are appended to the URI later. Raises ValueError.
        """
        bucket, _, key = text[len(S3_SCHEME) :].partition("/")
        prefix = cls(bucket, key and f"{key.removesuffix('/')}/")
        if (
            not is_s3_uri(text)
            or not prefix.has_bucket_name
            or not _MOUNTABLE_KEY.fullmatch(prefix.key)
            or len(prefix.uri) + reserve > _MAX_LENGTH
        ):
            raise ValueError(f"{text!r} is not an s3:// prefix that SageMaker can mount")
        return prefix
