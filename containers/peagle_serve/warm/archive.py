"""What an engine has compiled, as an archive: its caches, and nothing else.

An archive of caches unpacked into an empty folder, with every doubt about it.

Only files and folders, only below the folders of caches, each once, and no byte more than the
manifest says. Nothing that lies outside can be written: there are no links.
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
from typing import IO, BinaryIO, NamedTuple

from peagle_serve.warm.caches import FOLDERS, is_cache_path
from peagle_serve.warm.manifest import Damaged, Manifest, open_plain

_LEVEL = 3
"""Of gzip: kernels hardly get smaller with more, and somebody waits."""
NANOSECONDS = 1_000_000_000
_NO_CACHE = ("vllm/assets", "vllm/media", "vllm/xla_cache")
_WEIGHTS = (".safetensors", ".gguf", ".pt", ".pth", ".ckpt")
_OF_THE_MOMENT = (".lock", ".tmp", ".pid")
_NOT_COMPILED = "vllm/modelinfos/"
"""What vLLM remembers of its own classes, also where it compiles nothing."""


class NothingCompiled(Exception):
    """The engine has compiled nothing, or nothing that others may have."""


class Packed(NamedTuple):
    """An archive: its ``size`` and ``sha256``, and what it holds."""

    size: int
    sha256: str
    files: int
    unpacked_bytes: int


def pack(place: Path, archive: Path, secrets: Iterable[str]) -> Packed:
    """Pack the caches in ``place`` into ``archive``, which is there as a whole or not at all.

    A file with one of ``secrets`` in it stays out (vLLM writes down what its keys were made of),
    and so does one that vanishes meanwhile: the engine goes on. Raises NothingCompiled, OSError.
    """
    hidden = [secret.encode() for secret in secrets]
    paths = list(_paths(place))
    if not _is_compiled(paths):
        raise NothingCompiled("the engine has compiled nothing: does it run with --enforce-eager?")
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
    """Whether there is compiled code among the files."""
    return not all(path.startswith(_NOT_COMPILED) for path in paths)


def _paths(place: Path) -> Iterator[str]:
    """The files of the caches, below ``place``, in the order of their names. Follows no link."""
    for name in sorted(FOLDERS.values()):
        for folder, below, files in os.walk(place / name):
            relative = Path(folder).relative_to(place).as_posix()
            below[:] = sorted(one for one in below if f"{relative}/{one}" not in _NO_CACHE)
            for one in sorted(files):
                if not one.endswith((*_WEIGHTS, *_OF_THE_MOMENT)):
                    yield f"{relative}/{one}"


def _write(file: IO[bytes], place: Path, paths: list[str], hidden: list[bytes]) -> Packed:
    """Write the archive. Raises NothingCompiled if only what is of no use was left."""
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
            "nothing is left to pack: each compiled file holds the value of a secret variable, "
            "or has gone (is a key or token so short that it is found everywhere?)"
        )
    return Packed(hashed.size, hashed.digest(), len(written), unpacked)


def _read(place: Path, path: str) -> tuple[bytes, tarfile.TarInfo | None]:
    """A file as it is now, with its time; nothing if it has gone, or is no plain file.

    The time is kept to the nanosecond: ninja, which builds FlashInfer's kernels, builds all anew
    that looks newer than its own record says, and a float rounds up as often as down.
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


