"""Weights from S3 to the engine's folder, as SageMaker downloads them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest
from moto.s3.models import s3_backends

from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.launch import ModelDataError, download, weight_bytes
from peagle.sandbox.launch_spec import ModelData

MODEL = PurePosixPath("model")
BUCKET = "models"

Upload = Callable[..., None]
"""Puts these files at a prefix of ``BUCKET``, or of another new one."""


@pytest.fixture
def upload() -> Iterator[Upload]:
    s3 = s3_backends[ACCOUNT]["aws"]
    s3.create_bucket(BUCKET, "us-east-1")

    def put(prefix: str, files: dict[str, bytes], bucket: str = BUCKET) -> None:
        if bucket not in s3.buckets:
            s3.create_bucket(bucket, "us-east-1")
        for name, content in files.items():
            s3.put_object(bucket, f"{prefix}{name}", content)

    yield put
    s3.reset()


def uri(prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}"


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder with their contents."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def archive(**files: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def test_a_prefix_becomes_a_folder(upload: Upload, tmp_path: Path) -> None:
    files = {"target/a.safetensors": b"12345", "target/ü b.json": b"{}", "drafter/c": b""}
    upload("pair/", files)
    upload("pair-of-others/", {"d": b""})
    download(ModelData(uri("pair/"), MODEL), tmp_path, "us-east-1")
    assert contents(tmp_path / "model") == files
    assert weight_bytes(tmp_path) == 5


def test_a_channel_has_its_own_folder(upload: Upload, tmp_path: Path) -> None:
    upload("head/", {"config.json": b"{}"})
    into = PurePosixPath("additional-model-data-sources/drafter")
    download(ModelData(uri("head/"), into), tmp_path, "eu-west-1")
    assert contents(tmp_path) == {"additional-model-data-sources/drafter/config.json": b"{}"}


def test_an_archive_is_unpacked(upload: Upload, tmp_path: Path) -> None:
    upload("", {"model.tar.gz": archive(weights=b"w")})
    download(ModelData(uri("model.tar.gz"), MODEL, archive=True), tmp_path, "us-east-1")
    assert contents(tmp_path / "model") == {"weights": b"w"}


def test_one_object_is_one_file(upload: Upload, tmp_path: Path) -> None:
    upload("", {"alone/weights.gguf": b"w"})
    download(ModelData(uri("alone/weights.gguf"), MODEL, single=True), tmp_path, "us-east-1")
    assert contents(tmp_path / "model") == {"weights.gguf": b"w"}


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "no object exists below"),
        ({"bad/": b""}, "is an empty folder"),
        ({"bad/target/": b"", "bad/target/a": b""}, "is an empty folder"),
        ({"bad/a": b"", "bad/a/b": b""}, "is both a file and a folder"),
        ({"bad/../../outside": b""}, "does not name a file below"),
        ({"bad//absolute": b""}, "does not name a file below"),
    ],
)
def test_keys_that_fail_a_deployment_are_refused(
    upload: Upload, tmp_path: Path, files: dict[str, bytes], why: str
) -> None:
    upload("", files, bucket="bad")
    with pytest.raises(ModelDataError, match=why):
        download(ModelData("s3://bad/bad/", MODEL), tmp_path / "ml", "us-east-1")
    assert [path.name for path in tmp_path.iterdir()] == ["ml"]


@pytest.mark.parametrize(
    "data",
    [
        ModelData("s3://no-such-bucket/a/", MODEL),
        ModelData(uri("nothing.tar.gz"), MODEL, archive=True),
        ModelData(uri("tiny/config.json"), MODEL, archive=True),
        ModelData(uri("nothing"), MODEL, single=True),
    ],
)
def test_missing_objects_and_invalid_archives_are_refused(
    upload: Upload, data: ModelData, tmp_path: Path
) -> None:
    upload("tiny/", {"config.json": b"{}"})
    with pytest.raises(ModelDataError, match=data.uri):
        download(data, tmp_path, "us-east-1")


def test_an_archive_cannot_write_outside_its_folder(upload: Upload, tmp_path: Path) -> None:
    upload("", {"evil.tar.gz": archive(**{"../../outside": b"x"})})
    with pytest.raises(ModelDataError):
        download(ModelData(uri("evil.tar.gz"), MODEL, archive=True), tmp_path / "ml", "us-east-1")
    assert contents(tmp_path) == {}
