"""What an engine has compiled, as an archive: its caches, and nothing else."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from serve.warm.caches import FOLDERS

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
