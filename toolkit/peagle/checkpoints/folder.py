"""A checkpoint in a folder of this machine, and the links in a folder that is copied elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from peagle.checkpoints.config import CONFIG
from peagle.errors import CheckpointError, DamagedCheckpoint, NotAFolder, UserError
from peagle_serve import folder as parser
from peagle_serve.folder import link_homes
from peagle_serve.safetensors import DamagedFile

_LONGEST_HASHED = 100_000_000
"""Bytes. The largest tokenizers have 30 MB; hashing 100 takes a quarter of a second."""

_INDEX = ".safetensors.index.json"


class FolderSource:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def location(self) -> str:
        return str(self._folder)

    def names(self) -> dict[str, int]:
        """The files of the folder with their sizes in bytes, following links.

        Raises DamagedCheckpoint for weights or a config.json that are no readable file, as an
        aborted download leaves them, and CheckpointError without a folder.
        """
        if not self._folder.is_dir():
            if self._folder.is_file():
                raise NotAFolder(self._folder, (self._folder.parent / CONFIG).is_file())
            raise CheckpointError(
                f"there is no folder {self._folder.absolute()}",
                "use a folder with a config.json",
                "no-such-folder",
            )
        with _as_checkpoint_error(self._folder):
            return _regular_files(self._folder)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._folder / name
        with _as_checkpoint_error(path), path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def digests(self, name: str) -> Mapping[str, str]:
        """Digests of a file of at most 100 MB."""
        path = self._folder / name
        with _as_checkpoint_error(path):
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
    """The regular files; reading a pipe named model.safetensors would block."""
    sizes: dict[str, int] = {}
    problems: dict[str, str] = {}
    for path in folder.iterdir():
        try:
            found = path.stat()
        except FileNotFoundError:
            problems[path.name] = "is a broken link"
        except OSError as error:
            problems[path.name] = f"cannot be opened ({error.strerror})"
        else:
            if S_ISREG(found.st_mode):
                sizes[path.name] = found.st_size
            else:
                is_folder = S_ISDIR(found.st_mode)
                problems[path.name] = "is a folder" if is_folder else "is not a regular file"
    # Of weights that an index names, the error about the index lists all that are missing.
    indexed = any(name.endswith(_INDEX) for name in sizes)
    for name, problem in sorted(problems.items()):
        weights = name.endswith(".safetensors") and not name.startswith(".") and not indexed
        if weights or name == CONFIG:
            message = f"{folder}/{name} {problem}, so it cannot be read"
            raise DamagedCheckpoint(message, "copy it again; an aborted download may have left it")
    return sizes


@contextmanager
def _as_checkpoint_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise CheckpointError(
            f"{where} cannot be read: {error.strerror}", "check the file and its permissions"
        ) from error


def follow_link(path: Path, homes: Sequence[Path]) -> Path:
    """The file or folder that ``path`` is or leads to.

    Raises UserError for a broken link, and for one that leads out of ``homes``
    (``peagle_serve.folder.link_homes``).
    """
    try:
        return parser.follow_link(path, homes)
    except DamagedFile as error:
        raise UserError(error.message, error.fix, "unusable-link") from error


def check_links(folder: Path) -> None:
    """Raise UserError if a link at the folder's top level is broken or leads out of the folder: a
    copy would publish an unintended file, or miss one. An unreadable folder passes."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    homes = link_homes(folder)
    for path in paths:
        follow_link(path, homes)
