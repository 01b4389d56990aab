"""Prefixes one level off, and parts of an interrupted sync."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Aws
from peagle.errors import NotFound
from peagle.weights.inspect import inspect_weights
from peagle.weights.layout import weights_prefix
from peagle.weights.sync import sync_weights
from peagle.weights.transfer import SyncProgress
from tests.unit.aws.syncing import (
    COPIED,
    PART,
    PLACE,
    Calls,
    folder_weights,
    plan_for,
    sync,
    use_small_parts,
    write_model,
)

KEY = "pair/target/model.safetensors"


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose weights are uploaded in five parts."""
    use_small_parts(monkeypatch)
    return write_model(tmp_path / "target", 4 * PART)


@pytest.mark.thorough
@pytest.mark.parametrize("uri", ["s3://models", "s3://models/pair/target"])
def test_a_prefix_one_level_off_is_refused_with_the_right_one(
    aws: Aws, tmp_path: Path, uri: str
) -> None:
    weights = folder_weights(write_model(tmp_path / "target"))
    sync(aws, target=weights)

    with pytest.raises(NotFound) as missing:
        inspect_weights(aws, weights_prefix(uri))
    (finding,) = plan_for(aws, weights_prefix(uri), target=weights).findings

    assert missing.value.command == ("peagle", "weights", "list", "s3://models/pair/")
    assert finding.level == "error"
    assert finding.command == ("peagle", "weights", "list", "s3://models/pair/")


@pytest.mark.thorough
def test_a_pair_below_another_is_named_and_only_loose_objects_may_be_removed(
    aws: Aws, tmp_path: Path
) -> None:
    weights = folder_weights(write_model(tmp_path / "target"))
    sync(aws, target=weights)
    sync(aws, weights_prefix("s3://models/pair/other"), target=weights)
    aws.call("s3", "put_object", Bucket="models", Key="pair/zebra.txt", Body=b"x")

    below, loose = inspect_weights(aws, PLACE).findings

    assert below.command == ("peagle", "weights", "list", "s3://models/pair/other/")
    assert "1 other object below the prefix" in loose.message
    assert loose.command == ("aws", "s3", "rm", "s3://models/pair/zebra.txt")


def _interrupted(aws: Aws, target: Path, monkeypatch: pytest.MonkeyPatch) -> list[SyncProgress]:
    """It ends with all parts but the first uploaded. The parts are not listed meanwhile:
    moto computes a part's ETag at its first use, and wrongly for concurrent calls."""
    moments: list[SyncProgress] = []

    with monkeypatch.context() as patched:
        calls = Calls(aws, patched)

        def before(operation: str, given: dict[str, Any]) -> None:
            if operation == "upload_part" and given["PartNumber"] == 1:
                until = time.monotonic() + 30
                while calls.answered.count("upload_part") < 4 and time.monotonic() < until:
                    time.sleep(0.01)
                raise KeyboardInterrupt

        calls.before = before
        with pytest.raises(KeyboardInterrupt):
            sync_weights(aws, plan_for(aws, target=folder_weights(target)), COPIED, moments.append)
    return moments


@pytest.mark.thorough
def test_uploaded_parts_count_as_done_in_plan_and_progress(
    aws: Aws, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _interrupted(aws, target, monkeypatch)[-1]
    planned = plan_for(aws, target=folder_weights(target))
    listed = inspect_weights(aws, PLACE)
    again: list[SyncProgress] = []

    sync_weights(aws, planned, COPIED, again.append)

    total = planned.size
    assert left.done == total - PART
    present = sum(item.size for item in planned.same_size)
    assert planned.partial_bytes + present == left.done
    assert [moment.done for moment in again][:1] == [left.done]
    assert all(left.done <= moment.done <= total for moment in again)
    assert (again[-1].done, again[-1].moved) == (total, PART)
    assert listed.pairs == ("acme/chat+head",)
    assert shlex.join(listed.finish) == (
        "peagle weights sync acme/chat+head s3://models/pair/ --target-only"
    )


@pytest.mark.thorough
def test_a_complete_pair_has_nothing_to_finish(aws: Aws, tmp_path: Path) -> None:
    sync(aws, target=folder_weights(write_model(tmp_path / "target")))

    assert inspect_weights(aws, PLACE).finish == ()
