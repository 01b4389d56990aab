"""Models in folders, and an S3 that counts its calls, for the tests of `peagle weights`."""

import functools
import json
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name
from s3transfer.utils import ChunksizeAdjuster

from peagle.aws.client import Aws
from peagle.planning.plan import Weights
from peagle.weights.layout import WeightsPrefix, weights_prefix
from peagle.weights.sync import PairWeights, SyncPlan, SyncResult, plan_sync, sync_weights

PART = 1024 * 1024
"""The part size in these tests, instead of S3's smallest one of 5 MiB: less to hash."""
CONFIG = b'{"hidden_size": 4, "vocab_size": 8}'
PLACE = weights_prefix("s3://models/pair")
NAME = "acme/chat+head"


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
    """Upload and copy in parts of ``PART`` bytes."""
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART)
    monkeypatch.setattr(ChunksizeAdjuster.__init__, "__defaults__", (2**33, PART, 10_000))
    monkeypatch.setattr("peagle.aws.s3.PART_BYTES", PART)
    monkeypatch.setattr("peagle.aws.s3.COPY_PART_BYTES", PART)


def write_model(folder: Path, size: int = 1000, seed: int = 0) -> Path:
    """A model of one file, with config and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "tokenizer.json").write_bytes(b"{}")
    (folder / "model.safetensors").write_bytes(shard("w", size, seed))
    return folder


class Calls:
    """Records all calls of S3, also those of boto3's transfer manager; ``before`` is a hook."""

    def __init__(self, aws: Aws) -> None:
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.before: Callable[[str, dict[str, Any]], object] = lambda operation, parameters: None
        aws.client("s3").meta.events.register("provide-client-params.s3", self._record)

    def _record(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        operation = xform_name(model.name)
        self.before(operation, params)
        self.made.append((operation, dict(params)))

    def forget(self) -> None:
        """Forget the calls and the hook."""
        self.made.clear()
        self.before = lambda operation, parameters: None

    def count(self, *operations: str) -> int:
        """The number of these calls."""
        return sum(operation in operations for operation, _ in self.made)

    def keys(self, operation: str) -> list[str]:
        """The keys of these calls."""
        return [params["Key"] for made, params in self.made if made == operation]


def folder_weights(folder: Path) -> Weights:
    return Weights(kind="directory", location=str(folder), engine_path=str(folder))


def pair_of(weights: Mapping[str, Weights], name: str = NAME) -> PairWeights:
    return PairWeights(weights, name)


def plan_for(aws: Aws, place: WeightsPrefix = PLACE, **weights: Weights) -> SyncPlan:
    """The plan of a sync of these weights."""
    return plan_sync(aws, place, pair_of(weights))


def apply(aws: Aws, plan: SyncPlan, **options: Any) -> SyncResult:
    """Apply a plan without showing its progress."""
    return sync_weights(aws, plan, lambda progress: None, **options)


def sync(aws: Aws, place: WeightsPrefix = PLACE, **weights: Weights) -> SyncResult:
    """Sync these weights."""
    return apply(aws, plan_for(aws, place, **weights))


def put(aws: Aws, key: str, content: bytes = b"x", bucket: str = "models") -> None:
    """Store an object."""
    aws.call("s3", "put_object", Bucket=bucket, Key=key, Body=content)


def stored(aws: Aws, key: str, bucket: str = "models") -> bytes:
    """The bytes of an object."""
    with aws.call("s3", "get_object", Bucket=bucket, Key=key)["Body"] as body:
        content: bytes = body.read()
    return content


def keys(aws: Aws, bucket: str = "models") -> set[str]:
    """All keys."""
    objects = aws.items("s3", "list_objects_v2", "Contents", Bucket=bucket)
    return {entry["Key"] for entry in objects}


def unfinished(aws: Aws) -> list[str]:
    """Keys of unfinished uploads."""
    uploads = aws.items("s3", "list_multipart_uploads", "Uploads", Bucket="models")
    return [entry["Key"] for entry in uploads]


def manifest(aws: Aws) -> Any:
    """The content of peagle-weights.json."""
    return json.loads(stored(aws, PLACE.manifest_key))
