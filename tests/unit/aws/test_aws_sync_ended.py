"""Killed while S3 completes an upload: the next run finds an upload that completes meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Aws
from peagle.weights.bucket import Bucket
from peagle.weights.sync import sync_weights
from tests.unit.aws.syncing import (
    COPIED,
    PART,
    Calls,
    folder_weights,
    plan_for,
    shard,
    stored,
    sync,
    unfinished,
    use_small_parts,
    write_model,
)

LARGE = 4 * PART
KEY = "pair/target/model.safetensors"


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose weights are uploaded in five parts."""
    use_small_parts(monkeypatch)
    return write_model(tmp_path / "target", LARGE)


@pytest.fixture
def calls(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(aws, monkeypatch)


def _killed_at_the_end(aws: Aws, target: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All parts are there; the call that completes them is still in flight. What comes
    back lets S3 do that call."""
    calls: list[tuple[Any, ...]] = []
    original = Bucket.complete

    def lost(bucket: Bucket, *given: Any) -> None:
        calls.append((bucket, *given))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "complete", lost)
        with pytest.raises(KeyboardInterrupt):
            sync(aws, target=folder_weights(target))
    return lambda: original(*calls.pop()) if calls else None


@pytest.mark.thorough
@pytest.mark.parametrize("operation", ["uploaded_parts", "sizes"])
def test_an_upload_that_completes_late_is_not_sent_again(
    aws: Aws, target: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Between two calls: before its parts are listed, or after the objects were."""
    arrives = _killed_at_the_end(aws, target, monkeypatch)
    planned = plan_for(aws, target=folder_weights(target))
    look_at_s3 = getattr(Bucket, operation)
    after = operation == "sizes"

    def meanwhile(bucket: Bucket, *given: Any) -> Any:
        if not after:
            arrives()
        found = look_at_s3(bucket, *given)
        if after:
            arrives()
        return found

    monkeypatch.setattr(Bucket, operation, meanwhile)
    if after:  # S3 lists no upload that is about to end
        monkeypatch.setattr(Bucket, "unfinished_uploads", lambda bucket, prefix: {})

    outcome = sync_weights(aws, planned, COPIED, lambda moment: None)

    assert calls.count("upload_part") == 5
    assert outcome.moved == 0
    assert outcome.manifest["target"].complete
    assert stored(aws, KEY) == (target / "model.safetensors").read_bytes()


@pytest.mark.thorough
def test_an_upload_of_other_bytes_that_completes_late_is_replaced(
    aws: Aws, target: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrives = _killed_at_the_end(aws, target, monkeypatch)
    (target / "model.safetensors").write_bytes(shard("w", LARGE, seed=7))
    planned = plan_for(aws, target=folder_weights(target))
    kept = Bucket.uploaded_parts

    def meanwhile(bucket: Bucket, key: str, upload: str) -> Any:
        arrives()
        return kept(bucket, key, upload)

    monkeypatch.setattr(Bucket, "uploaded_parts", meanwhile)

    sync_weights(aws, planned, COPIED, lambda moment: None)

    assert calls.count("upload_part") == 10
    assert stored(aws, KEY) == (target / "model.safetensors").read_bytes()


@pytest.mark.thorough
def test_parts_of_other_bytes_are_sent_again_and_older_uploads_end(
    aws: Aws, target: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest of two unfinished uploads has one part of these bytes; one differs, one is cut."""
    _killed_at_the_end(aws, target, monkeypatch)
    content = (target / "model.safetensors").read_bytes()
    bucket = Bucket(aws, "models")
    upload = bucket.begin(KEY, {})
    bodies = (content[:PART], b"x" * PART, content[2 * PART : 3 * PART - 1])
    for number, body in enumerate(bodies, 1):
        bucket.call("upload_part", Key=KEY, UploadId=upload, PartNumber=number, Body=body,
                    ChecksumAlgorithm="SHA256")  # fmt: skip
    calls.made.clear()

    sync(aws, target=folder_weights(target))

    assert calls.count("upload_part") == 4
    assert stored(aws, KEY) == content
    assert unfinished(aws) == []