class _Hashed:
    """Writes to a file, and remembers how much and what."""

    def __init__(self, file: IO[bytes]) -> None:
        self.size = 0
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, content: bytes) -> int:
        self._hash.update(content)
        self.size += len(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> str:
        return self._hash.hexdigest()


_CHUNK = 1 << 18
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_PER_FILE = 8192
"""Bytes that an archive may take beside a file's content: headers, a long name, padding."""
_AROUND = 1 << 16
_DEEPEST = 64
"""Folders in each other; Python removes them by calling itself, and that has an end."""
_UNREADABLE = (
    tarfile.TarError,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
    RecursionError,  # one header after another: tarfile calls itself for each
)
_GZIP = 31
_EXACT = re.compile(r"([0-9]{1,10})\.([0-9]{1,9})")
_LATEST = 1 << 33
"""Seconds; a time that no file has."""


def unpack(archive: Path, manifest: Manifest, folder: Path) -> None:
    """Unpack all of ``archive`` into ``folder``, which is empty.

    Raises Damaged for anything that is not as the manifest says, and OSError. What was written
    until then is the caller's to remove.
    """
    with open_plain(archive) as file:
        size = os.fstat(file.fileno()).st_size
        if size != manifest.size:
            raise Damaged(f"{archive.name} has {size} bytes, and its manifest says {manifest.size}")
        content = _Content(file, manifest.unpacked_bytes + _PER_FILE * manifest.files + _AROUND)
        try:
            files, unpacked = _members(content, folder)
            content.finish()
        except _UNREADABLE as error:
            raise Damaged(f"{archive.name} cannot be read: {error}") from None
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise Damaged(f"{archive.name} holds a path that is file and folder at once") from None
    if content.digest() != manifest.sha256:
        raise Damaged(f"{archive.name} has another sha256 than its manifest says")
    if (files, unpacked) != (manifest.files, manifest.unpacked_bytes):
        raise Damaged(f"{archive.name} holds {files} files of {unpacked} bytes, "
                      f"not {manifest.files} of {manifest.unpacked_bytes}")  # fmt: skip


class _Content:
    """What a gzip file holds, as a stream that ends at a limit; all of the file is hashed."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = limit
        self._hash = hashlib.sha256()
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
                raise Damaged("the archive holds more than its manifest says")
            if content:
                return content
            if not more and not self._gzip.eof:
                raise Damaged("the archive is cut short")
        return b""

    def finish(self) -> None:
        """Read to the end. Raises Damaged if there is more after it."""
        while self.read():
            pass
        if self._gzip.unused_data or self._read_file():
            raise Damaged("the archive has more after its end")

    def digest(self) -> str:
        """Of the file, as far as it was read."""
        return self._hash.hexdigest()

    def _read_file(self) -> bytes:
        read = self._file.read(_CHUNK)
        self._hash.update(read)
        return read


def _members(content: _Content, folder: Path) -> tuple[int, int]:
    """Write every member; gives back how many files, and of how many bytes."""
    files = unpacked = 0
    seen: set[str] = set()
    with tarfile.open(fileobj=content, mode="r|", bufsize=_CHUNK) as archive:  # type: ignore[call-overload]
        for member in archive:
            place = folder / _checked_name(member, seen)
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            _write_unpack(archive.extractfile(member), member, place)
            files, unpacked = files + 1, unpacked + member.size
    return files, unpacked


def _checked_name(member: tarfile.TarInfo, seen: set[str]) -> str:
    """The member's path. Raises Damaged for one that may not be written."""
    name = member.name
    parts = name.split("/")
    shown = repr(name[:100])
    if name.startswith("/") or not {"", ".", ".."}.isdisjoint(parts) or "\0" in name:
        raise Damaged(f"the archive holds the path {shown}, which may leave its folder")
    if len(parts) > _DEEPEST:
        raise Damaged(f"the archive holds {shown}, which lies too deep")
    if not is_cache_path(parts):
        raise Damaged(f"the archive holds {shown}, which is no cache of an engine")
    plain = member.type in _PLAIN and not member.sparse and len(parts) > 1
    if not (plain or member.isdir()):
        raise Damaged(f"the archive holds {shown}, which is neither a file nor a folder")
    if name in seen:
        raise Damaged(f"the archive holds {shown} twice")
    seen.add(name)
    return name


def _write_unpack(content: object, member: tarfile.TarInfo, place: Path) -> None:
    """One file, with the time that it had: tools that compile compare times."""
    mode = 0o755 if member.mode & 0o100 else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    left = member.size  # below 0 in a damaged one: then nothing is written, and the sum is wrong
    with os.fdopen(os.open(place, flags, mode), "wb") as file:
        while left > 0:
            part = content.read(min(left, _CHUNK))  # type: ignore[attr-defined]
            if not part:
                raise Damaged("the archive is cut short")
            file.write(part)
            left -= len(part)
    moment = min(max(_nanoseconds(member), 0), _LATEST * NANOSECONDS)
    os.utime(place, ns=(moment, moment))


def _nanoseconds(member: tarfile.TarInfo) -> int:
    """The member's time, as its header says it: ``TarInfo.mtime`` is a float, and rounded."""
    said = member.pax_headers.get("mtime", "")
    if exact := _EXACT.fullmatch(said):
        return int(exact[1]) * NANOSECONDS + int(exact[2].ljust(9, "0"))
    return int(member.mtime * NANOSECONDS)
