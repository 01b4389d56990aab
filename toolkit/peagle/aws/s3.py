"""S3: buckets, uploads of local weights, checkpoints, transfers, and a bucket's lifecycle rules.

S3 has no call for one rule of a lifecycle: the whole configuration is read, changed and written, so
two writers at the same moment may lose a rule. Each rule of others is written back as it was read.

Each part of a transfer has a SHA-256, which S3 checks. The SHA-256 of an object in parts is that of
the SHA-256s of its parts, so the object's metadata records the part size.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from boto3.s3.transfer import TransferConfig, create_transfer_manager
from s3transfer.exceptions import S3CopyFailedError, S3DownloadFailedError
from s3transfer.utils import ChunksizeAdjuster

from peagle.aws.client import Aws, translated
from peagle.aws.errors import AccessDenied, Missing
from peagle.checkpoints.contents import LocalFile
from peagle.checkpoints.models import s3_prefix
from peagle.errors import CheckpointError, CloudError, NotFound, Refused
from peagle.planning.company import encrypted_by
from peagle.s3uri import S3Uri

BUCKET_TAG = {"Key": "peagle:toolkit", "Value": "models"}
"""Tag of a bucket that deploy created, and that destroy may therefore delete when empty."""

BUCKET_DENIED = "bucket-denied"
"""The error's code for a bucket that may not be looked at: S3 does not say whose it is."""

_CHECKSUM = "sha256"
_DELETE_BATCH = 1000
"""Limit of DeleteObjects, in keys."""

_SIZE = "TransitionDefaultMinimumObjectSize"
"""A setting next to the rules, which a write without it resets."""


@dataclass(frozen=True)
class Upload:
    """A folder of files and its prefix in S3, which ends in a slash. ``contents`` is a hash of the
    files of all folders that one deploy uploads."""

    bucket: str
    prefix: str
    files: tuple[LocalFile, ...]
    contents: str

    @property
    def uri(self) -> str:
        return str(S3Uri(self.bucket, self.prefix))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.prefix + file.name for file in self.files)

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(file.size for file in self.files)


def default_bucket(account: str, region: str) -> str:
    """The bucket for uploads. The policy AmazonSageMakerFullAccess, which many execution roles
    have, allows only names with ``sagemaker``."""
    return f"peagle-sagemaker-{region}-{account}"


def bucket_exists(aws: Aws, bucket: str) -> bool:
    """Whether the account has that bucket. Raises Refused for one of another account or region."""
    fix = f"use a bucket of this account in {aws.region} (for deploy: --bucket, --capture-data)"
    try:
        response = aws.call("s3", "head_bucket", Bucket=bucket, ExpectedBucketOwner=aws.account)
        region = str(response.get("BucketRegion") or aws.region)
    except Missing:
        return False
    except AccessDenied as denied:
        message = f"the bucket {bucket} belongs to another account, or may not be listed"
        raise Refused(message, fix, BUCKET_DENIED) from denied
    if region != aws.region:
        message = f"the bucket {bucket} is in {region}, and SageMaker uses those of its own only"
        raise Refused(message, f"{fix}, or add --region {region}", "bucket-region")
    return True


def create_bucket(aws: Aws, bucket: str, more_tags: Iterable[dict[str, str]] = ()) -> None:
    """Create and tag the bucket; may be repeated."""
    location = {} if aws.region == "us-east-1" else {
        "CreateBucketConfiguration": {"LocationConstraint": aws.region}
    }  # fmt: skip
    try:
        aws.call("s3", "create_bucket", Bucket=bucket, **location)
    except CloudError as error:
        if error.code != "BucketAlreadyOwnedByYou":
            raise
    aws.call(
        "s3", "put_bucket_tagging", Bucket=bucket, Tagging={"TagSet": [BUCKET_TAG, *more_tags]}
    )


def is_our_bucket(aws: Aws, bucket: str) -> bool:
    """Whether a deploy created the bucket. Raises AccessDenied when its tags may not be read."""
    response = aws.find("s3", "get_bucket_tagging", Bucket=bucket)
    return response is not None and BUCKET_TAG in response["TagSet"]


