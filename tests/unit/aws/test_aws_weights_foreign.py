"""A foreign peagle-weights.json: damaged, of another version, with control characters."""

from __future__ import annotations

import json
from typing import cast

import pytest

from peagle.errors import UserError
from peagle.weights.bucket import Bucket
from peagle.weights.layout import weights_prefix
from peagle.weights.manifest import read_manifest
from tests.support import raises_code

PLACE = weights_prefix("s3://my-models/tiny/")
FOLDER = {"source": "org/name", "complete": True, "files": {"config.json": {"size": 3}}}


class _Bucket:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, key: str) -> bytes:
        assert key == "tiny/peagle-weights.json"
        return self.content


def _bucket(document: object) -> Bucket:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return cast(Bucket, _Bucket(content))


def test_a_manifest_round_trips() -> None:
    manifest = read_manifest(_bucket({"format": 1, "folders": {"target": FOLDER}}), PLACE)
    assert manifest["target"].files["config.json"].size == 3


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"[" * 100_000,
        [],
        {"format": 1},
        {"format": 2, "folders": {"target": FOLDER}},
        {"format": 1, "folders": ["target"]},
        {"format": 1, "folders": {"target": "whole"}},
        {"format": 1, "folders": {"target": {**FOLDER, "files": ["config.json"]}}},
        {"format": 1, "folders": {"target": {**FOLDER, "files": {"a": {"size": "3"}}}}},
        {"format": 1, "folders": {"target": {**FOLDER, "files": {"a": {"size": -3}}}}},
        {"format": 1, "folders": {"target": {**FOLDER, "files": {"a": {"bytes": 3}}}}},
    ],
    ids=lambda document: str(document)[:60],
)
def test_a_damaged_manifest_is_an_error(document: object) -> None:
    with raises_code("manifest-damaged", UserError):
        read_manifest(_bucket(document), PLACE)


def test_control_characters_in_a_manifest_are_removed() -> None:
    hostile = {**FOLDER, "source": "org/\x1b[2Jname", "pair": "a\rb"}
    folder = read_manifest(_bucket({"format": 1, "folders": {"target": hostile}}), PLACE)["target"]
    assert (folder.source, folder.pair) == ("org/[2Jname", "ab")
