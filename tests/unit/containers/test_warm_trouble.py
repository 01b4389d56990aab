"""Any problem of a warm start is one warning with a fix, and a cold start."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from peagle_serve.logs import Log, Redactor
from peagle_serve.warm.prepare import prepare
from peagle_serve.weights import with_model
from tests.unit.containers.warm_worlds import World, is_cold, warnings


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nowhere", "n" * 300], ids=["missing", "too long"])
def test_a_missing_artifact_folder_is_a_warning(world: World, name: str) -> None:
    entries, given = world.start(PEAGLE_WARM_FOLDER=f"/opt/ml/{name}")

    (reported,) = warnings(entries)
    folder = world.folder / "ml" / name
    assert f"PEAGLE_WARM_FOLDER is {folder}, which does not exist (mount a folder" in reported
    assert is_cold(given)


@pytest.mark.thorough
def test_the_artifact_folder_is_ignored_when_off(world: World) -> None:
    entries, _ = world.start(PEAGLE_WARM_FOLDER="/opt/ml/nowhere", PEAGLE_WARM="off")

    assert warnings(entries) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("surprise"), ["KeyError: 'surprise'"]),
        (RecursionError("too deep"), ["RecursionError: too deep"]),
        (MemoryError(), ["MemoryError"]),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            ["{cache}: No space left on device (free some space there", "PEAGLE_CACHE"],
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "{cache}/vllm"),
            ["{cache}/vllm: Read-only file system (set PEAGLE_CACHE to a writable folder"],
        ),
        (
            OSError(errno.EACCES, "Permission denied", "{artifacts}/x.tar.gz"),
            ["{artifacts}/x.tar.gz: Permission denied (copy both files of the artifact again"],
        ),
        (
            OSError(errno.EACCES, "Permission denied", "/elsewhere"),
            ["/elsewhere: Permission denied (make the file readable)"],
        ),
    ],
    ids=["key", "recursion", "memory", "full", "read-only", "artifact", "elsewhere"],
)
def test_any_error_is_one_warning_and_a_cold_start(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    words: list[str],
) -> None:
    places = {"cache": str(world.cache), "artifacts": str(world.artifacts)}
    if isinstance(error, OSError) and error.filename:
        error = OSError(error.errno, error.strerror, error.filename.format(**places))

    def failing(*given: object) -> None:
        raise error

    manifest = world.collected()
    monkeypatch.setattr("peagle_serve.warm.prepare.subject_of", lambda *given: manifest.subject)
    monkeypatch.setattr("peagle_serve.warm.prepare.restore", failing)
    environment = world.variables()

    assert prepare(environment, with_model(environment), "auto", Log(Redactor({}))) == {}

    (line,) = capfd.readouterr().err.splitlines()
    reported = json.loads(line)
    assert reported["level"] == "WARNING"
    assert reported["message"].startswith("no warm start, the engine compiles everything: ")
    for word in words:
        assert word.format(**places) in reported["message"]