def delete_bucket(aws: Aws, bucket: str) -> bool:
    """Delete the bucket if it is empty; whether it is gone."""
    try:
        aws.call("s3", "delete_bucket", Bucket=bucket)
    except Missing:
        return True
    except CloudError as error:
        if error.code == "BucketNotEmpty":
            return False
        raise
    return True


def upload_missing(
    aws: Aws,
    upload: Upload,
    sent: Callable[[int], object],
    present: Callable[[int], object],
    earlier: Iterable[str] = (),
    kms_key: str | None = None,
) -> None:
    """Upload the files that S3 does not have yet, or copy them from the keys ``earlier`` (``sent``
    gets their bytes, ``present`` those of others). With ``kms_key``, a file that KMS does not
    encrypt counts as missing."""
    part, bucket = upload.prefix.rstrip("/").rpartition("/")[2], upload.bucket
    for file in upload.files:
        key = upload.prefix + file.name
        metadata = {_CHECKSUM: file.sha256}
        copies = (
            (S3Uri(bucket, name), etag) for name in earlier
            if name != key and name.endswith(f"/{part}/{file.name}")
            and (etag := _uploaded_etag(aws, bucket, name, file, None))
        )  # fmt: skip
        if _uploaded_etag(aws, bucket, key, file, kms_key):
            present(file.size)
        elif copied := next(copies, None):
            more = {"Metadata": metadata, **encrypted_by(kms_key)}
            copy_object(aws, *copied, file.size, S3Uri(bucket, key), more, sent)
        else:
            aws.upload(file.path, bucket, key, metadata, sent, kms_key)


def find_object(aws: Aws, bucket: str, key: str) -> Mapping[str, Any] | None:
    """What HeadObject says of the object; ``None`` if it is not there, or not to be seen."""
    with suppress(AccessDenied):  # without s3:ListBucket, S3 answers 403 for 404
        return aws.find("s3", "head_object", Bucket=bucket, Key=key)
    return None


def _uploaded_etag(aws: Aws, bucket: str, key: str, file: LocalFile, kms_key: str | None) -> str:
    """The ETag of the object if it is that file, encrypted with that key; else empty."""
    if (head := find_object(aws, bucket, key)) is None:
        return ""
    if kms_key:
        # S3 does not say which alias a key has.
        is_key = str(head.get("SSEKMSKeyId", "")).endswith(kms_key.rpartition("/")[2])
        is_encrypted = head.get("ServerSideEncryption", "").startswith("aws:kms")
        if not is_encrypted or not (is_key or "alias/" in kms_key):
            return ""
    same_bytes = head.get("Metadata", {}).get(_CHECKSUM) == file.sha256
    return str(head["ETag"]) if same_bytes and head["ContentLength"] == file.size else ""


def abort_uploads(aws: Aws, bucket: str, keys: Container[str], prefix: str = "") -> None:
    """Abort the unfinished multipart uploads to these keys, whose parts cost money; all are below
    the prefix."""
    place = {"Bucket": bucket} | ({"Prefix": prefix} if prefix else {})
    for upload in list(aws.items("s3", "list_multipart_uploads", "Uploads", **place)):
        if upload["Key"] in keys:
            named = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            aws.delete("s3", "abort_multipart_upload", **named)


def delete_objects(aws: Aws, bucket: str, keys: Iterable[str]) -> None:
    """Delete objects and their unfinished uploads; ignores objects that no longer exist."""
    doomed = sorted(set(keys))
    with suppress(Missing):
        with suppress(AccessDenied):
            abort_uploads(aws, bucket, doomed)
        for start in range(0, len(doomed), _DELETE_BATCH):
            objects = [{"Key": key} for key in doomed[start : start + _DELETE_BATCH]]
            request = {"Objects": objects, "Quiet": True}
            response = aws.call("s3", "delete_objects", Bucket=bucket, Delete=request)
            for failed in response.get("Errors", ()):
                message = f"{S3Uri(bucket, failed['Key'])} was not deleted: {failed.get('Message')}"
                raise CloudError(message, code=failed["Code"])


