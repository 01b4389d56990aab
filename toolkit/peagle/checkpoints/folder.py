"""A checkpoint in a folder of this machine.

Links in a folder whose files are handed on: to S3, or into an image.

What is handed on must lie in the folder that was named. A link out of it would publish a file that
nobody meant, and one to nothing would be missing where the copy is used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from peagle.checkpoints.config import CONFIG
from peagle.errors import CheckpointError, UserError

_LONGEST_HASHED = 100_000_000
"""Bytes. The largest tokenizers have 30 MB; hashing 100 takes a quarter of a second."""

_INDEX = ".safetensors.index.json"


class FolderSource:
    """The files of a folder. Nothing is read before it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def location(self) -> str:
        """The folder as it was named."""
        return str(self._folder)

    def names(self) -> dict[str, int]:
        """The files of the folder with their sizes in bytes; links count as what they lead to.

        Raises CheckpointError for weights, or a config.json, that are there by name only, as an
        aborted download leaves them.
        """
        if not self._folder.is_dir():
            is_file = self._folder.is_file()
            raise CheckpointError(
                f"{self._folder} is a file" if is_file else f"there is no folder {self._folder}",
                "name the folder that holds config.json",
            )
        with _told(self._folder):
            return _regular_files(self._folder)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A part of a file."""
        path = self._folder / name
        with _told(path), path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def digests(self, name: str) -> Mapping[str, str]:
        """sha256 and md5 of a file that is not large."""
        path = self._folder / name
        with _told(path):
            if path.stat().st_size > _LONGEST_HASHED:
                return {}
            content = path.read_bytes()
        return {
            "sha256": hashlib.sha256(content).hexdigest(),
            "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
            "git": hashlib.sha1(
                b"blob %d\0" % len(content) + content, usedforsecurity=False
            ).hexdigest(),
        }


def _regular_files(folder: Path) -> dict[str, int]:
    """A pipe that is called model.safetensors would keep its reader waiting, so it is none."""
    sizes: dict[str, int] = {}
    broken: dict[str, str] = {}
    for path in folder.iterdir():
        try:
            found = path.stat()
        except OSError as error:
            gone = isinstance(error, FileNotFoundError)
            broken[path.name] = "is a link to nothing" if gone else f"is none ({error.strerror})"
            continue
        if S_ISREG(found.st_mode):
            sizes[path.name] = found.st_size
        else:
            broken[path.name] = "is a folder" if S_ISDIR(found.st_mode) else "is no regular file"
    _refuse_needed(folder, broken, indexed=any(name.endswith(_INDEX) for name in sizes))
    return sizes


def _refuse_needed(folder: Path, broken: Mapping[str, str], *, indexed: bool) -> None:
    """Raise CheckpointError for what vLLM would read and nobody can. Where an index names the
    weights, it tells which of them are missing."""
    for name, what in sorted(broken.items()):
        weights = name.endswith(".safetensors") and not name.startswith(".") and not indexed
        if weights or name == CONFIG:
            message = f"{folder}/{name} {what}, so it cannot be read"
            raise CheckpointError(message, "copy it again; an aborted download leaves such a thing")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise CheckpointError(
            f"{where} cannot be read: {error.strerror}", "check the file and its permissions"
        ) from error


def homes_of(folder: Path) -> tuple[Path, ...]:
    """Where the links of a folder may lead to: the folder itself, and beside a snapshot of the
    hub's cache its ``blobs/``, where the cache keeps contents."""
    home = folder.resolve()
    if home.parent.name != "snapshots":
        return (home,)
    return home, home.parents[1] / "blobs"


def followed(path: Path, homes: Sequence[Path]) -> Path:
    """The file or folder that ``path`` is; what it leads to, if it is a link.

    Raises UserError for a link to nothing, and for one that leads out of ``homes``.
    """
    if not path.is_symlink():
        return path
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(home) for home in homes):
        raise UserError(f"{path} is a link that leads out of its folder, to {real}",
                        "copy the file there")  # fmt: skip
    if not real.exists():
        raise UserError(f"{path} is a link to nothing", "copy the file there, or remove the link")
    return real


def check_links(folder: Path) -> None:
    """Raise UserError if a link at the folder's top level leads out of it or to nothing. Of a
    folder that cannot be read nothing is said: who reads it does."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    homes = homes_of(folder)
    for path in paths:
        followed(path, homes)
