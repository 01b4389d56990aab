"""An artifact is restored whole, or nothing is left of it."""

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
    filled,
    held,
    member,
    nothing_is_left,
    with_archive,
)

ROOT = Path(__file__).resolve().parents[3]


def test_what_was_packed_is_restored_with_its_times(
    artifacts: Path, whole: Manifest, cache: Path, tmp_path: Path
) -> None:
    assert restore(read_manifest(artifacts / f"{whole.key}.json"), artifacts, cache)

    restored = held(cache / whole.key)
    assert {name: restored[name] for name in CACHES} == CACHES
    for name in CACHES:
        before = (tmp_path / "collected" / whole.key / name).stat().st_mtime_ns
        assert (cache / whole.key / name).stat().st_mtime_ns == before
    assert [path.name for path in cache.iterdir()] == [whole.key]


@pytest.mark.parametrize(
    ("said", "nanoseconds"),
    [(123, 123 * 10**9), (5.5, 5_500_000_000), (-5, 0), (1 << 40, (1 << 33) * 10**9)],
    ids=["whole seconds", "a part of one", "before 1970", "no time at all"],
)
def test_a_file_gets_the_time_that_the_archive_says_as_far_as_files_can_have_it(
    artifacts: Path, whole: Manifest, cache: Path, said: float, nanoseconds: int
) -> None:
    archive = archive_of([member("triton/a/b", mtime=said)])

    restore(with_archive(artifacts, whole, archive, files=1, unpacked_bytes=1), artifacts, cache)

    assert (cache / whole.key / "triton" / "a" / "b").stat().st_mtime_ns == nanoseconds


def test_a_folder_of_the_archive_is_there_even_if_it_is_empty(
    artifacts: Path, whole: Manifest, cache: Path
) -> None:
    folder = member("triton/empty", b"", type=tarfile.DIRTYPE)
    made = with_archive(artifacts, whole, archive_of([folder, member("vllm/x")]), files=1,
                        unpacked_bytes=1)  # fmt: skip

    assert restore(made, artifacts, cache)

    assert (cache / whole.key / "triton" / "empty").is_dir()


def test_what_was_restored_before_is_not_restored_again(
    artifacts: Path, whole: Manifest, cache: Path
) -> None:
    restore(whole, artifacts, cache)
    (artifacts / f"{whole.key}.tar.gz").unlink()

    assert not restore(whole, artifacts, cache)


def test_what_else_lies_there_is_replaced(artifacts: Path, whole: Manifest, cache: Path) -> None:
    (cache / whole.key / "vllm").mkdir(parents=True)
    (cache / whole.key / "vllm" / "half").touch()

    assert restore(whole, artifacts, cache)

    assert "vllm/half" not in held(cache / whole.key)
    assert [path.name for path in cache.iterdir()] == [whole.key]


def test_an_archive_may_be_replaced_by_a_newer_one(
    artifacts: Path, whole: Manifest, cache: Path
) -> None:
    restore(whole, artifacts, cache)
    newer = with_archive(artifacts, whole, archive_of([member("triton/a/b")]), files=1,
                         unpacked_bytes=1)  # fmt: skip

    assert restore(newer, artifacts, cache)

    assert set(held(cache / whole.key)) == {"triton/a/b", "restored.json"}


def test_many_restore_into_one_cache_at_once(artifacts: Path, whole: Manifest, cache: Path) -> None:
    done: list[bool] = []
    barrier = threading.Barrier(8)

    def one() -> None:
        barrier.wait()
        done.append(restore(whole, artifacts, cache))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(done) == 8
    assert done.count(True) == 1
    restored = held(cache / whole.key)
    assert {name: restored[name] for name in CACHES} == CACHES
    assert [path.name for path in cache.iterdir()] == [whole.key]


def test_half_unpacked_folders_of_others_go_when_they_are_old(
    artifacts: Path, whole: Manifest, cache: Path
) -> None:
    for name, minutes in (("old.partial", 61), ("new.partial", 59)):
        changed = time.time() - 60 * minutes
        os.utime(filled(cache / name), (changed, changed))

    restore(whole, artifacts, cache)

    assert {path.name for path in cache.iterdir()} == {whole.key, "new.partial"}


def test_an_archive_that_is_not_there_is_told(
    artifacts: Path, whole: Manifest, cache: Path
) -> None:
    (artifacts / f"{whole.key}.tar.gz").unlink()

    with pytest.raises(OSError, match="No such file"):
        restore(whole, artifacts, cache)

    assert nothing_is_left(cache)


def test_a_cache_that_cannot_be_written_is_told(
    artifacts: Path, whole: Manifest, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"):
        restore(whole, artifacts, tmp_path / "file" / "cache")


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    artifacts: Path, whole: Manifest, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(artifacts)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    with pytest.raises(Damaged, match=r"has 0\.0 MB free"):
        restore(whole, artifacts, cache)

    assert nothing_is_left(cache)


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
    """What a process said that restored, and may write files of ``limit`` bytes."""
    command = [sys.executable, "-c", RESTORE, str(manifest), str(cache), str(limit)]
    environment = {"PYTHONPATH": str(ROOT / "containers")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_write_that_fails_in_the_middle_leaves_nothing(
    artifacts: Path, whole: Manifest, cache: Path
) -> None:
    assert restored_by_another(artifacts / f"{whole.key}.json", cache, 5000) == "File too large"
    assert nothing_is_left(cache)


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


def test_a_full_disk_leaves_nothing(artifacts: Path, whole: Manifest, tiny_disk: Path) -> None:
    many = archive_of([member(f"triton/{number}/x") for number in range(200)])
    with_archive(artifacts, whole, many, files=200, unpacked_bytes=200)

    said = restored_by_another(artifacts / f"{whole.key}.json", tiny_disk / "cache")

    assert said == "No space left on device"
    assert nothing_is_left(tiny_disk / "cache")


def test_a_manifest_is_written_as_it_is_read(artifacts: Path, whole: Manifest) -> None:
    read = read_manifest(artifacts / f"{whole.key}.json")

    assert read == whole
    assert json.loads(json.dumps(read.document()))["format"] == 1