def lifecycle_rules(aws: Aws, bucket: str) -> dict[str, Mapping[str, Any]]:
    """The rules of the bucket's lifecycle by their id."""
    response = aws.find("s3", "get_bucket_lifecycle_configuration", Bucket=bucket) or {}
    return {rule["ID"]: rule for rule in response.get("Rules", ()) if "ID" in rule}


def set_lifecycle_rule(aws: Aws, bucket: str, rule_id: str, rule: Mapping[str, Any] | None) -> None:
    """Replace the rule with that id, or add it; ``None`` removes it. The other rules, and the
    setting next to them, are written back as they are."""
    response = aws.find("s3", "get_bucket_lifecycle_configuration", Bucket=bucket) or {}
    present = response.get("Rules", [])
    rules = [each for each in present if each.get("ID") != rule_id] + ([rule] if rule else [])
    if rules and rules != present:
        more = {_SIZE: response[_SIZE]} if response.get(_SIZE) else {}
        aws.call(
            "s3", "put_bucket_lifecycle_configuration",
            Bucket=bucket, LifecycleConfiguration={"Rules": rules}, **more,
        )  # fmt: skip
    elif rules != present:
        aws.call("s3", "delete_bucket_lifecycle", Bucket=bucket)


_CHECK_URI = "check the URI; a folder in S3 is a prefix: s3://bucket/folder"


class S3Source:
    """A checkpoint: the objects directly below an ``s3://`` prefix, read in parts."""

    def __init__(self, aws: Aws, uri: str) -> None:
        """Raises CheckpointError for anything but an ``s3://`` URI. Sends nothing yet."""
        prefix = s3_prefix(uri)
        self._aws = aws
        self._bucket, self._prefix = prefix.bucket, prefix.key

    @property
    def location(self) -> str:
        """``s3://bucket/prefix``."""
        return str(S3Uri(self._bucket, self._prefix)).rstrip("/")

    def names(self) -> dict[str, int]:
        """The objects directly below the prefix with their sizes in bytes."""
        listed = self._aws.items(
            "s3", "list_objects_v2", "Contents",
            Bucket=self._bucket, Prefix=self._prefix, Delimiter="/",
        )  # fmt: skip
        with self._explained(self._bucket):
            entries = list(listed)
        # The folder itself can be an object, too.
        sizes = {entry["Key"].removeprefix(self._prefix): entry["Size"] for entry in entries}
        sizes.pop("", None)
        if not sizes:
            message = f"there are no objects directly below {self.location}/"
            raise CheckpointError(message, _CHECK_URI, code="no-objects")
        return sizes

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A byte range of an object."""
        key, end = self._prefix + name, "" if length is None else str(start + length - 1)
        with self._explained(f"{self._bucket}/{key}"):
            response = self._aws.call(
                "s3", "get_object", Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end}"
            )
        with closing(response["Body"]) as body, translated("s3", self._aws.region):
            content: bytes = body.read(length)
        return content

    def digests(self, name: str) -> Mapping[str, str]:
        """None: ETags are digests of some objects only."""
        return {}

    @contextmanager
    def _explained(self, resource: str) -> Iterator[None]:
        """Raise CheckpointError for what does not exist."""
        try:
            yield
        except Missing as error:
            if error.code == "NoSuchBucket":
                message = f"there is no bucket {self._bucket}"
                raise CheckpointError(message, _CHECK_URI, code="no-bucket") from error
            message, fix = f"s3://{resource} is gone", "run the command again"
            raise CheckpointError(message, fix, code="source-changed") from error


def read_lines(aws: Aws, place: S3Uri, ending: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The URI and the lines of the object at ``place``, or of each one below it whose name has this
    ``ending``, in the order of their names."""
    listed = aws.items(
        "s3", "list_objects_v2", "Contents", Bucket=place.bucket, Prefix=place.key.rstrip("/")
    )
    try:
        keys = [entry["Key"] for entry in listed]
    except Missing as error:
        message = f"there is no bucket {place.bucket}"
        raise NotFound(message, "check the URI", "no-bucket") from error
    below = [key for key in keys if key.startswith(place.folder.key) and key.endswith(ending)]
    for key in [place.key] if place.key in keys else below:
        yield S3Uri(place.bucket, key).uri, _object_lines(aws, place.bucket, key)


