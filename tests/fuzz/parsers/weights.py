"""Weights in S3: what lies at a prefix, beside them, and in the lock."""

from __future__ import annotations

import base64
import io
from datetime import UTC, datetime
from typing import Any

from peagle.aws.errors import Missing
from peagle.aws.s3 import PART_SIZE
from peagle.errors import PeagleError
from peagle.weights.bucket import Bucket, read_lock
from peagle.weights.inspect import inspect_weights
from peagle.weights.layout import WeightsPrefix, weights_prefix
from peagle.weights.mounted import archive_sha256s
from tests.fuzz.inputs import encoded
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.aws import Answers

PLACE = weights_prefix("s3://bucket/peagle/")
SHA256 = base64.b64encode(b"x" * 32).decode()
KEY = "a" * 32
MANIFEST = {
    "format": 1,
    "folders": {
        "target": {
            "source": "openai/gpt-oss-20b@main",
            "complete": True,
            "pair": "gpt-oss-20b",
            "files": {
                "config.json": {"size": 10, "sha256": "a" * 64, "checksum": f"SHA256:{SHA256}"}
            },
        },
        "drafter": {
            "source": "x/y",
            "complete": False,
            "pair": "gpt-oss-20b+p-eagle",
            "given": True,
            "parallel_drafting": True,
            "files": {"model.safetensors": {"size": 5}},
        },
    },
}
WARM = {
    "size": 3,
    "made": "2026-11-01",
    "seconds_cold": 60.5,
    "subject": {
        "pair": {"target": (b"x" * 32).hex()},
        "device": {"gpus": ["H200 (9.0)"], "used": 1},
        "engine": {"SM_VLLM_SPECULATIVE_CONFIG": '{"num_speculative_tokens": 5}'},
    },
}
LOCK = {"id": "b" * 32, "holder": "me on here copies since now", "renewals": 1}
HEAD = {"ETag": '"abc-2"', "ContentLength": 10, "ChecksumSHA256": f"{SHA256}-2",
        "ChecksumType": "COMPOSITE", "Metadata": {"peagle-part-size": "5"}}  # fmt: skip
OBJECTS = [
    {"Key": "peagle/peagle-weights.json", "Size": 300},
    {"Key": "peagle/target/config.json", "Size": 10},
    {"Key": f"peagle/target/warm/{KEY}.json", "Size": 200},
    {"Key": f"peagle/target/warm/{KEY}.tar.gz", "Size": 3},
    {"Key": "peagle/other", "Size": 1},
]


class Objects(Answers):
    """A bucket in which each small object has that content."""

    def __init__(self, contents: dict[str, bytes], **answers: Any) -> None:
        super().__init__(**answers)
        self.contents = contents

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        if operation != "get_object":
            return super().call(service, operation, **parameters)
        for end, content in self.contents.items():
            if parameters["Key"].endswith(end):
                return {"Body": io.BytesIO(content), "LastModified": datetime.now(UTC),
                        "ETag": '"a"', "ResponseMetadata": {"HTTPHeaders": {}}}  # fmt: skip
        raise Missing("get_object: no such key")


def _prefix(case: tuple[bytes, bytes, Any, Any]) -> None:
    manifest, warm, head, objects = case
    aws = Objects(
        {"weights.json": manifest, f"{KEY}.json": warm},
        head_bucket={}, head_object=head, list_objects_v2=objects, list_multipart_uploads=[],
    )  # fmt: skip
    inspect_weights(aws, PLACE)
    archive_sha256s(aws, WeightsPrefix(PLACE.bucket, f"{PLACE.key}target/"))


def _lock(content: bytes) -> None:
    read_lock(Bucket(Objects({"": content}), "bucket"), PLACE)


def _parts(text: str) -> None:
    head = Bucket(Objects({}, head_object=HEAD | {"Metadata": {PART_SIZE: text}}), "b").head("k")
    assert head is not None


PARSERS = (
    Parser(
        "weights-prefix",
        _prefix,
        [(encoded(MANIFEST), encoded(WARM), HEAD, OBJECTS)],
        PeagleError,
        typed=True,
    ),
    Parser("weights-lock", _lock, [encoded(LOCK)], PeagleError),
    Parser("part-size", _parts, ["8388608"], PeagleError),
)
