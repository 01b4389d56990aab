"""Artifacts of warm starts: what is packed; a damaged one is refused and leaves nothing."""

import gzip
import hashlib
import json
import os
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from peagle_serve.warm import (
    LARGEST,
    Damaged,
    Manifest,
    NothingCompiled,
    pack,
    parse_manifest,
    read_manifest,
    restore,
    unpack,
)
from tests.unit.containers.artifacts import (
    CACHES,
    SUBJECT,
    files_in,
    filled,
    is_empty,
    locate_archive,
    member,
    with_archive,
)

SECRET = "a-key-of-ours"
WEIGHTS = ("safetensors", "gguf", "pt", "pth", "ckpt")


def packed(place: Path, archive: Path, secrets: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The files in the archive that is packed from ``place``."""
    made = pack(place, archive, secrets)
    assert made["size"] == archive.stat().st_size
    assert made["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    folder = archive.with_name("unpacked")
    folder.mkdir()
    unpack(archive, Manifest("k", SUBJECT, seconds_cold=0, made="", **made), folder)
    return files_in(folder)


def test_the_caches_are_packed_and_the_same_ones_give_the_same_bytes(tmp_path: Path) -> None:
    place = filled(tmp_path / "place")
    first = pack(place, tmp_path / "first", [])
    assert packed(place, tmp_path / "second") == CACHES
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert (tmp_path / "first").read_bytes()[4:8] == bytes(4), "gzip records no time"
    assert (first["files"], first["unpacked_bytes"]) == (
        len(CACHES),
        sum(map(len, CACHES.values())),
    )


def test_only_caches_are_packed(tmp_path: Path) -> None:
    place = filled(tmp_path / "place")
    more = {
        "restored.json": b"{}",
        "other/file": b"x",
        "vllm/assets/model_streamer/model/config.json": b"{}",
        "vllm/media/picture": b"a user's",
        "vllm/xla_cache/x": b"x",
        **{f"triton/model.{end}": b"weights" for end in WEIGHTS},
        **{f"triton/{name}": b"" for name in ("x.lock", "x.123.tmp", "x.pid")},
        "vllm/torch_compile_cache/cache_key_factors.json": f"{{'K': '{SECRET}'}}".encode(),
    }
    filled(place, more)
    (tmp_path / "outside").write_text("outside")
    (place / "triton" / "link").symlink_to(tmp_path / "outside")
    (place / "triton" / "folder").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(place / "triton" / "pipe")
    assert packed(place, tmp_path / "archive", (SECRET,)) == CACHES


@pytest.mark.parametrize("files", [
    {},
    {"vllm/modelinfos/a.json": b"{}"},
    {"other/x": b"x"},
    {"triton/k": f"code {SECRET}".encode(), "vllm/modelinfos/a": b""},
])  # fmt: skip
def test_nothing_to_pack_is_an_error(tmp_path: Path, files: dict[str, bytes]) -> None:
    place = filled(tmp_path / "place", files)
    with pytest.raises(NothingCompiled):
        pack(place, tmp_path / "archive", [SECRET])
    assert not list(tmp_path.glob("archive*")), "no complete or partial archive"


def test_packed_files_are_restored_once_with_their_times(
    artifacts: Path, intact: Manifest, cache: Path, tmp_path: Path
) -> None:
    assert read_manifest(artifacts / f"{intact.key}.json") == intact
    assert restore(intact, artifacts, cache)
    restored = files_in(cache / intact.key)
    assert {name: restored[name] for name in CACHES} == CACHES
    for name in CACHES:
        before = (tmp_path / "collected" / intact.key / name).stat().st_mtime
        assert (cache / intact.key / name).stat().st_mtime == int(before), "never newer"
    assert [path.name for path in cache.iterdir()] == [intact.key]
    (artifacts / f"{intact.key}.tar.gz").unlink()
    assert not restore(intact, artifacts, cache)


@pytest.mark.parametrize("before", ["half", "older"])
def test_other_content_at_the_key_is_replaced(
    artifacts: Path, intact: Manifest, cache: Path, before: str
) -> None:
    if before == "older":
        restore(intact, artifacts, cache)
    else:
        filled(cache / intact.key, {"vllm/half": b""})
    newer = with_archive(artifacts, intact, locate_archive([member("triton/a/b")]), files=1,
                         unpacked_bytes=1)  # fmt: skip
    assert restore(newer, artifacts, cache)
    assert set(files_in(cache / intact.key)) == {"triton/a/b", "restored.json"}
    assert [path.name for path in cache.iterdir()] == [intact.key]


def test_concurrent_restores_into_one_cache_are_safe(
    artifacts: Path, intact: Manifest, cache: Path
) -> None:
    done: list[bool] = []
    barrier = threading.Barrier(8)

    def restore_once() -> None:
        barrier.wait()
        done.append(restore(intact, artifacts, cache))

    threads = [threading.Thread(target=restore_once) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(done), done.count(True)) == (8, 1)
    restored = files_in(cache / intact.key)
    assert {name: restored[name] for name in CACHES} == CACHES
    assert [path.name for path in cache.iterdir()] == [intact.key]


LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0}
DAMAGED_ARCHIVES: list[tuple[str, list[tuple[tarfile.TarInfo, bytes]], str]] = [
    ("parent", [member("vllm/../../out")], "cannot be read: .* outside the destination"),
    ("symlink", [member("vllm/link", b"", **LINK)], "cannot be read: .* absolute path"),
    ("device", [member("vllm/null", b"", type=tarfile.CHRTYPE)], "cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("members", "why"),
    [pytest.param(members, why, id=name) for name, members, why in DAMAGED_ARCHIVES],
)
def test_an_archive_with_other_members_is_refused(
    artifacts: Path, intact: Manifest, cache: Path, tmp_path: Path,
    members: list[tuple[tarfile.TarInfo, bytes]], why: str,
) -> None:  # fmt: skip
    files = sum(info.isreg() for info, _ in members)
    archive = locate_archive(members)
    damaged = with_archive(artifacts, intact, archive, files=max(files, 1), unpacked_bytes=files)
    before = files_in(tmp_path)
    with pytest.raises(Damaged, match=why):
        restore(damaged, artifacts, cache)
    assert is_empty(cache)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize(("number", "is_taken"), [
    (0, True), (1 << 50, True), (-1, False), ((1 << 50) + 1, False), (True, False), ("1", False),
])  # fmt: skip
@pytest.mark.parametrize("field", ["size", "files", "unpacked_bytes", "seconds_cold"])
def test_the_numbers_of_a_manifest_have_bounds(
    artifacts: Path, intact: Manifest, field: str, number: Any, is_taken: bool
) -> None:
    name = f"{intact.key}.json"
    document = json.loads((artifacts / name).read_text()) | {field: number}
    if is_taken:
        assert getattr(parse_manifest(document, name), field) == number
        return
    with pytest.raises(Damaged):
        parse_manifest(document, name)


@pytest.mark.parametrize("length", [40, 41])
def test_of_a_long_date_of_a_manifest_forty_characters_stay(
    artifacts: Path, intact: Manifest, length: int
) -> None:
    name = f"{intact.key}.json"
    document = json.loads((artifacts / name).read_text()) | {"made": "x" * length}
    assert parse_manifest(document, name).made == "x" * 40


@pytest.mark.parametrize("change", [
    {"format": 0}, {"key": "k"}, {"subject": []}, {"sha256": "0" * 63}, {"sha256": None},
])  # fmt: skip
def test_a_manifest_of_something_else_is_damaged(
    artifacts: Path, intact: Manifest, change: dict[str, Any]
) -> None:
    name = f"{intact.key}.json"
    document = json.loads((artifacts / name).read_text()) | change
    with pytest.raises(Damaged):
        parse_manifest(document, name)


DAMAGES: dict[str, Any] = {
    "cut": lambda archive: archive[: len(archive) // 2],
    "cut inside": lambda archive: gzip.compress(gzip.decompress(archive)[:3000]),
    "empty": lambda archive: b"",
    "no gzip": lambda archive: b"x" * len(archive),
    "no tar": lambda archive: gzip.compress(b"no tar"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_archive_is_refused(
    artifacts: Path, intact: Manifest, cache: Path, damage: Any
) -> None:
    file = artifacts / f"{intact.key}.tar.gz"
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    manifest = with_archive(artifacts, intact, damaged)
    with pytest.raises(Damaged):
        restore(manifest, artifacts, cache)
    assert is_empty(cache)


@pytest.mark.parametrize(("text", "why"), [
    ("", "is not valid JSON"),
    ("[" * 100_000, "maximum recursion depth"),
    ("[]", "is no manifest of an artifact"),
    ('{"format": 2}', "is no manifest of an artifact"),
    ('"' + "x" * LARGEST + '"', "More than 1,048,576 bytes"),
], ids=["empty", "deep", "array", "other format", "huge"])  # fmt: skip
def test_an_invalid_manifest_is_refused(
    artifacts: Path, intact: Manifest, text: str, why: str
) -> None:
    (artifacts / f"{intact.key}.json").write_text(text)
    with pytest.raises((Damaged, OSError), match=why):
        read_manifest(artifacts / f"{intact.key}.json")


def test_a_manifest_under_another_name_is_refused(artifacts: Path, intact: Manifest) -> None:
    other = (artifacts / f"{intact.key}.json").rename(artifacts / f"{'0' * 32}.json")
    with pytest.raises(Damaged, match="is no manifest of an artifact"):
        read_manifest(other)