def _object_lines(aws: Aws, bucket: str, key: str) -> Iterator[bytes]:
    response = aws.call("s3", "get_object", Bucket=bucket, Key=key)
    with closing(response["Body"]) as body, translated("s3", aws.region):
        yield from body.iter_lines()


PART_BYTES = 16 * 1024 * 1024
"""Of an upload: large enough that requests cost little, small enough to repeat one."""

COPY_PART_BYTES = 128 * 1024 * 1024
"""Of a server-side copy."""

ALGORITHM = "SHA256"

PART_SIZE = "part-size"
"""Object metadata: the part size in bytes, on which the checksum depends."""

PARTS_AT_ONCE = 4
"""Of each file."""

_OTHER_ETAG = "PreconditionFailed"


def upload_stream(
    aws: Aws,
    stream: Any,
    size: int,
    place: S3Uri,
    more: Mapping[str, Any],
    progress: Callable[[int], object],
) -> None:
    """Upload ``size`` bytes that ``stream.read`` gives; ``progress`` gets bytes as they leave. With
    an error in either there is no object. ``more`` are metadata and encryption."""
    settings, config = _transfer(size, PART_BYTES, more)
    with translated("s3", aws.region):
        client = aws.client("s3")
        client.upload_fileobj(stream, place.bucket, place.key, settings, progress, config)


def copy_object(
    aws: Aws,
    source: S3Uri,
    etag: str,
    size: int,
    place: S3Uri,
    more: Mapping[str, Any],
    progress: Callable[[int], object],
) -> None:
    """Let S3 copy an object of ``size`` bytes. Raises CheckpointError for an original that is gone
    or has another ETag."""
    settings, config = _transfer(size, COPY_PART_BYTES, more)
    settings |= {"MetadataDirective": "REPLACE", "CopySourceIfMatch": etag}
    original = {"Bucket": source.bucket, "Key": source.key}
    try:
        with translated("s3", aws.region):
            client = aws.client("s3")
            client.copy(original, place.bucket, place.key, settings, progress, Config=config)
    except (Missing, S3CopyFailedError) as error:
        raise source_changed(source) from error
    except CloudError as error:
        raise source_changed(source) if error.code == _OTHER_ETAG else error from error


def download_object(
    aws: Aws, source: S3Uri, etag: str, size: int, path: Path, progress: Callable[[int], object]
) -> None:
    """Bring an object of ``size`` bytes to ``path``: with an error there is no such file. Raises
    CheckpointError for one that is gone or has another ETag."""

    def expect(future: Any, **_: Any) -> None:
        future.meta.provide_transfer_size(size)
        future.meta.provide_object_etag(etag)

    def count(bytes_transferred: int, **_: Any) -> None:
        progress(bytes_transferred)

    subscriber = SimpleNamespace(on_queued=expect, on_progress=count)
    config, place = _transfer(size, PART_BYTES, {})[1], (source.bucket, source.key, str(path))
    config.multipart_threshold = 1  # only requests of parts are held against the ETag
    try:
        with (
            translated("s3", aws.region),
            create_transfer_manager(aws.client("s3"), config) as manager,
        ):
            manager.download(*place, subscribers=[subscriber]).result()
    except (Missing, S3DownloadFailedError) as error:  # the latter is of another ETag
        raise source_changed(source) from error


def _transfer(
    size: int, part: int, more: Mapping[str, Any]
) -> tuple[dict[str, Any], TransferConfig]:
    """The settings of a transfer in parts of so many bytes, with a SHA-256 of each."""
    metadata = dict(more.get("Metadata", {}))
    if size > part:
        metadata[PART_SIZE] = str(ChunksizeAdjuster().adjust_chunksize(part, size))
    config = TransferConfig(
        multipart_threshold=part + 1,
        multipart_chunksize=part,
        max_concurrency=PARTS_AT_ONCE,
        preferred_transfer_client="classic",
    )
    return {**more, "Metadata": metadata, "ChecksumAlgorithm": ALGORITHM}, config


def source_changed(source: S3Uri) -> CheckpointError:
    return CheckpointError(
        f"{source} has changed since it was listed", "run the command again", "source-changed"
    )
