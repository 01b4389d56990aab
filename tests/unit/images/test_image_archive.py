"""Archives: reproducible, and only with files of their folder."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from peagle.errors import UserError
from peagle.images.build import Member, member_of, members_of, tar, tar_member
from tests.support import raises_code


def read(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {
            one.name: (archive.extractfile(one) or io.BytesIO()).read()
            for one in archive
            if one.isfile()
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    (made / "inner").mkdir(parents=True)
    (made / "model.safetensors").write_bytes(b"x" * 1025)
    (made / "inner" / ("long-" * 40 + "ü.json")).write_text("{}")
    return made


def test_times_owners_modes_and_order_do_not_matter(folder: Path) -> None:
    first = b"".join(tar(members_of(folder, "w")))
    file = folder / "model.safetensors"
    file.chmod(0o600)
    os.utime(file, (1, 1))
    assert b"".join(tar(reversed(members_of(folder, "w")))) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert {(one.uid, one.gid, one.mtime) for one in archive} == {(0, 0, 0)}
        assert {one.mode for one in archive} == {0o644, 0o755}
        assert len(archive.getnames()) == len(set(archive.getnames()))


def test_a_nested_archive_has_its_announced_size(folder: Path) -> None:
    inner = tar_member("engine.tar", members_of(folder, "lib"))
    outer = read(b"".join(tar([inner, member_of("z", b"last")])))
    assert len(outer["engine.tar"]) == inner.size
    assert read(outer["engine.tar"])["lib/model.safetensors"] == b"x" * 1025
    assert outer["z"] == b"last"


def test_a_link_within_the_folder_becomes_the_file(folder: Path) -> None:
    (folder / "link.json").symlink_to("model.safetensors")
    assert read(b"".join(tar(members_of(folder, "w"))))["w/link.json"] == b"x" * 1025


@pytest.mark.parametrize("link_target", ["/etc/passwd", "../secret"])
def test_a_link_that_leaves_the_folder_is_refused(folder: Path, link_target: str) -> None:
    (folder.parent / "secret").write_text("secret")
    (folder / "link").symlink_to(link_target)
    with raises_code("unusable-link", UserError):
        members_of(folder, "w")


def test_a_pipe_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with raises_code("not-a-file", UserError):
        members_of(folder, "w")


@pytest.mark.parametrize("content", [b"12", b"1234"], ids=["shorter", "longer"])
def test_a_file_that_changes_while_it_is_read_is_refused(content: bytes) -> None:
    with raises_code("source-changed", UserError):
        list(tar([Member("w/model.safetensors", 3, lambda: [content])]))
