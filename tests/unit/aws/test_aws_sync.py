"""Sync of a pair with a real S3 client: uploads, interruptions, verification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Aws
from peagle.errors import CloudError, NotFound, Refused
from peagle.planning.company import Company
from peagle.weights.inspect import inspect_weights, remove_weights
from peagle.weights.layout import weights_prefix
from peagle.weights.manifest import copied_pair
from peagle.weights.sync import SyncProgress, sync_weights
from tests.support import raises_code
from tests.unit.aws.syncing import (
    NAME,
    PART,
    PLACE,
    Calls,
    apply,
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
MODEL = "pair/target/model.safetensors"


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
def calls(aws: Aws) -> Calls:
    return Calls(aws)


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

    assert copied_pair(aws, PLACE.part_uri("drafter")) == NAME
    assert copied_pair(aws, PLACE.part_uri("drafter").rstrip("/")) == NAME
    for other in (PLACE.part_uri("target"), PLACE.uri, "s3://no-bucket/drafter/"):
        assert copied_pair(aws, other) == ""


@pytest.mark.thorough
def test_s3_checks_the_sha256_of_every_part(aws: Aws, target: Path, calls: Calls) -> None:
    sync(aws, target=folder_weights(target))

    assert calls.count("upload_part") == 5
    sent = [(params["Key"], params.get("ChecksumAlgorithm")) for operation, params in calls.made
            if operation in ("put_object", "upload_part")]  # fmt: skip
    ours = (PLACE.manifest_key, PLACE.lock_key)
    assert {algorithm for key, algorithm in sent if key not in ours} == {"SHA256"}
    files = manifest(aws)["folders"]["target"]["files"]
    assert all(entry["checksum"].startswith("SHA256:") for entry in files.values())
    assert files["model.safetensors"]["part_size"] == PART


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
    aws.call("s3", "put_object", Bucket="models", Key=MODEL, Body=bytes(size))

    sync(aws, target=folder_weights(target))

    assert stored(aws, MODEL) == (target / "model.safetensors").read_bytes()


def fail_at_part(number: int) -> Any:
    def before(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "upload_part" and parameters["PartNumber"] == number:
            raise CloudError("S3 is away", code="away")

    return before


@pytest.mark.thorough
def test_a_failed_sync_keeps_the_finished_files_and_no_parts(
    aws: Aws, target: Path, calls: Calls
) -> None:
    calls.before = fail_at_part(3)
    with raises_code("away", CloudError):
        sync(aws, target=folder_weights(target))
    assert unfinished(aws) == []
    assert {"pair/target/config.json", "pair/target/tokenizer.json"} <= keys(aws)
    assert manifest(aws)["folders"]["target"]["complete"] is False
    calls.before = lambda operation, parameters: None
    calls.made.clear()

    outcome = sync(aws, target=folder_weights(target))

    assert outcome.moved == (target / "model.safetensors").stat().st_size
    assert set(calls.keys("put_object")) == {PLACE.manifest_key, PLACE.lock_key}
    assert stored(aws, MODEL) == (target / "model.safetensors").read_bytes()
    assert manifest(aws)["folders"]["target"]["complete"] is True


@pytest.mark.thorough
def test_an_interrupt_ends_the_sync_and_releases_the_lock(aws: Aws, target: Path) -> None:
    def interrupt(progress: SyncProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sync_weights(aws, plan_for(aws, target=folder_weights(target)), interrupt)

    assert unfinished(aws) == []
    assert PLACE.lock_key not in keys(aws)
    assert manifest(aws)["folders"]["target"]["complete"] is False
    sync(aws, target=folder_weights(target))
    assert inspect_weights(aws, PLACE).complete


@pytest.mark.thorough
def test_what_a_killed_sync_left_is_listed_and_the_next_one_ends_it(aws: Aws, target: Path) -> None:
    sync(aws, target=folder_weights(target))
    aws.call("s3", "delete_object", Bucket="models", Key=MODEL)
    begun = {"Bucket": "models", "Key": MODEL}
    upload = aws.call("s3", "create_multipart_upload", **begun)["UploadId"]
    aws.call("s3", "upload_part", **begun, UploadId=upload, PartNumber=1, Body=b"x" * PART)

    partial = inspect_weights(aws, PLACE)
    files = {file.name: (file.state, file.present) for file in partial.files["target"]}
    assert files["model.safetensors"] == ("missing", 0)
    assert not partial.complete
    assert partial.finish == (
        "peagle", "weights", "sync", NAME, PLACE.uri, "--target-only"
    )  # fmt: skip

    sync(aws, target=folder_weights(target))

    assert unfinished(aws) == []
    assert stored(aws, MODEL) == (target / "model.safetensors").read_bytes()
    assert inspect_weights(aws, PLACE).finish == ()


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
    place = weights_prefix("s3://new-models/pair")
    assert plan_for(aws, place, drafter=folder_weights(drafter)).creates_bucket

    sync(aws, place, drafter=folder_weights(drafter))

    assert "pair/drafter/config.json" in keys(aws, "new-models")


def test_a_bucket_of_another_region_is_refused(aws: Aws, drafter: Path) -> None:
    elsewhere = {"LocationConstraint": "eu-west-1"}
    west = aws.in_region("eu-west-1")
    west.call("s3", "create_bucket", Bucket="west", CreateBucketConfiguration=elsewhere)

    with raises_code("bucket-region", Refused) as refused:
        plan_for(aws, weights_prefix("s3://west/pair"), drafter=folder_weights(drafter))
    assert "--region eu-west-1" in refused.value.fix


@pytest.mark.thorough
def test_progress_ends_at_the_total(aws: Aws, target: Path) -> None:
    for _ in range(2):
        moments: list[SyncProgress] = []
        found = plan_for(aws, target=folder_weights(target))
        sync_weights(aws, found, moments.append)
        assert moments[-1].done == moments[-1].total == found.size
        assert all(0 <= moment.done <= moment.total for moment in moments)


@pytest.mark.thorough
def test_a_missing_file_is_listed(aws: Aws, target: Path) -> None:
    with pytest.raises(NotFound):
        inspect_weights(aws, PLACE)
    sync(aws, target=folder_weights(target))
    aws.call("s3", "delete_object", Bucket="models", Key="pair/target/config.json")

    states = {file.name: file.state for file in inspect_weights(aws, PLACE).files["target"]}

    assert states["config.json"] == "missing"


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
    apply(aws, plan, company=company)

    for key in keys(aws, "new-models"):
        found = aws.call("s3", "head_object", Bucket="new-models", Key=key)
        assert found["ServerSideEncryption"] == "aws:kms", key
        assert found["SSEKMSKeyId"].endswith("alias/models")
    tags = aws.call("s3", "get_bucket_tagging", Bucket="new-models")["TagSet"]
    assert {"Key": "team", "Value": "ml"} in tags


@pytest.mark.thorough
def test_a_sync_from_another_source_is_a_warning(aws: Aws, target: Path, tmp_path: Path) -> None:
    sync(aws, target=folder_weights(target))

    finding, *_ = plan_for(aws, target=folder_weights(write_model(tmp_path / "other"))).findings

    assert (finding.level, finding.code) == ("warning", "other-weights-there")
    assert str(target) in finding.message
