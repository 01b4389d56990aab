"""Locations that a user names: folders, prefixes in S3, ids of the Hub, and other words."""

from pathlib import Path

import pytest

from peagle.errors import PeagleError, UserError
from peagle.s3uri import PREFIX_FORMAT
from peagle.weights.layout import PARTS, own_head, weights_at, weights_prefix
from tests.support import raises_code
from tests.unit.aws.syncing import write_model

HUB = ("hub", "org/name", None)


@pytest.mark.parametrize(("location", "kind", "place", "revision"), [
    ("org/name", *HUB),
    ("org/name@main", "hub", "org/name", "main"),
    ("s3://bucket/a/b", "s3", "s3://bucket/a/b/", None),
    ("./model", "directory", "model", None),
    ("there/model", "directory", "there/model", None),
    ("away/model", "hub", "away/model", None),
])  # fmt: skip
def test_weights_are_a_folder_a_prefix_or_an_id(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    location: str,
    kind: str,
    place: str,
    revision: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there" / "model").mkdir(parents=True)
    weights = weights_at(location)
    expected = str(tmp_path / place) if kind == "directory" else place
    assert (weights.kind, weights.location, weights.revision) == (kind, expected, revision)


@pytest.mark.parametrize(("location", "fix"), [
    ("a word", "use ./folder, s3://bucket/prefix or org/name"),
    ("model", "there is a folder ./model: write ./model"),
])  # fmt: skip
def test_another_word_says_how_to_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, fix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").touch()
    with raises_code("invalid-location", UserError) as refused:
        weights_at(location)
    assert refused.value.fix == fix


@pytest.mark.parametrize("uri", ["s3:/bucket/a", "S3://bucket/a", "s3://Bucket/a"])
def test_an_invalid_prefix_says_how_to_write_it(uri: str) -> None:
    with raises_code("invalid-s3-uri", UserError) as refused:
        weights_prefix(uri)
    assert refused.value.fix == PREFIX_FORMAT


@pytest.mark.parametrize(
    ("key", "part", "above"),
    [
        ("pair/target/", "target", "pair/"), ("drafter/", "drafter", ""),
        ("pair/mytarget/", "", "pair/mytarget/"), ("pair/", "", "pair/"),
    ],
)  # fmt: skip
def test_a_folder_of_a_pair_is_known_by_its_name(key: str, part: str, above: str) -> None:
    prefix = weights_prefix(f"s3://bucket/{key}")
    assert (prefix.in_pair[0], prefix.in_pair[1].key) == (part, above)
    assert [place.key for place in prefix.mountable_prefixes] == [
        key, *(f"{key}{name}/" for name in PARTS)
    ]  # fmt: skip


def test_a_head_in_a_folder_is_read_and_other_formats_are_left_to_a_finding(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "head")
    read = own_head(str(folder))
    assert read["drafter"] == str(folder)
    assert read["drafter_checkpoint"].tensors is not None
    (folder / "model.safetensors").unlink()
    with raises_code("weights-missing", UserError):
        own_head(str(folder))
    (folder / "pytorch_model.bin").touch()
    assert own_head(str(folder))["drafter_checkpoint"].other_weights == ("pytorch_model.bin",)


def test_a_word_is_a_drafter_of_the_catalogue_and_a_location_needs_a_connection() -> None:
    assert own_head("p-eagle", pytest.fail) == {"drafter": "p-eagle"}
    assert own_head("org/name") == {"drafter": "org/name"}
    with pytest.raises(PeagleError):
        own_head("s3://Bucket/a")
