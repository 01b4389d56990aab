"""Reproducible build contexts, and the base image of a build.

An archive depends on the content of its files only: entries are sorted by path; owner, group and
times are zero; modes are 644 and 755. It is streamed, also inside another archive, whose header
needs its size beforehand: so ``tarfile`` makes the headers, and the content is not copied to disk.
"""

from __future__ import annotations

import errno
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from peagle.checkpoints.folder import follow_link
from peagle.data import data_folder
from peagle.errors import UserError
from peagle.images.docker import Docker, Progress
from peagle.render.image_names import has_host, pinned, split_image, without_tag
from peagle_serve.folder import link_homes

_FILE_MODE, _FOLDER_MODE = 0o644, 0o755
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Member:
    """A file of an archive: its path, its size in bytes, and its content in chunks."""

    path: str
    size: int
    chunks: Callable[[], Iterable[bytes]]


def member_of(path: str, content: bytes) -> Member:
    return Member(path, len(content), lambda: (content,))


def members_of(
    folder: Path, into: str, skip: Callable[[Path], bool] = lambda path: False
) -> list[Member]:
    """All files below ``folder``, at ``into`` in the archive; links are followed.

    Raises UserError for a broken link or one that leaves the folder: everything in an image must be
    in the folder that the user named.
    """
    homes = link_homes(folder)
    found = []
    for path in sorted(folder.rglob("*")):
        if skip(path):
            continue
        real = follow_link(path, homes)
        if real.is_dir():
            continue
        if not real.is_file():
            raise UserError(
                f"{path} is not a regular file",
                "remove it, or choose another folder",
                "not-a-file",
            )
        inside = path.relative_to(folder).as_posix()
        found.append(Member(f"{into}/{inside}", real.stat().st_size, _reader(real)))
    return found


def tar(members: Iterable[Member]) -> Iterator[bytes]:
    """The archive in chunks. Raises UserError when the size of a file changes meanwhile."""
    total = 0
    for header, member in _entries(members):
        yield header
        yield from _content(member)
        total += len(header) + _padded(member.size)
    yield b"\0" * (_archive_size(total) - total)


def tar_member(path: str, members: Iterable[Member]) -> Member:
    """An archive of ``members`` as a file of another archive."""
    held = list(members)
    total = sum(len(header) + _padded(member.size) for header, member in _entries(held))
    return Member(path, _archive_size(total), lambda: tar(held))


def _entries(members: Iterable[Member]) -> Iterator[tuple[bytes, Member]]:
    """Each member with its header; before its first file, each folder."""
    known = {"."}
    for member in sorted(members, key=lambda one: one.path):
        for parent in reversed(PurePosixPath(member.path).parents):
            folder = parent.as_posix()
            if folder not in known:
                known.add(folder)
                yield _header(folder, 0, _FOLDER_MODE, tarfile.DIRTYPE), member_of(folder, b"")
        yield _header(member.path, member.size, _FILE_MODE, tarfile.REGTYPE), member


def _header(path: str, size: int, mode: int, kind: bytes) -> bytes:
    """Owner, group and time are zero by default."""
    info = tarfile.TarInfo(path)
    info.size, info.mode, info.type = size, mode, kind
    return info.tobuf(tarfile.PAX_FORMAT)


def _content(member: Member) -> Iterator[bytes]:
    left = member.size
    for chunk in member.chunks():
        left -= len(chunk)
        if left < 0:
            break
        yield chunk
    if left != 0:
        raise UserError(
            f"{member.path} changed while being read", "repeat the command", "source-changed"
        )
    yield b"\0" * (_padded(member.size) - member.size)


def _reader(path: Path) -> Callable[[], Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk

    return chunks


def _padded(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE


def _archive_size(total: int) -> int:
    """The size of the archive: two empty blocks follow, then zeros up to a whole record."""
    closed = total + 2 * tarfile.BLOCKSIZE
    return closed + -closed % tarfile.RECORDSIZE


def source_revision() -> str | None:
    """The commit of the toolkit's source, with ``-dirty`` for uncommitted changes; ``None`` for an
    installed package."""
    root = data_folder("containers").parent
    if not (root / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def pulled(docker: Docker, name: str, progress: Progress) -> dict[str, Any]:
    """Docker's description of the image ``name``, which is pulled if necessary."""
    found = docker.inspect("image", name)
    if found is None:
        progress(f"pulling {name}")
        docker.stream("pull", name, doing=f"pulling {name}", each_line=progress)
        found = docker.inspect("image", name) or {}
    return found


def with_digest(docker: Docker, base: str, progress: Progress = lambda line: None) -> str:
    """``base`` with its digest, so that the build can be repeated.

    A name without a registry may exist on this machine only; it stays as it is.
    """
    name, digest = split_image(base)
    if digest or not has_host(name):
        return base
    digests = digests_of(pulled(docker, name, progress), without_tag(name))
    return pinned(name, digests[0] if digests else None)


def digests_of(found: Mapping[str, Any], repository: str) -> list[str]:
    """The digests under which an image is in ``repository``, from Docker's description."""
    known = (one.partition("@") for one in found.get("RepoDigests") or ())
    return [digest for address, _, digest in known if address == repository]


_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def explain_full_disk(what: str) -> Iterator[None]:
    """Raise UserError when the block fails because the disk of temporary files is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UserError(
            f"the disk of {tempfile.gettempdir()} is full: {what} does not fit",
            "free some space, or set TMPDIR to another folder",
            "disk-full",
        ) from error
