"""Links in a folder to copy: within it, or into the blobs of the Hub's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.checkpoints.files import check_links, follow_link
from peagle.errors import UserError
from peagle_serve.checkpoint import link_homes
from tests.support import raises_code

COPY = "replace the link by a copy of the file"
"""The fix of a link that leads out of its folder."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "inner").mkdir(parents=True)
    (made / "config.json").write_text("{}")
    return made


def follow(path: Path) -> Path:
    return follow_link(path, link_homes(path.parent))


@pytest.mark.parametrize(
    ("target", "fix"),
    [
        ("/etc/passwd", COPY),
        ("../secret", COPY),
        ("../model-2/secret", COPY),
        ("/etc", COPY),
        ("../gone", COPY),
        ("gone", "copy the file there, or remove the link"),
        ("vocab.json", "copy the file there, or remove the link"),
    ],
)
def test_a_broken_link_or_one_out_of_the_folder_is_refused(
    folder: Path, target: str, fix: str
) -> None:
    (folder.parent / "secret").write_text("secret")
    (folder.parent / "model-2").mkdir()
    (folder.parent / "model-2" / "secret").write_text("secret")
    (folder / "vocab.json").symlink_to(target)
    with raises_code("unusable-link", UserError) as refused:
        check_links(folder)
    assert str(folder / "vocab.json") in refused.value.message
    assert refused.value.fix == fix


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A model in the layout of the Hub's cache."""
    made = tmp_path / "models--a--b" / "snapshots" / "0123"
    made.mkdir(parents=True)
    (made.parents[1] / "blobs").mkdir()
    (made.parents[1] / "blobs" / "abc").write_text("{}")
    (made / "config.json").symlink_to("../../blobs/abc")
    return made


def test_links_into_the_blobs_of_the_hubs_cache_are_followed(snapshot: Path) -> None:
    check_links(snapshot)
    assert follow(snapshot / "config.json").read_text() == "{}"
