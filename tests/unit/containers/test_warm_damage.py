"""A damaged artifact is refused, and nothing of it is left."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from peagle_serve.warm.archive import unpack
from peagle_serve.warm.manifest import LARGEST, Damaged, Manifest, read_manifest
from peagle_serve.warm.prepare import restore
from tests.unit.containers.artifacts import (
    archive_of,
    files_in,
    is_empty,
    member,
    with_archive,
    write,
)

LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0}


DAMAGED_ARCHIVES: list[tuple[str, list[tuple[tarfile.TarInfo, bytes]], str]] = [
    ("parent", [member("vllm/../../out")], "may leave its folder"),
    ("absolute", [member("/tmp/out")], "may leave its folder"),
    ("dot", [member("./vllm/x")], "may leave its folder"),
    ("symlink", [member("vllm/link", b"", **LINK)], "neither a file nor a folder"),
    ("symlinked folder", [member("vllm/a", b"", **LINK), member("vllm/a/b")], "neither a file"),
    ("hard link", [member("vllm/x"), member("vllm/y", b"", type=tarfile.LNKTYPE,
                                            linkname="vllm/x")], "neither a file"),
    ("device", [member("vllm/null", b"", type=tarfile.CHRTYPE)], "neither a file"),
    ("pipe", [member("vllm/pipe", b"", type=tarfile.FIFOTYPE)], "neither a file"),
    ("sparse", [member("vllm/sparse", b"", type=tarfile.GNUTYPE_SPARSE)], "neither a file"),
    ("twice", [member("vllm/x"), member("vllm/x")], "twice"),
    ("file as folder", [member("vllm/x"), member("vllm/x/y")], "both file and folder"),
    ("folder as file", [member("vllm/x/y"), member("vllm/x")], "both file and folder"),
    ("no cache", [member("bin/sh")], "not in a cache folder"),
    ("no folder", [member("vllm")], "neither a file nor a folder"),
    ("deep", [member("vllm/" + "d/" * 500 + "x")], "nested too deeply"),
    ("a little too deep", [member("vllm/" + "d/" * 63 + "x")], "nested too deeply"),
    ("empty", [], "holds 0 files"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("members", "why"),
    [pytest.param(members, why, id=name) for name, members, why in DAMAGED_ARCHIVES],
)
def test_an_archive_with_other_members_is_refused(
    artifacts: Path, intact: Manifest, cache: Path, tmp_path: Path,
    members: list[tuple[tarfile.TarInfo, bytes]], why: str,
) -> None:  # fmt: skip
    files = sum(one.isreg() for one, _ in members)
    archive = archive_of(members)
    damaged = with_archive(artifacts, intact, archive, files=max(files, 1), unpacked_bytes=files)
    before = files_in(tmp_path)

    with pytest.raises(Damaged, match=why):
        restore(damaged, artifacts, cache)

    assert is_empty(cache)
    assert files_in(tmp_path) == before


@pytest.mark.thorough
def test_an_archive_larger_than_its_manifest_is_refused_early(
    artifacts: Path, intact: Manifest, tmp_path: Path
) -> None:
    bomb = archive_of([member("vllm/zeros", bytes(50_000_000))])
    damaged = with_archive(artifacts, intact, bomb, files=1, unpacked_bytes=1000)
    folder = tmp_path / "out"
    folder.mkdir()

    with pytest.raises(Damaged, match="larger than in its manifest"):
        unpack(artifacts / f"{intact.key}.tar.gz", damaged, folder)

    assert sum(len(content) for content in files_in(folder).values()) < 1_000_000


def cut(archive: bytes) -> bytes:
    return archive[: len(archive) // 2]


def cut_inside(archive: bytes) -> bytes:
    """A truncated tar in a valid gzip file."""
    return gzip.compress(gzip.decompress(archive)[:3000])


def with_flipped_bit(archive: bytes) -> bytes:
    middle = len(archive) // 2
    return archive[:middle] + bytes([archive[middle] ^ 1]) + archive[middle + 1 :]


DAMAGES: dict[str, Any] = {
    "cut": cut,
    "cut inside": cut_inside,
    "with_flipped_bit": with_flipped_bit,
    "empty": lambda archive: b"",
    "no gzip": lambda archive: b"x" * len(archive),
    "more": lambda archive: archive + b"more",
    "twice": lambda archive: archive + archive,
    "no tar": lambda archive: gzip.compress(b"no tar"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("updated", [False, True], ids=["as it was", "size and sum fit"])
def test_a_damaged_archive_is_refused(
    artifacts: Path, intact: Manifest, cache: Path, damage: Any, updated: bool
) -> None:
    file = artifacts / f"{intact.key}.tar.gz"
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    manifest = with_archive(artifacts, intact, damaged) if updated else intact

    with pytest.raises(Damaged):
        restore(manifest, artifacts, cache)

    assert is_empty(cache)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME], ids=["x", "L"])
def test_an_endless_chain_of_headers_is_rejected(
    artifacts: Path, intact: Manifest, cache: Path, kind: bytes
) -> None:
    header = tarfile.TarInfo("vllm/x")
    header.type, header.size = kind, 12
    block = header.tobuf(tarfile.USTAR_FORMAT) + b"12 path=abc\n".ljust(512, b"\0")
    damaged = with_archive(artifacts, intact, gzip.compress(block * 3000), files=1000)

    with pytest.raises(Damaged, match="recursion"):
        restore(damaged, artifacts, cache)

    assert is_empty(cache)


@pytest.mark.parametrize(
    "changed",
    [{"sha256": "0" * 64}, {"files": 1}, {"unpacked_bytes": 10**7}, {"size": 5}],
    ids=lambda changed: next(iter(changed)),
)
def test_an_archive_that_differs_from_its_manifest_is_refused(
    artifacts: Path, intact: Manifest, cache: Path, changed: dict[str, Any]
) -> None:
    with pytest.raises(Damaged):
        restore(intact._replace(**changed), artifacts, cache)

    assert is_empty(cache)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not valid JSON"),
        ('{"format": 1', "is not valid JSON"),
        ("[" * 100_000, "is nested more than 64 levels deep"),
        ("[]", "is not a JSON object"),
        ('{"format": 2}', "has the format 2, not 1"),
        ('"' + "x" * LARGEST + '"', "is longer than 1,048,576 bytes"),
    ],
    ids=["empty", "cut", "deep", "array", "other format", "huge"],
)
def test_an_invalid_manifest_is_refused(
    artifacts: Path, intact: Manifest, text: str, why: str
) -> None:
    (artifacts / f"{intact.key}.json").write_text(text)

    with pytest.raises(Damaged, match=why):
        read_manifest(artifacts / f"{intact.key}.json")


@pytest.mark.parametrize(
    "changed",
    [{"size": -1}, {"size": "5"}, {"files": True}, {"unpacked_bytes": 10**30}, {"sha256": "abc"},
     {"sha256": None}, {"subject": None}, {"subject": {}}, {"key": "0" * 32}, {"key": None},
     {"seconds_cold": float("nan")}, {"seconds_cold": float("inf")}, {"seconds_cold": 10**400},
     {"seconds_cold": -1}, {"seconds_cold": "1"}, {"made": float("nan")}, {"format": "x" * 9999}],
    ids=lambda changed: str(changed)[:40],
)  # fmt: skip
def test_a_manifest_with_an_invalid_value_is_refused(
    artifacts: Path, intact: Manifest, changed: dict[str, Any]
) -> None:
    write(artifacts, intact, **changed)

    with pytest.raises(Damaged) as refused:
        read_manifest(artifacts / f"{intact.key}.json")

    assert len(str(refused.value)) < 200


def test_a_number_beyond_floats_is_refused(artifacts: Path, intact: Manifest) -> None:
    file = artifacts / f"{intact.key}.json"
    file.write_text(file.read_text().replace('"seconds_cold": 101.0', '"seconds_cold": 1e999'))

    with pytest.raises(Damaged, match="the number 1e999, which is too large"):
        read_manifest(file)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_pipe_or_folder_is_refused_without_waiting(
    artifacts: Path, intact: Manifest, cache: Path, kind: str
) -> None:
    manifest, archive = artifacts / f"{intact.key}.json", artifacts / f"{intact.key}.tar.gz"
    for file in (manifest, archive):
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)
        else:
            file.mkdir()

    with pytest.raises(Damaged, match="json is not a regular file"):
        read_manifest(manifest)
    with pytest.raises(Damaged, match=r"tar\.gz is not a regular file"):
        restore(intact, artifacts, cache)

    assert is_empty(cache)


def test_a_manifest_under_another_name_is_refused(artifacts: Path, intact: Manifest) -> None:
    other = (artifacts / f"{intact.key}.json").rename(artifacts / f"{'0' * 32}.json")

    with pytest.raises(Damaged, match=f"has the key {intact.key}"):
        read_manifest(other)
