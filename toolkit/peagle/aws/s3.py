"""Buckets, and uploads of weights from folders of this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.checkpoints.folder import follow_link
from peagle.errors import CloudError, Refused, UserError
from peagle_serve.folder import link_homes

BUCKET_TAG = {"Key": "peagle:toolkit", "Value": "models"}
"""Tag of a bucket that deploy created, and that destroy may therefore delete when empty."""

_CHECKSUM = "sha256"
_DELETE_AT_ONCE = 1000
"""Limit of DeleteObjects, in keys."""


@dataclass(frozen=True)
class LocalFile:
    """A file to upload. ``name`` is its path below the folder, ``size`` is in bytes."""

    path: Path
    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Upload:
    """A folder of files and its prefix in S3, which ends in a slash.

    ``contents`` is a hash of the files of all folders that one deploy uploads.
    """

    bucket: str
    prefix: str
    files: tuple[LocalFile, ...]
    contents: str

    @property
    def uri(self) -> str:
        """The prefix as ``s3://``."""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def keys(self) -> tuple[str, ...]:
        """All object keys."""
        return tuple(self.prefix + file.name for file in self.files)

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(file.size for file in self.files)


def files_below(folder: Path) -> tuple[LocalFile, ...]:
    """All files below ``folder`` except hidden ones.

    Raises UserError when there are none, and for a link that leaves the folder or is broken.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}", "the plan needs the weights in it")
    homes = link_homes(folder)
    shown = (path for path in sorted(folder.rglob("*")) if not _is_hidden(path, folder))
    found = tuple(_file(path, folder) for path in shown if follow_link(path, homes).is_file())
    if not found:
        raise UserError(f"the folder {folder} is empty", "it must contain the model's weights")
    return found


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _file(path: Path, folder: Path) -> LocalFile:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return LocalFile(path, path.relative_to(folder).as_posix(), path.stat().st_size, digest)


def default_bucket(account: str, region: str) -> str:
    """The bucket for uploads when none is given.

    Its name contains ``sagemaker`` because the policy AmazonSageMakerFullAccess, which many
    execution roles have, allows no other buckets.
    """
    return f"peagle-sagemaker-{region}-{account}"


def bucket_exists(aws: Aws, bucket: str) -> bool:
    """Whether the account has that bucket.

    Raises Refused when it belongs to another account or is in another region, from which SageMaker
    would not read it.
    """
    region = region_of(aws, bucket, "name a bucket of your own with --bucket")
    if region is None:
        return False
    if region != aws.region:
        raise Refused(
            f"the bucket {bucket} is in {region}, the endpoint would be in {aws.region}",
            f"name a bucket in {aws.region} with --bucket",
        )
    return True


def region_of(aws: Aws, bucket: str, fix: str) -> str | None:
    """The region of a bucket of this account; ``None`` when there is no such bucket.

    Raises Refused, with ``fix``, when it belongs to another account.
    """
    try:
        found = aws.call("s3", "head_bucket", Bucket=bucket, ExpectedBucketOwner=aws.account)
    except Missing:
        return None
    except AccessDenied as denied:
        raise Refused(
            f"the bucket {bucket} belongs to another account, or these credentials may not list it",
            fix,
        ) from denied
    return str(found.get("BucketRegion") or aws.region)


def create_bucket(aws: Aws, bucket: str) -> None:
    """Create and tag the bucket; may be repeated."""
    location = {} if aws.region == "us-east-1" else {
        "CreateBucketConfiguration": {"LocationConstraint": aws.region}
    }  # fmt: skip
    try:
        aws.call("s3", "create_bucket", Bucket=bucket, **location)
    except CloudError as error:
        if error.code != "BucketAlreadyOwnedByYou":
            raise
    aws.call("s3", "put_bucket_tagging", Bucket=bucket, Tagging={"TagSet": [BUCKET_TAG]})


def is_our_bucket(aws: Aws, bucket: str) -> bool:
    """Whether a deploy created the bucket."""
    try:
        tags = aws.call("s3", "get_bucket_tagging", Bucket=bucket)["TagSet"]
    except (Missing, AccessDenied):
        return False
    except CloudError as error:
        if error.code == "NoSuchTagSet":
            return False
        raise
    return BUCKET_TAG in tags


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


def keys_below(aws: Aws, bucket: str, prefix: str) -> Iterator[str]:
    """The keys of all objects below ``prefix``."""
    for entry in aws.items("s3", "list_objects_v2", "Contents", Bucket=bucket, Prefix=prefix):
        yield entry["Key"]


def send(aws: Aws, upload: Upload, progress: Callable[[int], object]) -> None:
    """Upload the files that S3 does not have yet; ``progress`` receives bytes done."""
    for file in upload.files:
        key = upload.prefix + file.name
        if _is_uploaded(aws, upload.bucket, key, file):
            progress(file.size)
        else:
            aws.upload(file.path, upload.bucket, key, {_CHECKSUM: file.sha256}, progress)


def _is_uploaded(aws: Aws, bucket: str, key: str, file: LocalFile) -> bool:
    try:
        found = aws.call("s3", "head_object", Bucket=bucket, Key=key)
    except (Missing, AccessDenied):  # without s3:ListBucket, S3 answers 403 for 404
        return False
    same_bytes = found.get("Metadata", {}).get(_CHECKSUM) == file.sha256
    return bool(same_bytes and found["ContentLength"] == file.size)


def delete_objects(aws: Aws, bucket: str, keys: Iterable[str]) -> None:
    """Delete objects and their unfinished uploads; tolerates what is gone."""
    doomed = sorted(set(keys))
    try:
        _abort_uploads(aws, bucket, set(doomed))
        for start in range(0, len(doomed), _DELETE_AT_ONCE):
            batch = [{"Key": key} for key in doomed[start : start + _DELETE_AT_ONCE]]
            answer = aws.call(
                "s3", "delete_objects", Bucket=bucket, Delete={"Objects": batch, "Quiet": True}
            )
            for failed in answer.get("Errors", ()):
                raise CloudError(
                    f"s3://{bucket}/{failed['Key']} was not deleted: {failed.get('Message')}",
                    code=str(failed.get("Code", "")),
                )
    except Missing:
        return


def _abort_uploads(aws: Aws, bucket: str, keys: set[str]) -> None:
    """The parts of an interrupted upload cost money until it is aborted."""
    try:
        listed = aws.items("s3", "list_multipart_uploads", "Uploads", Bucket=bucket)
        begun = [entry for entry in listed if entry["Key"] in keys]
    except AccessDenied:
        return
    for entry in begun:
        aws.call(
            "s3",
            "abort_multipart_upload",
            Bucket=bucket,
            Key=entry["Key"],
            UploadId=entry["UploadId"],
        )
