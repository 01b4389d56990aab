"""Models in folders, and an S3 that counts its calls, for the tests of `peagle weights`."""

from __future__ import annotations

import functools
import json
import random
import struct
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Aws
from peagle.planning.plan import Weights
from peagle.weights.layout import WeightsPrefix, weights_prefix
from peagle.weights.manifest import SyncedPair
from peagle.weights.sync import SyncPlan, SyncResult, plan_sync, sync_weights
from peagle.weights.transfer import SyncProgress

PART = 1024 * 1024
"""The part size in these tests, instead of S3's smallest one of 5 MiB: less to hash."""
CONFIG = b'{"hidden_size": 4, "vocab_size": 8}'
PLACE = weights_prefix("s3://models/pair")
COPIED = SyncedPair("acme/chat+head", parallel_drafting=True)


@functools.lru_cache(maxsize=8)
def shard(tensor: str, size: int, seed: int = 0) -> bytes:
    """A safetensors file with one tensor of ``size`` different bytes."""
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({tensor: entry}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(size)


def index_of(files: dict[str, str]) -> bytes:
    """An index that maps tensors to files."""
    return json.dumps({"weight_map": files}).encode()


def use_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload in parts of ``PART`` bytes."""
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART)
    monkeypatch.setattr("peagle.weights.transfer.PART_BYTES", PART)


def write_model(folder: Path, size: int = 1000, seed: int = 0) -> Path:
    """A model of one file, with config and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "tokenizer.json").write_bytes(b"{}")
    (folder / "model.safetensors").write_bytes(shard("w", size, seed))
    return folder


class Calls:
    """Records all calls of S3 and those that succeeded; ``before`` is a hook."""

    def __init__(self, aws: Aws, monkeypatch: Any) -> None:
        self.made: list[tuple[str, str]] = []
        self.answered: list[str] = []
        self.before: Callable[[str, dict[str, Any]], None] = lambda operation, given: None
        self._lock = threading.Lock()
        original = aws.call

        def call(service: str, operation: str, **given: Any) -> dict[str, Any]:
            self.before(operation, given)
            with self._lock:
                self.made.append((operation, str(given.get("Key", ""))))
            answer = original(service, operation, **given)
            with self._lock:
                self.answered.append(operation)
            return answer

        monkeypatch.setattr(aws, "call", call)

    def count(self, *operations: str) -> int:
        """The number of these calls."""
        counted = Counter(operation for operation, _ in self.made)
        return sum(counted[operation] for operation in operations)

    def keys(self, operation: str) -> list[str]:
        """The keys of these calls."""
        return [key for made, key in self.made if made == operation]


def folder_weights(folder: Path) -> Weights:
    return Weights(kind="directory", location=str(folder), engine_path=str(folder))


def plan_for(aws: Aws, place: WeightsPrefix = PLACE, **weights: Weights) -> SyncPlan:
    """The plan of a sync of these weights."""
    return plan_sync(aws, place, weights)


def sync(aws: Aws, place: WeightsPrefix = PLACE, **weights: Weights) -> SyncResult:
    """Sync these weights."""
    moments: list[SyncProgress] = []
    return sync_weights(aws, plan_for(aws, place, **weights), COPIED, moments.append)


def stored(aws: Aws, key: str, bucket: str = "models") -> bytes:
    """The bytes of an object."""
    with aws.call("s3", "get_object", Bucket=bucket, Key=key)["Body"] as body:
        content: bytes = body.read()
    return content


def keys(aws: Aws, bucket: str = "models") -> set[str]:
    """All keys."""
    found = aws.items("s3", "list_objects_v2", "Contents", Bucket=bucket)
    return {entry["Key"] for entry in found}


def unfinished(aws: Aws) -> list[str]:
    """Keys of unfinished uploads."""
    found = aws.items("s3", "list_multipart_uploads", "Uploads", Bucket="models")
    return [entry["Key"] for entry in found]


def manifest(aws: Aws) -> Any:
    """The content of peagle-weights.json."""
    return json.loads(stored(aws, PLACE.manifest_key))
