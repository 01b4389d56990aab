"""Places of weights, as they are written on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.aws.client import Aws, Keys, connect
from peagle.aws.s3 import S3Source
from peagle.checkpoints import FolderSource
from peagle.checkpoints.hub import HubSource
from peagle.errors import CheckpointError, NotAFolder, UserError
from peagle.weights.layout import checkpoint_at, own_head, source_of, weights_at, weights_prefix
from tests.support import raises_code
from tests.unit.checkpoints.files import CONFIG, ONE


def aws() -> Aws:
    return connect("us-east-1", endpoint_url="http://127.0.0.1:9", keys=Keys("key", "secret"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home and working directory of a user with a model at ``a/b``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = tmp_path / "a" / "b"
    made.mkdir(parents=True)
    (made / "config.json").write_bytes(CONFIG)
    (made / "model.safetensors").write_bytes(ONE)
    return made


@pytest.mark.parametrize(
    ("location", "kind", "shown"),
    [
        ("a/b", FolderSource, "a/b"),
        ("./a/b/", FolderSource, "a/b"),
        ("a/c", HubSource, "a/c"),
        ("a/b@main", HubSource, "a/b@main"),
        ("s3://bucket/a/b/", S3Source, "s3://bucket/a/b"),
    ],
)
def test_kind_of_a_location_follows_from_its_form(
    location: str, kind: type, shown: str, folder: Path
) -> None:
    source = source_of(location, aws)
    assert isinstance(source, kind)
    assert source.location == shown


@pytest.mark.parametrize("location", ["a/b", "./a/b", "~/a/b", "a/../a/b/"])
def test_a_folder_is_read(location: str, folder: Path) -> None:
    read = checkpoint_at(location)
    assert read.config["hidden_size"] == 4
    assert read.tensors is not None
    assert checkpoint_at(location, config_only=True).tensors is None


@pytest.mark.parametrize("location", ["", "word", "a b/c", "a/b/c", "-x/y", "http://x/y"])
def test_text_that_is_no_location_is_an_error(location: str, folder: Path) -> None:
    with raises_code("invalid-location", UserError) as refused:
        source_of(location, aws)
    assert "./folder" in refused.value.fix


def test_s3_location_needs_a_connection(folder: Path) -> None:
    with raises_code("invalid-location", UserError) as caught:
        source_of("s3://bucket/x")
    assert caught.value.fix == "specify a folder"


def test_missing_folder_is_an_error(folder: Path) -> None:
    gone = folder.parent / "gone"
    for read in (checkpoint_at, own_head):
        with raises_code("no-such-folder", CheckpointError) as caught:
            read("./a/gone")
        assert str(gone) in caught.value.message


@pytest.mark.parametrize("location", ["a/b/config.json", "./a/b/config.json"])
def test_a_file_of_a_checkpoint_is_not_a_location(location: str, folder: Path) -> None:
    for read in (checkpoint_at, own_head):
        with pytest.raises(NotAFolder) as caught:
            read(location)
        assert "a/b/config.json" in caught.value.message


def test_an_s3_uri_with_one_slash_is_shown_with_two(folder: Path) -> None:
    for read in (source_of, weights_at, weights_prefix):
        with pytest.raises(UserError) as caught:
            read("s3:/bucket/x")
        assert "s3://bucket/x" in caught.value.fix


def test_an_own_head_that_is_elsewhere_is_not_read(folder: Path) -> None:
    for place in ("s3://bucket/head", "org/head", "p-eagle"):
        assert own_head(place) == {"drafter": place}


def test_an_own_head_in_a_folder_is_read(folder: Path) -> None:
    options = own_head("a/b")
    assert options["drafter"] == str(folder)
    assert options["drafter_checkpoint"].config == {"hidden_size": 4, "vocab_size": 8}
    assert list(options["drafter_checkpoint"].tensors) == ["fc.weight"]
    (folder / "model.safetensors").unlink()
    with raises_code("weights-missing", UserError) as caught:
        own_head("a/b")
    assert "*.safetensors" in caught.value.message
    with raises_code("invalid-s3-uri", UserError) as caught:
        own_head("s3://MyBucket/head")
    assert "mybucket" in caught.value.fix
