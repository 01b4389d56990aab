"""Sync of a pair with a real S3 client: uploads, resumption, verification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Aws
from peagle.errors import CloudError, NotFound, Refused
from peagle.planning.company import Company
from peagle.weights import upload as uploading
from peagle.weights.bucket import Bucket
from peagle.weights.inspect import inspect_weights, remove_weights
from peagle.weights.layout import weights_prefix
from peagle.weights.manifest import copied_pair
from peagle.weights.sync import sync_weights
from peagle.weights.transfer import SyncProgress
from tests.support import raises_code
from tests.unit.aws.syncing import (
    COPIED,
    PART,
    PLACE,
    Calls,
    folder_weights,
    keys,
    manifest,
    plan_for,
    shard,
    stored,
    sync,
    unfinished,
    use_small_parts,
    write_model,
)

LARGE = 4 * PART
"""The smallest part size of S3, except for the last part."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A model whose weights are uploaded in five parts."""
    return write_model(tmp_path / "target", LARGE)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write_model(tmp_path / "drafter", 2000, seed=1)


@pytest.fixture
def calls(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(aws, monkeypatch)


@pytest.mark.thorough
def test_a_pair_has_two_folders_at_one_prefix(aws: Aws, target: Path, drafter: Path) -> None:
    outcome = sync(aws, target=folder_weights(target), drafter=folder_weights(drafter))

    names = ("config.json", "model.safetensors", "tokenizer.json")
    folders = {f"pair/{part}/{name}" for part in ("target", "drafter") for name in names}
    assert keys(aws) == {*folders, "pair/peagle-weights.json"}
    for folder in (target, drafter):
        for name in names:
            assert stored(aws, f"pair/{folder.name}/{name}") == (folder / name).read_bytes()
    assert outcome.moved == sum(f.stat().st_size for d in (target, drafter) for f in d.iterdir())
    assert unfinished(aws) == []


@pytest.mark.thorough
def test_the_pair_of_a_copied_head_is_known(aws: Aws, target: Path, drafter: Path) -> None:
    sync(aws, target=folder_weights(target), drafter=folder_weights(drafter))

    assert copied_pair(aws, PLACE.part_uri("drafter")) == COPIED.pair
    assert copied_pair(aws, PLACE.part_uri("drafter").rstrip("/")) == COPIED.pair
    for other in (PLACE.part_uri("target"), PLACE.uri, "s3://no-bucket/drafter/"):
        assert copied_pair(aws, other) == ""


@pytest.mark.thorough
def test_every_upload_has_a_checksum(aws: Aws, target: Path, calls: Calls) -> None:
    unchecked: list[str] = []

    def check_call(operation: str, given: dict[str, Any]) -> None:
        if "Body" in given and "ChecksumSHA256" not in given:
            unchecked.append(given["Key"])

    calls.before = check_call
    sync(aws, target=folder_weights(target))

    assert set(unchecked) == {PLACE.manifest_key, PLACE.lock_key}
    files = manifest(aws)["folders"]["target"]["files"]
    assert all(entry["checksum"].startswith("SHA256:") for entry in files.values())


@pytest.mark.thorough
def test_existing_files_are_not_sent_again(aws: Aws, target: Path, calls: Calls) -> None:
    sync(aws, target=folder_weights(target))
    calls.made.clear()

    outcome = sync(aws, target=folder_weights(target))

    assert outcome.moved == 0
    assert calls.keys("put_object").count(PLACE.manifest_key) == 2
    assert set(calls.keys("put_object")) == {PLACE.manifest_key, PLACE.lock_key}
    assert calls.count("upload_part", "create_multipart_upload") == 0


@pytest.mark.thorough
def test_a_file_with_other_bytes_of_the_same_size_is_replaced(aws: Aws, target: Path) -> None:
    sync(aws, target=folder_weights(target))
    (target / "model.safetensors").write_bytes(shard("w", LARGE, seed=7))
    (target / "tokenizer.json").write_bytes(b"[]")

    outcome = sync(aws, target=folder_weights(target))

    for name in ("model.safetensors", "tokenizer.json"):
        assert stored(aws, f"pair/target/{name}") == (target / name).read_bytes()
    assert outcome.moved == (target / "model.safetensors").stat().st_size + 2


@pytest.mark.thorough
def test_an_object_without_our_metadata_is_not_trusted(aws: Aws, target: Path) -> None:
    size = (target / "model.safetensors").stat().st_size
    key = "pair/target/model.safetensors"
    aws.call("s3", "put_object", Bucket="models", Key=key, Body=bytes(size))

    sync(aws, target=folder_weights(target))

    assert stored(aws, key) == (target / "model.safetensors").read_bytes()


def _fail_at(number: int, error: BaseException) -> Any:
    """Raise ``error`` from part ``number`` on."""

    def before(operation: str, given: dict[str, Any]) -> None:
        if operation == "upload_part" and given["PartNumber"] > number:
            raise error

    return before


@pytest.mark.thorough
@pytest.mark.parametrize("error", [CloudError("S3 is away"), KeyboardInterrupt()])
def test_an_interrupted_sync_resumes_and_sends_no_part_twice(
    aws: Aws, target: Path, calls: Calls, error: BaseException
) -> None:
    calls.before = _fail_at(2, error)
    with pytest.raises(type(error)):
        sync(aws, target=folder_weights(target))
    assert unfinished(aws) == ["pair/target/model.safetensors"]
    assert manifest(aws)["folders"]["target"]["complete"] is False
    calls.before = lambda operation, given: None

    outcome = sync(aws, target=folder_weights(target))

    assert calls.count("upload_part") == 5
    assert calls.count("create_multipart_upload") == 1
    assert outcome.moved < LARGE
    assert (
        stored(aws, "pair/target/model.safetensors") == (target / "model.safetensors").read_bytes()
    )
    assert manifest(aws)["folders"]["target"]["complete"] is True


@pytest.mark.thorough
def test_parts_of_a_changed_file_are_sent_again(aws: Aws, target: Path, calls: Calls) -> None:
    calls.before = _fail_at(4, CloudError("S3 is away"))
    with pytest.raises(CloudError):
        sync(aws, target=folder_weights(target))
    calls.before = lambda operation, given: None
    (target / "model.safetensors").write_bytes(shard("w", LARGE, seed=9))

    sync(aws, target=folder_weights(target))

    assert (
        stored(aws, "pair/target/model.safetensors") == (target / "model.safetensors").read_bytes()
    )


@pytest.mark.thorough
def test_an_unfinished_upload_of_other_weights_is_aborted(
    aws: Aws, target: Path, tmp_path: Path, calls: Calls
) -> None:
    calls.before = _fail_at(2, CloudError("S3 is away"))
    with pytest.raises(CloudError):
        sync(aws, target=folder_weights(target))
    calls.before = lambda operation, given: None
    other = write_model(tmp_path / "other", LARGE, seed=3)

    sync(aws, target=folder_weights(other))

    assert calls.count("abort_multipart_upload") == 1
    assert unfinished(aws) == []
    assert (
        stored(aws, "pair/target/model.safetensors") == (other / "model.safetensors").read_bytes()
    )


@pytest.mark.thorough
def test_a_lost_response_to_the_last_call_is_tolerated(
    aws: Aws, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 has completed the object, the response is lost, and the repeated call finds no upload."""
    original = Bucket.complete

    def twice(bucket: Bucket, key: str, upload: str, parts: list[dict[str, Any]]) -> None:
        original(bucket, key, upload, parts)
        bucket.call("abort_multipart_upload", Key=key, UploadId=upload)

    monkeypatch.setattr(Bucket, "complete", twice)
    with pytest.raises(CloudError):
        sync(aws, target=folder_weights(target))
    monkeypatch.setattr(Bucket, "complete", original)

    assert sync(aws, target=folder_weights(target)).moved < LARGE


@pytest.mark.thorough
def test_bytes_that_change_in_transit_are_detected_and_removed(
    aws: Aws, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "combined", lambda checksums: "of something else")

    with raises_code("checksum-mismatch", CloudError):
        sync(aws, target=folder_weights(target))

    assert "pair/target/model.safetensors" not in keys(aws)
    assert manifest(aws)["folders"]["target"]["complete"] is False


@pytest.mark.thorough
def test_target_and_drafter_can_be_synced_separately(aws: Aws, target: Path, drafter: Path) -> None:
    sync(aws, target=folder_weights(target))
    outcome = sync(aws, drafter=folder_weights(drafter))

    assert set(outcome.manifest) == {"target", "drafter"}
    assert (
        plan_for(aws, target=folder_weights(target), drafter=folder_weights(drafter)).findings == ()
    )
    assert inspect_weights(aws, PLACE).complete


def test_foreign_objects_are_found_before_any_write(aws: Aws, target: Path) -> None:
    aws.call("s3", "put_object", Bucket="models", Key="pair/target/old.safetensors", Body=b"old")

    (finding,) = plan_for(aws, target=folder_weights(target)).findings

    assert (finding.level, finding.code) == ("error", "foreign-objects")
    assert "target/old.safetensors" in finding.message


def test_a_file_of_another_size_is_a_warning(aws: Aws, target: Path) -> None:
    aws.call("s3", "put_object", Bucket="models", Key="pair/target/config.json", Body=b"{}")

    (finding,) = plan_for(aws, target=folder_weights(target)).findings

    assert (finding.level, finding.code) == ("warning", "objects-are-replaced")


@pytest.mark.thorough
def test_a_missing_bucket_is_created(aws: Aws, drafter: Path) -> None:
    from peagle.weights.layout import weights_prefix

    place = weights_prefix("s3://new-models/pair")
    assert plan_for(aws, place, drafter=folder_weights(drafter)).creates_bucket

    sync(aws, place, drafter=folder_weights(drafter))

    assert "pair/drafter/config.json" in keys(aws, "new-models")


def test_a_bucket_of_another_region_is_refused(aws: Aws, drafter: Path) -> None:
    elsewhere = {"LocationConstraint": "eu-west-1"}
    west = aws.in_region("eu-west-1")
    west.call("s3", "create_bucket", Bucket="west", CreateBucketConfiguration=elsewhere)
    from peagle.weights.layout import weights_prefix

    with raises_code("bucket-region", Refused) as refused:
        plan_for(aws, weights_prefix("s3://west/pair"), drafter=folder_weights(drafter))
    assert "--region eu-west-1" in refused.value.fix


@pytest.mark.thorough
def test_progress_ends_at_the_total(aws: Aws, target: Path) -> None:
    for _ in range(2):
        moments: list[SyncProgress] = []
        found = plan_for(aws, target=folder_weights(target))
        sync_weights(aws, found, COPIED, moments.append)
        assert moments[-1].done == moments[-1].total == found.size
        assert all(0 <= moment.done <= moment.total for moment in moments)


@pytest.mark.thorough
def test_inspect_after_an_interrupted_sync(aws: Aws, target: Path, calls: Calls) -> None:
    with pytest.raises(NotFound):
        inspect_weights(aws, PLACE)
    calls.before = _fail_at(2, CloudError("S3 is away"))
    with pytest.raises(CloudError):
        sync(aws, target=folder_weights(target))
    calls.before = lambda operation, given: None

    partial = inspect_weights(aws, PLACE)

    files = {file.name: file for file in partial.files["target"]}
    assert files["model.safetensors"].state == "half"
    assert files["model.safetensors"].present == 2 * PART
    assert not partial.complete
    aws.call("s3", "delete_object", Bucket="models", Key="pair/target/config.json")
    again = {file.name: file.state for file in inspect_weights(aws, PLACE).files["target"]}
    assert again["config.json"] == "missing"


def put_warm_start(aws: Aws, key: str, device: Any, archive: int = 3) -> None:
    """Store a warm start with ``archive`` of the three bytes that the manifest names."""
    document = {"format": 1, "key": key, "size": 3, "subject": {"device": device}}
    objects = {"tar.gz": b"x" * archive, "json": json.dumps(document).encode()}
    for name, body in objects.items():
        given = {"Bucket": "models", "Key": f"pair/warm/{key}.{name}", "Body": body}
        aws.call("s3", "put_object", **given)


@pytest.mark.thorough
def test_inspect_names_the_device_of_warm_starts(aws: Aws, target: Path) -> None:
    sync(aws, target=folder_weights(target))
    gpus = {"gpus": ["NVIDIA H200 (9.0)"] * 8, "used": 4, "driver": "580"}
    put_warm_start(aws, "a" * 32, gpus)
    put_warm_start(aws, "b" * 32, {"cpu": "AMD EPYC 9R14", "instructions": "0f" * 32}, archive=2)
    aws.call("s3", "put_object", Bucket="models", Key=f"pair/warm/{'c' * 32}.json", Body=b"{")

    found = inspect_weights(aws, PLACE)

    assert [(warm.key[0], warm.device, warm.complete) for warm in found.warm] == [
        ("a", "4 x NVIDIA H200 (9.0), driver 580", True),
        ("b", "AMD EPYC 9R14", False),
        ("c", "", False),
    ]
    assert found.complete
    assert found.others == {}
    assert found.size == sum(_sizes(aws).values()) - len(stored(aws, PLACE.manifest_key))


def _sizes(aws: Aws) -> dict[str, int]:
    found = aws.items("s3", "list_objects_v2", "Contents", Bucket="models")
    return {entry["Key"]: entry["Size"] for entry in found}


@pytest.mark.thorough
def test_warm_starts_are_removed_with_the_weights(aws: Aws, target: Path) -> None:
    sync(aws, target=folder_weights(target))
    put_warm_start(aws, "a" * 32, {"cpu": "x"})
    aws.call("s3", "put_object", Bucket="models", Key="pair/mine.txt", Body=b"!")

    remove_weights(aws, inspect_weights(aws, PLACE))

    assert keys(aws) == {"pair/mine.txt"}


@pytest.mark.thorough
def test_inspect_after_foreign_changes(aws: Aws, target: Path) -> None:
    sync(aws, target=folder_weights(target))
    assert inspect_weights(aws, PLACE).complete

    aws.call("s3", "put_object", Bucket="models", Key="pair/target/config.json", Body=b"{}")
    aws.call("s3", "put_object", Bucket="models", Key="pair/mine.txt", Body=b"!")
    damaged = inspect_weights(aws, PLACE)
    assert {file.state for file in damaged.files["target"]} == {"differs", "whole"}
    assert damaged.others == {"pair/mine.txt": 1}
    assert not damaged.complete


@pytest.mark.thorough
def test_what_a_sync_writes_is_encrypted_with_the_key_and_a_new_bucket_is_tagged(
    aws: Aws, target: Path, drafter: Path
) -> None:
    company = Company(kms_key="alias/models", tags={"team": "ml"})
    new = weights_prefix("s3://new-models/pair")
    weights = {"target": folder_weights(target), "drafter": folder_weights(drafter)}
    plan = plan_for(aws, new, **weights)
    sync_weights(aws, plan, COPIED, lambda progress: None, company=company)

    for key in keys(aws, "new-models"):
        found = aws.call("s3", "head_object", Bucket="new-models", Key=key)
        assert found["ServerSideEncryption"] == "aws:kms", key
        assert found["SSEKMSKeyId"].endswith("alias/models")
    tags = aws.call("s3", "get_bucket_tagging", Bucket="new-models")["TagSet"]
    assert {"Key": "team", "Value": "ml"} in tags
