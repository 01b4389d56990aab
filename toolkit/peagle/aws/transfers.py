"""Uploads and server-side copies by boto3's transfer manager: in parts, several at a time.

Each part has a SHA-256, which S3 checks. The SHA-256 of an object in parts is that of the SHA-256s
of its parts, so the object's metadata records the part size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol, Self

from boto3.s3.transfer import ProgressCallbackInvoker
from s3transfer.exceptions import S3CopyFailedError
from s3transfer.manager import TransferConfig, TransferManager
from s3transfer.utils import ChunksizeAdjuster

from peagle.aws.client import Aws, translated
from peagle.aws.errors import Missing
from peagle.errors import CheckpointError, CloudError
from peagle.s3uri import S3Uri

PART_BYTES = 16 * 1024 * 1024
"""Of an upload: large enough that requests cost little, small enough to repeat one."""

COPY_PART_BYTES = 128 * 1024 * 1024
"""Of a server-side copy."""

ALGORITHM = "SHA256"

PART_SIZE = "part-size"
"""Object metadata: the part size in bytes, on which the checksum depends."""

PARTS_AT_ONCE = 8
"""boto3 keeps ten connections."""

_OTHER_ETAG = "PreconditionFailed"


class Readable(Protocol):
    """A stream that is read once, from its beginning to its end."""

    def read(self, size: int = -1) -> bytes: ...


class Transfers:
    """Transfers to one region, of ``files`` at a time; as a context, which ends those in flight
    and their multipart uploads when it is left with an error.

    ``encryption`` are the parameters with which S3 encrypts what is written.
    """

    def __init__(self, aws: Aws, files: int, encryption: Mapping[str, str]) -> None:
        self._aws, self._files, self._encryption = aws, files, encryption
        self._managers = ExitStack()

    def __enter__(self) -> Self:
        self._uploads, self._copies = (
            self._manager(size) for size in (PART_BYTES, COPY_PART_BYTES)
        )
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._managers.__exit__(*error)

    def _manager(self, part_size: int) -> TransferManager:
        config = TransferConfig(
            multipart_threshold=part_size + 1,
            multipart_chunksize=part_size,
            max_request_concurrency=PARTS_AT_ONCE,
            max_submission_concurrency=self._files,
        )
        return self._managers.enter_context(TransferManager(self._aws.client("s3"), config))

    def upload(
        self,
        stream: Readable,
        size: int,
        place: S3Uri,
        metadata: Mapping[str, str],
        progress: Callable[[int], object],
    ) -> None:
        """Upload ``size`` bytes of a stream; ``progress`` gets bytes as they leave. Raises
        CloudError, and what reading the stream raises; there is no object then."""
        extra = self._extra(metadata, size, PART_BYTES)
        with translated("s3", self._aws.region):
            self._uploads.upload(
                stream, place.bucket, place.key, extra, [ProgressCallbackInvoker(progress)]
            ).result()

    def copy(
        self,
        source: S3Uri,
        etag: str,
        size: int,
        place: S3Uri,
        metadata: Mapping[str, str],
        progress: Callable[[int], object],
    ) -> None:
        """Let S3 copy an object of ``size`` bytes. Raises CloudError, and CheckpointError for an
        original that is gone or has another ETag."""
        extra = self._extra(metadata, size, COPY_PART_BYTES)
        extra |= {"MetadataDirective": "REPLACE", "CopySourceIfMatch": etag}
        original = {"Bucket": source.bucket, "Key": source.key}
        try:
            with translated("s3", self._aws.region):
                self._copies.copy(
                    original, place.bucket, place.key, extra, [ProgressCallbackInvoker(progress)]
                ).result()
        except (Missing, S3CopyFailedError) as error:
            raise source_changed(source) from error
        except CloudError as error:
            raise source_changed(source) if error.code == _OTHER_ETAG else error from error

    def _extra(self, metadata: Mapping[str, str], size: int, each: int) -> dict[str, Any]:
        parts: dict[str, str] = {}
        if size > each:
            parts = {PART_SIZE: str(ChunksizeAdjuster().adjust_chunksize(each, size))}
        return {
            "Metadata": {**metadata, **parts}, "ChecksumAlgorithm": ALGORITHM, **self._encryption
        }  # fmt: skip


def source_changed(source: S3Uri) -> CheckpointError:
    return CheckpointError(
        f"{source} has changed since it was listed", "run the command again", "source-changed"
    )
