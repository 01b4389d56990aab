"""Packs an engine's compile caches into an archive, and unpacks one into an empty folder.

Only regular files and folders in the cache folders are unpacked, each once, up to the size in the
manifest. There are no links, so nothing outside of the folder can be written.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from peagle_serve.warm.caches import FOLDERS
from peagle_serve.warm.manifest import Damaged, Manifest, open_regular

_LEVEL = 3
"""gzip's level; higher ones hardly make kernels smaller."""
NANOSECONDS = 1_000_000_000
_NO_CACHE = ("vllm/assets", "vllm/media", "vllm/xla_cache")
_WEIGHTS = (".safetensors", ".gguf", ".pt", ".pth", ".ckpt")
_TEMPORARY = (".lock", ".tmp", ".pid")
_NOT_COMPILED = "vllm/modelinfos/"
"""vLLM's information about its own classes, which exists without compiled code."""


class NothingCompiled(Exception):
    """The engine has compiled nothing, or nothing that may be shared."""


class Packed(NamedTuple):
    """An archive: its ``size`` and ``sha256``, and its content."""

    size: int
    sha256: str
    files: int
    unpacked_bytes: int


def pack(place: Path, archive: Path, secrets: Iterable[str]) -> Packed:
    """Pack the caches in ``place`` into ``archive``, which is complete or absent.

    Skips files that contain one of ``secrets`` (vLLM stores the inputs of its keys), and files that
    the engine removes meanwhile. Raises NothingCompiled, OSError.
    """
    hidden = [secret.encode() for secret in secrets]
    paths = list(_paths(place))
    if not _is_compiled(paths):
        raise NothingCompiled("the engine has compiled nothing (does it run with --enforce-eager?)")
    # Not ``peagle.store``: this package has the standard library only.
    descriptor, temporary = tempfile.mkstemp(prefix=archive.name, dir=archive.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            packed = _write(file, place, paths, hidden)
        os.replace(temporary, archive)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return packed


def _is_compiled(paths: Iterable[str]) -> bool:
    return not all(path.startswith(_NOT_COMPILED) for path in paths)


def _paths(place: Path) -> Iterator[str]:
    """The files of the caches below ``place``, sorted. Follows no link."""
    for name in sorted(FOLDERS.values()):
        for folder, below, files in os.walk(place / name):
            relative = Path(folder).relative_to(place).as_posix()
            below[:] = sorted(one for one in below if f"{relative}/{one}" not in _NO_CACHE)
            for one in sorted(files):
                if not one.endswith((*_WEIGHTS, *_TEMPORARY)):
                    yield f"{relative}/{one}"


def _write(file: IO[bytes], place: Path, paths: list[str], hidden: list[bytes]) -> Packed:
    written: list[str] = []
    unpacked = 0
    hashed = _Hashed(file)
    with (
        gzip.GzipFile(filename="", fileobj=hashed, mode="wb", compresslevel=_LEVEL, mtime=0) as out,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            content, member = _read(place, path)
            if member is None or any(secret in content for secret in hidden):
                continue
            archive.addfile(member, io.BytesIO(content))
            written.append(path)
            unpacked += member.size
    if not _is_compiled(written):
        raise NothingCompiled(
            "every compiled file contains the value of a secret variable, or was removed "
            "(is a key or token so short that it occurs everywhere?)"
        )
    return Packed(hashed.size, hashed.hash.hexdigest(), len(written), unpacked)


def _read(place: Path, path: str) -> tuple[bytes, tarfile.TarInfo | None]:
    """The content and header of a file; no header if it is gone or not a regular file.

    The time is exact to the nanosecond: ninja, which builds FlashInfer's kernels, rebuilds files
    that look newer than in its record, and a float may round up.
    """
    try:
        descriptor = os.open(place / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b"", None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            return b"", None
        content = file.read()
    member = tarfile.TarInfo(path)
    member.size = len(content)
    member.mtime = facts.st_mtime_ns // NANOSECONDS
    member.pax_headers = {"mtime": "{}.{:09}".format(*divmod(facts.st_mtime_ns, NANOSECONDS))}
    member.mode = 0o755 if facts.st_mode & stat.S_IXUSR else 0o644
    return content, member


class _Hashed(io.RawIOBase):
    def __init__(self, file: IO[bytes]) -> None:
        self.size = 0
        self.hash = hashlib.sha256()
        self._file = file

    def write(self, content: Any) -> int:
        self.hash.update(content)
        self.size += len(content)
        return self._file.write(content)


_CHUNK = 1 << 18
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_PER_FILE = 8192
"""Bytes of an archive for each file besides its content: headers, a long name, padding."""
_AROUND = 1 << 16
_DEEPEST = 64
"""Nested folders; Python removes them recursively."""
_UNREADABLE = (
    tarfile.TarError,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
    RecursionError,  # tarfile reads consecutive headers recursively
)
_GZIP = 31
_EXACT = re.compile(r"([0-9]{1,10})\.([0-9]{1,9})")
_LATEST = 1 << 33
"""Seconds; later than the time of any file."""


def unpack(archive: Path, manifest: Manifest, folder: Path) -> None:
    """Unpack all of ``archive`` into ``folder``, which is empty.

    Raises Damaged for every difference from the manifest, and OSError. The caller removes what was
    written until then.
    """
    with open_regular(archive) as file:
        size = os.fstat(file.fileno()).st_size
        if size != manifest.size:
            raise Damaged(
                f"{archive.name} has {size} bytes, but its manifest lists {manifest.size}"
            )
        # Checked first, so that nothing of another archive is decompressed.
        if hashlib.file_digest(file, "sha256").hexdigest() != manifest.sha256:
            raise Damaged(f"{archive.name} does not match the sha256 in its manifest")
        file.seek(0)
        content = _Content(file, manifest.unpacked_bytes + _PER_FILE * manifest.files + _AROUND)
        try:
            files, unpacked = _members(content, folder)
            content.finish()
        except _UNREADABLE as error:
            raise Damaged(f"{archive.name} cannot be read: {error}") from None
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise Damaged(f"{archive.name} holds a path that is both file and folder") from None
    if content.hash.hexdigest() != manifest.sha256:
        raise Damaged(f"{archive.name} does not match the sha256 in its manifest")
    if (files, unpacked) != (manifest.files, manifest.unpacked_bytes):
        raise Damaged(f"{archive.name} holds {files} files of {unpacked} bytes, "
                      f"not {manifest.files} of {manifest.unpacked_bytes}")  # fmt: skip


class _Content:
    """The content of a gzip file as a stream with a limit; computes the file's checksum."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.hash = hashlib.sha256()
        self._file = file
        self._left = limit
        self._gzip = zlib.decompressobj(_GZIP)
        self._waiting = b""

    def read(self, size: int = _CHUNK) -> bytes:
        """Some bytes, at most ``size``; none at the end. Raises Damaged, zlib.error."""
        while not self._gzip.eof:
            more = self._waiting or self._read_file()
            content = self._gzip.decompress(more, size)
            self._waiting = self._gzip.unconsumed_tail
            self._left -= len(content)
            if self._left < 0:
                raise Damaged("the archive is larger than in its manifest")
            if content:
                return content
            if not more and not self._gzip.eof:
                raise Damaged("the archive is truncated")
        return b""

    def finish(self) -> None:
        """Read to the end. Raises Damaged for data after it."""
        while self.read():
            pass
        if self._gzip.unused_data or self._read_file():
            raise Damaged("the archive has data after its end")

    def _read_file(self) -> bytes:
        read = self._file.read(_CHUNK)
        self.hash.update(read)
        return read


def _members(content: _Content, folder: Path) -> tuple[int, int]:
    """Write every member. Returns the number of files and of bytes."""
    files = unpacked = 0
    seen: set[str] = set()
    with tarfile.open(fileobj=content, mode="r|", bufsize=_CHUNK) as archive:  # type: ignore[call-overload]
        for member in archive:
            place = folder / _checked_name(member, seen)
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            _write_file(archive.extractfile(member), member, place)
            files, unpacked = files + 1, unpacked + member.size
    return files, unpacked


def _checked_name(member: tarfile.TarInfo, seen: set[str]) -> str:
    """The member's path. Raises Damaged for one that must not be written."""
    name = member.name
    parts = name.split("/")
    shown = repr(name[:100])
    if name.startswith("/") or not {"", ".", ".."}.isdisjoint(parts) or "\0" in name:
        raise Damaged(f"the archive holds the path {shown}, which may leave its folder")
    if len(parts) > _DEEPEST:
        raise Damaged(f"the archive holds {shown}, which is nested too deeply")
    if parts[0] not in FOLDERS.values():
        raise Damaged(f"the archive holds {shown}, which is not in a cache folder")
    plain = member.type in _PLAIN and not member.sparse and len(parts) > 1
    if not (plain or member.isdir()):
        raise Damaged(f"the archive holds {shown}, which is neither a file nor a folder")
    if name in seen:
        raise Damaged(f"the archive holds {shown} twice")
    seen.add(name)
    return name


def _write_file(content: object, member: tarfile.TarInfo, place: Path) -> None:
    """Write one file with its original time: build tools compare times."""
    mode = 0o755 if member.mode & 0o100 else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    left = member.size  # may be negative in a damaged archive; the totals differ then
    with os.fdopen(os.open(place, flags, mode), "wb") as file:
        while left > 0:
            part = content.read(min(left, _CHUNK))  # type: ignore[attr-defined]
            if not part:
                raise Damaged("the archive is truncated")
            file.write(part)
            left -= len(part)
    moment = min(max(_nanoseconds(member), 0), _LATEST * NANOSECONDS)
    os.utime(place, ns=(moment, moment))


def _nanoseconds(member: tarfile.TarInfo) -> int:
    """The member's exact time: ``TarInfo.mtime`` is a float, and rounded."""
    if exact := _EXACT.fullmatch(member.pax_headers.get("mtime", "")):
        return int(exact[1]) * NANOSECONDS + int(exact[2].ljust(9, "0"))
    return int(member.mtime * NANOSECONDS)
