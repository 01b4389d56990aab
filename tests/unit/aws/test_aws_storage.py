"""Uploads with a real S3 client: stored files are not sent again, and only ours are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from peagle.aws import s3 as storage
from peagle.aws.client import Aws
from peagle.aws.s3 import Upload
from peagle.checkpoints.contents import files_below
from peagle.weights.bucket import Bucket
from tests.unit.aws.conftest import moto_connection

BUCKET = "peagle-sagemaker-eu-west-1-123456789012"
PREFIX = "peagle-toolkit/name/drafter/"


@pytest.fixture
def aws() -> Iterator[Aws]:
    with mock_aws():
        yield moto_connection("eu-west-1")


@pytest.fixture
def upload(head: Path, aws: Aws) -> Upload:
    storage.create_bucket(aws, BUCKET)
    return Upload(BUCKET, PREFIX, files_below(head), "hash")


def _stored(aws: Aws) -> set[str]:
    return set(Bucket(aws, BUCKET).sizes(""))


def test_a_bucket_is_created_in_its_region_and_tagged_as_ours(aws: Aws) -> None:
    assert not storage.bucket_exists(aws, BUCKET)

    storage.create_bucket(aws, BUCKET)
    storage.create_bucket(aws, BUCKET)

    assert storage.bucket_exists(aws, BUCKET)
    assert storage.is_our_bucket(aws, BUCKET)
    assert storage.default_bucket("123456789012", "eu-west-1") == BUCKET


def test_a_users_bucket_is_not_ours(aws: Aws) -> None:
    place = {"LocationConstraint": "eu-west-1"}
    aws.call("s3", "create_bucket", Bucket="users-own", CreateBucketConfiguration=place)

    assert storage.bucket_exists(aws, "users-own")
    assert not storage.is_our_bucket(aws, "users-own")


def _upload(aws: Aws, upload: Upload) -> tuple[int, int]:
    """The bytes that were sent, and those of files that were there."""
    sent: list[int] = []
    present: list[int] = []
    storage.upload_missing(aws, upload, sent.append, present.append)
    return sum(sent), sum(present)


def test_hidden_files_are_not_uploaded(aws: Aws, upload: Upload) -> None:
    _upload(aws, upload)

    assert _stored(aws) == {f"{PREFIX}config.json", f"{PREFIX}model.safetensors"}


def test_progress_tells_what_is_sent_from_what_is_there(aws: Aws, upload: Upload) -> None:
    sent, present = _upload(aws, upload)
    sent_again, present_again = _upload(aws, upload)

    assert (sent, present) == (upload.size, 0) == (7002, 0)
    assert (sent_again, present_again) == (0, upload.size)


def test_only_changed_files_are_uploaded_again(
    aws: Aws, upload: Upload, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _upload(aws, upload)
    (head / "config.json").write_text("[]")
    sent: list[str] = []
    original = aws.upload

    def spy(path: Path, bucket: str, key: str, *rest: object) -> None:
        sent.append(key)
        original(path, bucket, key, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(aws, "upload", spy)
    _upload(aws, Upload(BUCKET, PREFIX, files_below(head), "hash"))

    assert sent == [f"{PREFIX}config.json"]


def test_only_the_named_objects_are_deleted(aws: Aws, upload: Upload) -> None:
    _upload(aws, upload)
    aws.call("s3", "put_object", Bucket=BUCKET, Key=f"{PREFIX}theirs", Body=b"x")

    storage.delete_objects(aws, BUCKET, upload.keys)
    storage.delete_objects(aws, BUCKET, upload.keys)

    assert _stored(aws) == {f"{PREFIX}theirs"}
    assert not storage.delete_bucket(aws, BUCKET)


def test_an_interrupted_upload_is_aborted(aws: Aws, upload: Upload) -> None:
    for key in (upload.keys[0], "theirs"):
        aws.call("s3", "create_multipart_upload", Bucket=BUCKET, Key=key)

    storage.delete_objects(aws, BUCKET, upload.keys)

    left = aws.items("s3", "list_multipart_uploads", "Uploads", Bucket=BUCKET)
    assert [entry["Key"] for entry in left] == ["theirs"]


def test_an_empty_bucket_is_deleted(aws: Aws) -> None:
    storage.create_bucket(aws, BUCKET)

    assert storage.delete_bucket(aws, BUCKET)
    assert not storage.bucket_exists(aws, BUCKET)
