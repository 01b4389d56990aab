"""An artifact is restored completely, or nothing is left of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle_serve.warm.manifest import Damaged, Manifest, read_manifest
from peagle_serve.warm.prepare import restore
from tests.unit.containers.artifacts import (
    CACHES,
    archive_of,
    files_in,
    filled,
    is_empty,
    member,
    with_archive,
)

ROOT = Path(__file__).resolve().parents[3]


def test_packed_files_are_restored_with_their_times(
    artifacts: Path, intact: Manifest, cache: Path, tmp_path: Path
) -> None:
    assert restore(read_manifest(artifacts / f"{intact.key}.json"), artifacts, cache)

    restored = files_in(cache / intact.key)
    assert {name: restored[name] for name in CACHES} == CACHES
    for name in CACHES:
        before = (tmp_path / "collected" / intact.key / name).stat().st_mtime_ns
        assert (cache / intact.key / name).stat().st_mtime_ns == before
    assert [path.name for path in cache.iterdir()] == [intact.key]


@pytest.mark.parametrize(
    ("reported", "nanoseconds"),
    [(123, 123 * 10**9), (5.5, 5_500_000_000), (-5, 0), (1 << 40, (1 << 33) * 10**9)],
    ids=["whole seconds", "a part of one", "before 1970", "no time at all"],
)
def test_a_file_gets_the_nearest_valid_time_of_the_archive(
    artifacts: Path, intact: Manifest, cache: Path, reported: float, nanoseconds: int
) -> None:
    archive = archive_of([member("triton/a/b", mtime=reported)])

    restore(with_archive(artifacts, intact, archive, files=1, unpacked_bytes=1), artifacts, cache)

    assert (cache / intact.key / "triton" / "a" / "b").stat().st_mtime_ns == nanoseconds


def test_an_empty_folder_is_restored(artifacts: Path, intact: Manifest, cache: Path) -> None:
    folder = member("triton/empty", b"", type=tarfile.DIRTYPE)
    made = with_archive(artifacts, intact, archive_of([folder, member("vllm/x")]), files=1,
                        unpacked_bytes=1)  # fmt: skip

    assert restore(made, artifacts, cache)

    assert (cache / intact.key / "triton" / "empty").is_dir()


def test_a_restored_artifact_is_not_restored_again(
    artifacts: Path, intact: Manifest, cache: Path
) -> None:
    restore(intact, artifacts, cache)
    (artifacts / f"{intact.key}.tar.gz").unlink()

    assert not restore(intact, artifacts, cache)


def test_other_content_at_the_key_is_replaced(
    artifacts: Path, intact: Manifest, cache: Path
) -> None:
    (cache / intact.key / "vllm").mkdir(parents=True)
    (cache / intact.key / "vllm" / "half").touch()

    assert restore(intact, artifacts, cache)

    assert "vllm/half" not in files_in(cache / intact.key)
    assert [path.name for path in cache.iterdir()] == [intact.key]


def test_an_archive_may_be_replaced_by_a_newer_one(
    artifacts: Path, intact: Manifest, cache: Path
) -> None:
    restore(intact, artifacts, cache)
    newer = with_archive(artifacts, intact, archive_of([member("triton/a/b")]), files=1,
                         unpacked_bytes=1)  # fmt: skip

    assert restore(newer, artifacts, cache)

    assert set(files_in(cache / intact.key)) == {"triton/a/b", "restored.json"}


def test_concurrent_restores_into_one_cache_are_safe(
    artifacts: Path, intact: Manifest, cache: Path
) -> None:
    done: list[bool] = []
    barrier = threading.Barrier(8)

    def one() -> None:
        barrier.wait()
        done.append(restore(intact, artifacts, cache))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(done) == 8
    assert done.count(True) == 1
    restored = files_in(cache / intact.key)
    assert {name: restored[name] for name in CACHES} == CACHES
    assert [path.name for path in cache.iterdir()] == [intact.key]


def test_abandoned_partial_folders_are_removed(
    artifacts: Path, intact: Manifest, cache: Path
) -> None:
    for name, minutes in (("old.partial", 61), ("new.partial", 59)):
        changed = time.time() - 60 * minutes
        os.utime(filled(cache / name), (changed, changed))

    restore(intact, artifacts, cache)

    assert {path.name for path in cache.iterdir()} == {intact.key, "new.partial"}


def test_a_missing_archive_is_an_error(artifacts: Path, intact: Manifest, cache: Path) -> None:
    (artifacts / f"{intact.key}.tar.gz").unlink()

    with pytest.raises(FileNotFoundError):
        restore(intact, artifacts, cache)

    assert is_empty(cache)


def test_an_unwritable_cache_is_an_error(artifacts: Path, intact: Manifest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(NotADirectoryError):
        restore(intact, artifacts, tmp_path / "file" / "cache")


def test_a_too_small_disk_is_refused_before_anything_is_written(
    artifacts: Path, intact: Manifest, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(artifacts)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    with pytest.raises(Damaged, match=r"has 0\.0 MB free"):
        restore(intact, artifacts, cache)

    assert is_empty(cache)


RESTORE = """
import resource, sys
from pathlib import Path
from peagle_serve.warm.manifest import read_manifest
from peagle_serve.warm.prepare import restore
manifest, cache, limit = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
try:
    restore(read_manifest(Path(manifest)), Path(manifest).parent, Path(cache))
except OSError as error:
    print(error.strerror)
"""


def restored_by_another(manifest: Path, cache: Path, limit: int = 2**40) -> str:
    """Restore in another process, which may write files of ``limit`` bytes; returns its error."""
    command = [sys.executable, "-c", RESTORE, str(manifest), str(cache), str(limit)]
    environment = {"PYTHONPATH": str(ROOT / "containers")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.thorough
def test_a_failed_write_leaves_nothing(artifacts: Path, intact: Manifest, cache: Path) -> None:
    assert restored_by_another(artifacts / f"{intact.key}.json", cache, 5000) == "File too large"
    assert is_empty(cache)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 pages."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only who may mount can make a tiny disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.thorough
def test_a_full_disk_leaves_nothing(artifacts: Path, intact: Manifest, tiny_disk: Path) -> None:
    many = archive_of([member(f"triton/{number}/x") for number in range(200)])
    with_archive(artifacts, intact, many, files=200, unpacked_bytes=200)

    reported = restored_by_another(artifacts / f"{intact.key}.json", tiny_disk / "cache")

    assert reported == "No space left on device"
    assert is_empty(tiny_disk / "cache")


def test_a_manifest_is_read_as_written(artifacts: Path, intact: Manifest) -> None:
    read = read_manifest(artifacts / f"{intact.key}.json")

    assert read == intact
    assert json.loads(json.dumps(read.document()))["format"] == 1
