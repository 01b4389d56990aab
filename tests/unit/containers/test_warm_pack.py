"""Packing: the caches, and nothing else."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from peagle_serve.warm.archive import NothingCompiled, pack, unpack
from peagle_serve.warm.caches import FOLDERS, folders_set_by_user, variables
from peagle_serve.warm.manifest import Manifest
from tests.unit.containers.artifacts import CACHES, SUBJECT, files_in, filled

SECRET = "a-key-of-ours"
WEIGHTS = ("safetensors", "gguf", "pt", "pth", "ckpt")


def packed(place: Path, archive: Path, secrets: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The files in the archive that is packed from ``place``."""
    made = pack(place, archive, secrets)
    assert made.size == archive.stat().st_size
    assert made.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    folder = archive.with_name("unpacked")
    folder.mkdir()
    unpack(archive, Manifest("k", SUBJECT, seconds_cold=0, made="", **made._asdict()), folder)
    return files_in(folder)


def test_the_caches_are_packed_and_the_same_ones_give_the_same_bytes(tmp_path: Path) -> None:
    place = filled(tmp_path / "place")
    first = pack(place, tmp_path / "first", [])

    assert packed(place, tmp_path / "second") == CACHES
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert (tmp_path / "first").read_bytes()[4:8] == bytes(4), "gzip records no time"
    assert first.files == len(CACHES)
    assert first.unpacked_bytes == sum(map(len, CACHES.values()))


def test_only_caches_are_packed(tmp_path: Path) -> None:
    place = filled(tmp_path / "place")
    filled(
        place,
        {
            "restored.json": b"{}",
            "other/file": b"x",
            "vllm/assets/model_streamer/model/config.json": b"{}",
            "vllm/media/picture": b"a user's",
            "vllm/xla_cache/x": b"x",
            **{f"triton/model.{end}": b"weights" for end in WEIGHTS},
            "triton/x.lock": b"",
            "triton/x.123.tmp": b"",
            "triton/x.pid": b"1",
            "vllm/torch_compile_cache/cache_key_factors.json": f"{{'K': '{SECRET}'}}".encode(),
        },
    )
    (tmp_path / "outside").write_text("outside")
    (place / "triton" / "link").symlink_to(tmp_path / "outside")
    (place / "triton" / "folder").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(place / "triton" / "pipe")

    assert packed(place, tmp_path / "archive", (SECRET,)) == CACHES


def test_an_executable_stays_executable(tmp_path: Path) -> None:
    place = filled(tmp_path / "place", {"triton/a/tool": b"#!/bin/sh", "triton/a/data": b"x"})
    (place / "triton" / "a" / "tool").chmod(0o700)

    packed(place, tmp_path / "archive")

    unpacked = tmp_path / "unpacked" / "triton" / "a"
    assert os.access(unpacked / "tool", os.X_OK)
    assert (unpacked / "data").stat().st_mode & 0o111 == 0


@pytest.mark.parametrize("files", [{}, {"vllm/modelinfos/a.json": b"{}"}, {"other/x": b"x"}])
def test_nothing_compiled_is_an_error(tmp_path: Path, files: dict[str, bytes]) -> None:
    place = filled(tmp_path / "place", files)

    with pytest.raises(NothingCompiled, match="enforce-eager"):
        pack(place, tmp_path / "archive", [])

    assert not (tmp_path / "archive").exists()


def test_secrets_in_every_compiled_file_are_an_error(tmp_path: Path) -> None:
    files = {"triton/a/k.cubin": f"code {SECRET}".encode(), "vllm/modelinfos/a.json": b"{}"}
    place = filled(tmp_path / "place", files)

    with pytest.raises(NothingCompiled, match="every compiled file contains the value of a secret"):
        pack(place, tmp_path / "archive", [SECRET])

    assert [path.name for path in tmp_path.iterdir()] == ["place"], "no complete or partial archive"


def test_a_full_disk_leaves_no_partial_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = filled(tmp_path / "place")

    def full(old: str, new: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("peagle_serve.warm.archive.os.replace", full)
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
        pack(place, tmp_path / "archive", [])

    assert sorted(path.name for path in tmp_path.iterdir()) == ["place"]


def test_the_users_own_cache_folders_are_kept() -> None:
    place = Path("/cache/key")

    found = variables(place, {"TRITON_CACHE_DIR": "/mine", "CUDA_CACHE_PATH": ""}, for_cpu=False)

    assert found["VLLM_CACHE_ROOT"] == "/cache/key/vllm"
    assert found["CUDA_CACHE_PATH"] == "/cache/key/cuda"
    assert set(FOLDERS) - set(found) == {"TRITON_CACHE_DIR"}
    assert folders_set_by_user({"TRITON_CACHE_DIR": "/mine"}) == ["TRITON_CACHE_DIR"]


def test_on_a_cpu_the_engine_uses_the_cache_that_it_can_load() -> None:
    assert variables(Path("/c"), {}, for_cpu=True)["VLLM_USE_AOT_COMPILE"] == "0"
    assert "VLLM_USE_AOT_COMPILE" not in variables(Path("/c"), {}, for_cpu=False)
    chosen = {"VLLM_USE_AOT_COMPILE": "1"}
    assert "VLLM_USE_AOT_COMPILE" not in variables(Path("/c"), chosen, for_cpu=True)
