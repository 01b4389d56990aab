"""From another S3 prefix: S3 copies, no byte of a weight file passes through this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from peagle.aws.client import Aws, Keys, connect
from peagle.errors import CheckpointError, CloudError
from peagle.planning.plan import Weights
from peagle.weights.bucket import Bucket
from peagle.weights.layout import weights_prefix
from peagle.weights.sync import sync_weights as sync
from tests.unit.aws.syncing import (
    CONFIG,
    COPIED,
    MIB,
    PLACE,
    Calls,
    bring,
    folder_weights,
    look,
    shard,
    stored,
    unfinished,
    write_model,
)

FROM = Weights(kind="s3", location="s3://theirs/head/", engine_path="")
WEIGHTS = shard("w", 17 * MIB)
KEY = "pair/target/model.safetensors"


@pytest.fixture
def aws() -> Iterator[Aws]:
    with mock_aws():
        aws = connect("us-east-1", keys=Keys("testing", "testing"))
        for name in ("models", "theirs"):
            aws.call("s3", "create_bucket", Bucket=name)
        files = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "notes.txt.bak": b"x",
                 "original/model.safetensors": b"another copy"}  # fmt: skip
        for key, content in files.items():
            aws.call("s3", "put_object", Bucket="theirs", Key=f"head/{key}", Body=content)
        yield aws


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.weights.upload._COPY_PART_BYTES", 6 * MIB)
    monkeypatch.setattr("peagle.weights.transfer.PART_BYTES", 5 * MIB)


@pytest.fixture
def calls(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(aws, monkeypatch)


def test_s3_copies_and_we_read_headers_only(aws: Aws, calls: Calls) -> None:
    read: list[str] = []

    def note(operation: str, given: dict[str, Any]) -> None:
        if operation == "get_object" and "Range" not in given:
            read.append(given["Key"])

    calls.before = note
    bring(aws, target=FROM)

    assert set(read) <= {PLACE.manifest_key, PLACE.lock_key}
    assert calls.count("upload_part") == 0
    assert calls.count("upload_part_copy") == 3
    assert set(calls.keys("put_object")) == {PLACE.manifest_key, PLACE.lock_key}
    calls.before = lambda operation, given: None
    assert stored(aws, KEY) == WEIGHTS
    assert unfinished(aws) == []


def test_what_is_copied_already_is_not_copied_again(aws: Aws, calls: Calls) -> None:
    bring(aws, target=FROM)
    calls.made.clear()

    assert bring(aws, target=FROM).moved == 0

    assert calls.count("upload_part_copy", "copy_object", "create_multipart_upload") == 0


def test_an_interrupted_copy_goes_on(aws: Aws, calls: Calls) -> None:
    seen: list[int] = []

    def fail(operation: str, given: dict[str, Any]) -> None:
        if operation == "upload_part_copy":
            seen.append(given["PartNumber"])
            if len(seen) == 3:
                raise CloudError("S3 is away")

    calls.before = fail
    with pytest.raises(CloudError, match="away"):
        bring(aws, target=FROM)
    calls.before = lambda operation, given: None
    copied = calls.count("upload_part_copy")

    bring(aws, target=FROM)

    assert copied < 3
    assert calls.count("upload_part_copy") == 3
    assert stored(aws, KEY) == WEIGHTS


def test_a_copy_whose_parts_have_gone_since_they_were_listed_begins_anew(
    aws: Aws, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(operation: str, given: dict[str, Any]) -> None:
        if operation == "upload_part_copy" and given["PartNumber"] == 2:
            raise CloudError("S3 is away")

    calls.before = fail
    with pytest.raises(CloudError, match="away"):
        bring(aws, target=FROM)
    calls.before = lambda operation, given: None
    kept = Bucket.uploaded_parts

    def aborted(bucket: Bucket, key: str, upload: str) -> Any:
        bucket.abort(key, upload)
        return kept(bucket, key, upload)

    monkeypatch.setattr(Bucket, "uploaded_parts", aborted)

    bring(aws, target=FROM)

    assert stored(aws, KEY) == WEIGHTS
    assert unfinished(aws) == []


def test_an_original_that_changes_meanwhile_is_found_out(aws: Aws) -> None:
    found = look(aws, target=FROM)
    aws.call("s3", "put_object", Bucket="theirs", Key="head/config.json", Body=b"{}")

    with pytest.raises(CheckpointError, match="has changed since it was listed"):
        sync(aws, found, COPIED, lambda moment: None)


def test_a_copy_of_our_own_copy_has_the_same_checksum(aws: Aws, tmp_path: Path) -> None:
    """Its checksum depends on the size of its parts, so the copy takes the same parts."""
    model = write_model(tmp_path / "model", 17 * MIB)
    bring(aws, target=folder_weights(model))
    first = aws.call("s3", "head_object", Bucket="models", Key=KEY, ChecksumMode="ENABLED")
    other = weights_prefix("s3://models/other")

    again = Weights(kind="s3", location=PLACE.part_uri("target"), engine_path="")
    bring(aws, other, target=again)

    key = "other/target/model.safetensors"
    second = aws.call("s3", "head_object", Bucket="models", Key=key, ChecksumMode="ENABLED")
    assert second["ChecksumSHA256"] == first["ChecksumSHA256"]
    assert stored(aws, key) == (model / "model.safetensors").read_bytes()


def test_a_copy_with_another_checksum_than_the_original_is_removed(
    aws: Aws, tmp_path: Path, calls: Calls
) -> None:
    model = write_model(tmp_path / "model", 17 * MIB)
    bring(aws, target=folder_weights(model))
    other = weights_prefix("s3://models/other")

    def spoil(operation: str, given: dict[str, Any]) -> None:
        if operation == "upload_part_copy" and given["PartNumber"] == 2:
            given["CopySourceRange"] = f"bytes=0-{5 * MIB - 1}"

    original = aws.call

    def call(service: str, operation: str, **given: Any) -> Any:
        spoil(operation, given)
        return original(service, operation, **given)

    aws.call = call  # type: ignore[method-assign]
    with pytest.raises(CloudError, match="S3 has"):
        bring(
            aws, other, target=Weights(kind="s3", location=PLACE.part_uri("target"), engine_path="")
        )


def test_a_prefix_without_a_model_is_said(aws: Aws) -> None:
    aws.call("s3", "delete_object", Bucket="theirs", Key="head/config.json")

    with pytest.raises(CheckpointError, match=r"s3://theirs/head has no config\.json"):
        bring(aws, target=FROM)
