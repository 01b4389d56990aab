"""A build context as a tar: the same files, the same bytes, whoever makes it and when.

Sorted by path; owner, group and times are zero; modes are 644 and 755. Large files are read while
the archive is written, so that nothing is copied to a disk first.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from toolkit.checkpoints.links import followed, homes_of
from toolkit.errors import UserError

_FILE_MODE, _FOLDER_MODE = 0o644, 0o755
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Member:
    """A file of an archive: its path, its size in bytes, and how to read it, in chunks."""

    path: str
    size: int
    chunks: Callable[[], Iterable[bytes]]


def member_of(path: str, content: bytes) -> Member:
    """A small file."""
    return Member(path, len(content), lambda: (content,))


def members_of(
    folder: Path, into: str, skip: Callable[[Path], bool] = lambda path: False
) -> list[Member]:
    """Every file below ``folder``, at ``into`` in the archive; a link becomes what it leads to.

    Raises UserError for a link that leaves the folder or leads nowhere: what is meant to be in an
    image must be in the folder that was named.
    """
    homes = homes_of(folder)
    found = []
    for path in sorted(folder.rglob("*")):
        if skip(path):
            continue
        real = followed(path, homes)
        if real.is_dir():
            continue
        if not real.is_file():
            raise UserError(f"{path} is no file", "remove it, or name another folder")
        inside = path.relative_to(folder).as_posix()
        found.append(Member(f"{into}/{inside}", real.stat().st_size, _reader(real)))
    return found


def tar(members: Iterable[Member]) -> Iterator[bytes]:
    """The archive, in chunks. Raises UserError when a file changes its size meanwhile."""
    total = 0
    for header, member in _entries(members):
        yield header
        yield from _content(member)
        total += len(header) + _padded(member.size)
    yield b"\0" * (_end_of(total) - total)


def tar_member(path: str, members: Iterable[Member]) -> Member:
    """An archive of ``members`` as a file of another archive."""
    held = list(members)
    total = sum(len(header) + _padded(member.size) for header, member in _entries(held))
    return Member(path, _end_of(total), lambda: tar(held))


def _entries(members: Iterable[Member]) -> Iterator[tuple[bytes, Member]]:
    """Each member with its header; before its first file, each folder."""
    known = {""}
    for member in sorted(members, key=lambda one: one.path):
        for parent in reversed(PurePosixPath(member.path).parents):
            folder = "" if parent == PurePosixPath() else parent.as_posix()
            if folder not in known:
                known.add(folder)
                yield _header(folder, 0, _FOLDER_MODE, tarfile.DIRTYPE), member_of(folder, b"")
        yield _header(member.path, member.size, _FILE_MODE, tarfile.REGTYPE), member


def _header(path: str, size: int, mode: int, kind: bytes) -> bytes:
    """Owner, group and time are zero where nothing else is said."""
    info = tarfile.TarInfo(path)
    info.size, info.mode, info.type = size, mode, kind
    return info.tobuf(tarfile.PAX_FORMAT)


def _content(member: Member) -> Iterator[bytes]:
    """The file's bytes, and zeros up to a whole block."""
    left = member.size
    for chunk in member.chunks():
        left -= len(chunk)
        if left < 0:
            break
        yield chunk
    if left != 0:
        raise UserError(f"{member.path} changed while it was read", "repeat it when it is at rest")
    yield b"\0" * (_padded(member.size) - member.size)


def _reader(path: Path) -> Callable[[], Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk

    return chunks


def _padded(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE


def _end_of(total: int) -> int:
    """Where the archive ends: after two empty blocks, at a whole record."""
    closed = total + 2 * tarfile.BLOCKSIZE
    return closed + -closed % tarfile.RECORDSIZE
