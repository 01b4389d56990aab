"""Weights in S3: which files are copied, valid prefixes, manifests, and one writer at a time."""

import json
from pathlib import Path

import pytest

from peagle.aws.client import Aws
from peagle.errors import UserError
from peagle.weights.bucket import (
    Bucket,
    FileEntry,
    ObjectInfo,
    read_manifest,
)
from peagle.weights.inspect import _file_status
from peagle.weights.layout import unknown_objects, weights_prefix
from peagle.weights.sync import open_source
from tests.packed import KEY
from tests.support import raises_code
from tests.unit.aws.syncing import (
    PLACE,
    folder_weights,
    put,
    write_model,
)

FOLDER = {"source": "org/name", "complete": True, "files": {"config.json": {"size": 3}}}


@pytest.fixture
def bucket(aws: Aws) -> Bucket:
    return Bucket(aws, "models")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target")


def copied_names(folder: Path) -> set[str]:
    source = open_source(folder_weights(folder), pytest.fail)
    return set(source.files)


def test_a_snapshot_of_the_hubs_cache_is_copied_completely(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    write_model(blobs)
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (snapshot / name).symlink_to(Path("../../blobs") / name)
    assert copied_names(snapshot) == {"config.json", "tokenizer.json", "model.safetensors"}


@pytest.mark.parametrize(
    "uri", ["models/a", "s3://a", "s3://models/a b", "s3://models/a%20", "s3://models//a",
            "s3://models/" + "a" * 1024, "s3://Models/a"],
)  # fmt: skip
def test_a_uri_that_sagemaker_cannot_mount_is_refused(uri: str) -> None:
    with raises_code("invalid-s3-uri", UserError):
        weights_prefix(uri)


@pytest.mark.parametrize(("present", "untouched", "codes"), [
    ({"pair/target/config.json": 1, "pair/peagle-weights.json": 1}, (), []),
    ({"pair/target/": 0, "pair/target/config.json": 1}, (), ["folder-keys"]),
    ({"pair/target/old.safetensors": 5}, (), ["foreign-objects"]),
    ({"pair/drafter/config.json": 5}, (), ["foreign-objects"]),
    ({"pair/drafter/config.json": 5}, ("drafter",), []),
    ({f"pair/warm/{KEY}.tar.gz": 5, f"pair/warm/{KEY}.json": 5}, (), []),
    ({f"pair/warm/deeper/{KEY}.json": 5}, (), ["foreign-objects"]),
    ({f"pair/target/warm/{KEY}.tar.gz": 1, f"pair/target/warm/{KEY}.json": 1}, (), []),
    ({"pair/warm/": 0}, (), ["folder-keys"]),
])  # fmt: skip
def test_what_keeps_sagemaker_from_mounting_is_an_error(
    present: dict[str, int], untouched: tuple[str, ...], codes: list[str]
) -> None:
    findings = unknown_objects(PLACE, present, {"pair/target/config.json"}, untouched)
    assert [finding.code for finding in findings] == codes


@pytest.mark.parametrize("document", [
    b"{",
    b"[" * 100_000,
    [],
    {"format": 2, "folders": {"target": FOLDER}},
    {"format": 1, "folders": {"target": "whole"}},
    {"format": 1, "folders": {"target": {**FOLDER, "files": {"a": {"size": "3"}}}}},
    {"format": 1, "folders": {"target": {**FOLDER, "files": {"a": {"size": -3}}}}},
    {"format": 1, "folders": {"target": {**FOLDER, "files": {"a": {"bytes": 3}}}}},
], ids=lambda document: str(document)[:60])  # fmt: skip
def test_a_damaged_manifest_is_an_error(aws: Aws, bucket: Bucket, document: object) -> None:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    put(aws, PLACE.manifest_key, content)
    with raises_code("manifest-damaged", UserError):
        read_manifest(bucket, PLACE)


def test_control_characters_in_a_manifest_are_removed(aws: Aws, bucket: Bucket) -> None:
    hostile = {**FOLDER, "source": "org/\x1b[2Jname", "pair": "a\rb"}
    document = {"format": 1, "folders": {"target": hostile}}
    put(aws, PLACE.manifest_key, json.dumps(document).encode())
    folder = read_manifest(bucket, PLACE)["target"]
    assert (folder.source, folder.pair) == ("org/[2Jname", "ab")
    assert folder.files["config.json"].size == 3


SHA, OTHER_SHA = "SHA256:aaaa", "SHA256:bbbb"


@pytest.mark.parametrize(("planned", "size", "checksum", "state"), [
    (SHA, None, "", "missing"),
    (SHA, 3, SHA, "whole"),
    (SHA, 3, OTHER_SHA, "differs"),
    (SHA, 3, "", "differs"),
    (SHA, 4, SHA, "differs"),
    (None, 3, SHA, "unchecked"),
    (None, 4, SHA, "differs"),
])  # fmt: skip
def test_the_state_of_a_file_is_that_of_its_size_and_checksum(
    planned: str | None, size: int | None, checksum: str, state: str
) -> None:
    head = None if size is None else ObjectInfo(size, "etag", checksum, None, {})
    status = _file_status("a", FileEntry(3, checksum=planned), head)
    assert (status.state, status.bytes, status.bytes_there) == (state, 3, size or 0)
    assert status.checksum == (checksum or None)
