"""An artefact restored into the cache: whole, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from serve.warm.manifest import ARCHIVE, LARGEST, Damaged, Manifest, open_plain
from serve.warm.places import LARGER_DISK
from serve.warm.unpack import unpack

_PARTIAL = ".partial"
_MARK = "restored.json"
_ABANDONED_SECONDS = 3600.0
"""A half unpacked folder of that age has nobody any more who unpacks into it."""
_TRIES = 3


def restore(manifest: Manifest, artefacts: Path, cache: Path) -> bool:
    """Make ``cache/<key>`` what the artefact holds. False if it has been that already.

    Others may do the same in the same cache. Raises Damaged, OSError; then nothing is left.
    """
    place = cache / manifest.key
    if _is_restored(place, manifest):
        return False
    cache.mkdir(parents=True, exist_ok=True)
    with temporary_folder(cache, manifest.key) as folder:
        free = shutil.disk_usage(cache).free
        if free < manifest.unpacked_bytes:
            raise Damaged(f"{cache} has {free / 1e6:.1f} MB free, "
                          f"and {manifest.unpacked_bytes / 1e6:.1f} MB are needed "
                          f"({LARGER_DISK})")  # fmt: skip
        unpack(artefacts / f"{manifest.key}{ARCHIVE}", manifest, folder)
        (folder / _MARK).write_text(json.dumps({"sha256": manifest.sha256}), encoding="ascii")
        return _put(folder, place, manifest)


@contextlib.contextmanager
def temporary_folder(cache: Path, key: str) -> Iterator[Path]:
    """A new folder beside those of the keys. It is gone at the end, unless it was renamed; those
    that others have left are gone too."""
    for left in cache.glob(f"*{_PARTIAL}"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=_PARTIAL, dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove(place: Path, cache: Path) -> None:
    """Remove a folder of a key at one stroke, as others see it. Raises OSError."""
    with temporary_folder(cache, place.name) as folder, contextlib.suppress(FileNotFoundError):
        os.rename(place, folder / place.name)


def _put(folder: Path, place: Path, manifest: Manifest) -> bool:
    """Rename ``folder`` to ``place``. False if somebody else was faster, with the same."""
    for _ in range(_TRIES):
        try:
            os.rename(folder, place)
        except OSError as error:
            if not place.is_dir():
                raise error from None
        else:
            return True
        if _is_restored(place, manifest):
            return False
        remove(place, place.parent)
    raise Damaged(f"{place} is changed by others all the time")


def _is_restored(place: Path, manifest: Manifest) -> bool:
    try:
        with open_plain(place / _MARK) as file:
            mark = json.loads(file.read(LARGEST))
    except (Damaged, OSError, ValueError, RecursionError):
        return False
    return bool(mark == {"sha256": manifest.sha256})
