"""Weights are read ahead while caches are unpacked, up to half of the free memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from peagle_serve.logs import Log, Redactor
from peagle_serve.warm import prepare as preparing
from peagle_serve.warm import prepare as readahead
from peagle_serve.warm.prepare import restore
from tests.unit.containers.artifacts import SUBJECT, artifact

STEP = 128 * 1024


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """File, begin and length of every read-ahead request."""
    found: list[tuple[str, int, int]] = []

    def note(descriptor: int, begin: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        found.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, begin, length))

    monkeypatch.setattr(os, "posix_fadvise", note)
    return found


def weights(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(bytes(2 * STEP + 1))
    (folder / "b.safetensors").write_bytes(b"x")
    (folder / "config.json").write_bytes(b"{}")
    return folder


def test_weights_are_read_ahead_in_steps(
    tmp_path: Path, requested: list[tuple[str, int, int]]
) -> None:
    folders = [str(tmp_path / "gone"), str(weights(tmp_path / "model"))]

    readahead.read_ahead(folders).join(10)

    begins = [("a.safetensors", 0), ("a.safetensors", STEP), ("a.safetensors", 2 * STEP),
              ("b.safetensors", 0)]  # fmt: skip
    assert requested == [(name, begin, STEP) for name, begin in begins]


def test_half_of_the_free_memory_stays_free(
    tmp_path: Path, requested: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readahead, "_free_bytes", lambda: 2 * STEP)

    readahead.read_ahead([str(weights(tmp_path / "model"))]).join(10)

    assert requested == [("a.safetensors", 0, STEP)]


def test_read_ahead_starts_before_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact(tmp_path / "warm")
    done: list[Any] = []

    def restored(*given: Any) -> bool:
        done.append("restore")
        return restore(*given)

    monkeypatch.setattr(preparing, "subject_of", lambda *_: SUBJECT)
    monkeypatch.setattr(preparing, "read_ahead", lambda folders: done.append(list(folders)))
    monkeypatch.setattr(preparing, "restore", restored)
    environment = {
        "PEAGLE_WARM_FOLDER": str(tmp_path / "warm"),
        "PEAGLE_CACHE": str(tmp_path),
        "PEAGLE_WARM_SHA256": "any",
    }
    chosen = {
        "SM_VLLM_MODEL": "/weights/target",
        "SM_VLLM_SPECULATIVE_CONFIG": '{"method": "eagle3", "model": "hub/head"}',
    }

    with open(os.devnull, "w") as nowhere:
        log = Log(Redactor({}), nowhere.fileno())
        given = preparing.prepare(environment, chosen, "auto", log)

    assert done == [["/weights/target"], "restore"]
    assert given["VLLM_CACHE_ROOT"].startswith(str(tmp_path))
