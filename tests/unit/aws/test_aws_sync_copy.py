"""Sync from another S3 prefix: S3 copies, and no weight file passes through this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from peagle.aws.client import Aws, Keys, connect
from peagle.errors import CheckpointError
from peagle.planning.plan import Weights
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.logs import Log, Redactor
from peagle_serve.weights import check_mounted_weights
from tests.support import raises_code
from tests.unit.aws.cloud import service_error
from tests.unit.aws.syncing import (
    CONFIG,
    PART,
    PLACE,
    Calls,
    apply,
    folder_weights,
    plan_for,
    shard,
    stored,
    sync,
    unfinished,
    use_small_parts,
    write_model,
)

FROM = Weights(kind="s3", location="s3://theirs/head/", engine_path="")
WEIGHTS = shard("w", 17 * PART // 5)
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
    use_small_parts(monkeypatch)


@pytest.fixture
def calls(aws: Aws) -> Calls:
    return Calls(aws)


@pytest.mark.thorough
def test_s3_copies_and_only_headers_are_read(aws: Aws, calls: Calls) -> None:
    read: list[str] = []

    def note(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "get_object" and "Range" not in parameters:
            read.append(parameters["Key"])

    calls.before = note
    sync(aws, target=FROM)

    assert set(read) <= {PLACE.manifest_key, PLACE.lock_key}
    assert calls.count("upload_part") == 0
    assert calls.count("upload_part_copy") == 4
    assert set(calls.keys("put_object")) == {PLACE.manifest_key, PLACE.lock_key}
    calls.before = lambda operation, given: None
    assert stored(aws, KEY) == WEIGHTS
    assert unfinished(aws) == []


@pytest.mark.thorough
def test_existing_copies_are_not_copied_again(aws: Aws, calls: Calls) -> None:
    sync(aws, target=FROM)
    calls.made.clear()

    assert sync(aws, target=FROM).moved == 0

    assert calls.count("upload_part_copy", "copy_object", "create_multipart_upload") == 0


@pytest.mark.thorough
def test_an_original_that_changes_meanwhile_is_detected(aws: Aws) -> None:
    found = plan_for(aws, target=FROM)
    aws.call("s3", "put_object", Bucket="theirs", Key="head/config.json", Body=b"{}")

    with raises_code("source-changed", CheckpointError):
        apply(aws, found)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_an_original_that_changes_while_it_is_copied_is_detected(
    aws: Aws, calls: Calls, name: str, change: str
) -> None:
    def meanwhile(operation: str, parameters: dict[str, Any]) -> None:
        if operation in ("copy_object", "upload_part_copy") and parameters["Key"].endswith(name):
            if change == "replaced":  # S3 compares the ETag that is asked for, moto does not
                assert parameters["CopySourceIfMatch"]
                raise service_error("PreconditionFailed", "the ETag differs", "CopyObject")
            calls.before = lambda operation, parameters: None
            aws.call("s3", "delete_object", Bucket="theirs", Key=f"head/{name}")

    calls.before = meanwhile

    with raises_code("source-changed", CheckpointError):
        sync(aws, target=FROM)


def base64_sha256(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def entries(aws: Aws, bucket: str = "models") -> dict[str, dict[str, Any]]:
    """The files of the target in the manifest."""
    document = json.loads(stored(aws, PLACE.manifest_key, bucket))
    found: dict[str, dict[str, Any]] = document["folders"]["target"]["files"]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["SHA1", None])
def test_a_copy_has_a_sha256_that_the_container_can_compute(
    aws: Aws, calls: Calls, algorithm: str | None
) -> None:
    """Also where the original has a checksum of another kind, or none."""
    if algorithm:
        for name, content in (("config.json", CONFIG), ("model.safetensors", WEIGHTS)):
            aws.call("s3", "put_object", Bucket="theirs", Key=f"head/{name}", Body=content,
                     ChecksumAlgorithm=algorithm)  # fmt: skip
    sync(aws, target=FROM)

    small, large = entries(aws)["config.json"], entries(aws)["model.safetensors"]
    assert small["checksum"] == f"SHA256:{base64_sha256(CONFIG)}"
    assert small["part_size"] is None
    each = large["part_size"]
    parts = [WEIGHTS[at : at + each] for at in range(0, len(WEIGHTS), each)]
    assert len(parts) == 4
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    assert large["checksum"] == f"SHA256:{base64_sha256(digests)}"
    asked = {params.get("ChecksumAlgorithm") for operation, params in calls.made
             if operation in ("copy_object", "create_multipart_upload")}  # fmt: skip
    assert asked == {"SHA256"}


@pytest.mark.thorough
def test_what_a_sync_records_passes_the_containers_full_check(aws: Aws, tmp_path: Path) -> None:
    sync(aws, target=FROM, drafter=folder_weights(write_model(tmp_path / "own", 17 * PART // 5)))
    mounted = tmp_path / "ml" / "model"
    for entry in aws.items("s3", "list_objects_v2", "Contents", Bucket="models", Prefix="pair/"):
        file = mounted / entry["Key"].removeprefix("pair/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(stored(aws, entry["Key"]))
    target = str(mounted / "target")
    environment = {"PEAGLE_ML_ROOT": str(tmp_path / "ml"), "SM_VLLM_MODEL": target}

    with open(os.devnull, "w") as nowhere:
        log = Log(Redactor({}), nowhere.fileno())
        check_mounted_weights(environment, "full", log)
        file = mounted / "target" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        with pytest.raises(InvalidEnvironment, match="has other content"):
            check_mounted_weights(environment, "full", log)


def test_a_prefix_without_a_model_is_an_error(aws: Aws) -> None:
    aws.call("s3", "delete_object", Bucket="theirs", Key="head/config.json")

    with raises_code("config-missing", CheckpointError) as caught:
        sync(aws, target=FROM)
    assert "s3://theirs/head has no config.json" in caught.value.message
