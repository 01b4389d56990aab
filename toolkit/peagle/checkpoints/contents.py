"""The files of a folder of weights with their SHA-256, and the hash that tells two folders apart.

Reading the bytes of large weights takes minutes, so the SHA-256 of each file is cached until the
file changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.checkpoints.files import follow_link, link_homes
from peagle.errors import UserError
from peagle.store import home, read_json, write_json
from peagle.text import json_digest

_DIGITS = 8
_MAX_HASHES = 5_000
_MIN_CACHED_BYTES = 1_000_000
"""A smaller file is read faster than the record of its hash."""


_PART_BYTES = 2**20
_STEP_BYTES = 2**28
"""How much is read between two reports: a second or two of a slow disk."""

Watcher = Callable[[str, int, int], None]
"""Is called with the name of a file, how many of its bytes are read, and its size."""

_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watch_hashing(watcher: Watcher) -> Iterator[None]:
    """Call ``watcher`` while large files are hashed."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


@dataclass(frozen=True)
class LocalFile:
    """A file to upload. ``name`` is its path below the folder, ``size`` is in bytes."""

    path: Path
    name: str
    size: int
    sha256: str


def files_below(folder: Path) -> tuple[LocalFile, ...]:
    """All files below ``folder`` except hidden ones.

    Raises UserError when there are none, and for a link that leaves the folder or is broken.
    """
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}", "the plan needs the weights in it", "no-such-folder"
        )
    homes, cache = link_homes(folder), home() / "contents.json"
    cached: Any = None
    with suppress(ValueError, OSError):
        cached = read_json(cache)
    if not isinstance(cached, dict):  # damaged, or not yet there
        cached = {}
    kept: dict[str, list[Any]] = {}
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        if follow_link(path, homes).is_file():
            digest = _sha256(path, cached, kept)
            files.append(LocalFile(path, name.as_posix(), path.stat().st_size, digest))
    if not files:
        raise UserError(
            f"the folder {folder} is empty", "it must contain the model's weights", "empty-folder"
        )
    if kept:
        with suppress(OSError, UserError):  # the hashes can be computed again
            write_json(cache, dict(list({**cached, **kept}.items())[-_MAX_HASHES:]))
    return tuple(files)


def hash_contents(folders: Iterable[Sequence[LocalFile]]) -> str:
    """A short hash of the names and the bytes of all files of these folders."""
    listed = [[(file.name, file.sha256) for file in files] for files in folders]
    return json_digest(listed)[:_DIGITS]


def _sha256(path: Path, cached: dict[str, list[Any]], kept: dict[str, list[Any]]) -> str:
    """The file's SHA-256: that of ``cached`` if the file has not changed, else computed, and added
    to ``kept`` if it is worth caching."""
    key, before = str(path.resolve()), path.stat()
    state = [before.st_ino, before.st_size, before.st_mtime_ns, before.st_ctime_ns]
    entry = cached.get(key)
    if isinstance(entry, list) and entry[:-1] == state and isinstance(entry[-1], str):
        return entry[-1]
    digest = _computed(path, before.st_size)
    if before.st_size >= _MIN_CACHED_BYTES:
        kept[key] = [*state, digest]
    return digest


def _computed(path: Path, size: int) -> str:
    """The SHA-256 of the bytes; the watcher is called after each step of a large file."""
    watcher, done, digest = _WATCHER.get(), 0, hashlib.sha256()
    with path.open("rb") as stream:
        while part := stream.read(_PART_BYTES):
            digest.update(part)
            done += len(part)
            if watcher is not None and done % _STEP_BYTES == 0:
                watcher(path.name, done, size)
    return digest.hexdigest()
