"""The artifact of a warm start: an engine's compile caches as ``<key>.tar.gz``, and its manifest
``<key>.json``.

An artifact is code that the engine runs, so the container restores only archives whose SHA-256 is
in ``PEAGLE_WARM_SHA256``. The checks here detect damage, and tarfile's filter keeps the members in
their folder. They do not detect malicious code.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from peagle_serve.contract import ARTIFACT_FORMAT, CACHE_VARIABLE, MANIFEST_SUFFIX, SHA256
from peagle_serve.json_reader import InvalidJson, Limits, open_regular, read, read_regular

FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "CUTE_DSL_CACHE_DIR": "cute_dsl",
    "TILELANG_CACHE_DIR": "tilelang",
    "HUMMING_CACHE_DIR": "humming",
    "QUACK_CACHE_DIR": "quack",
}
"""Variable -> folder: all caches of vLLM and of its kernel libraries."""
LARGER_DISK = f"free some space there, or set {CACHE_VARIABLE} to a folder of a larger disk"

LARGEST = 1 << 20
"""Bytes of a manifest."""
_MOST = 1 << 50
_NUMBERS = (
    ("size", (int,), _MOST),
    ("files", (int,), _MOST),
    ("unpacked_bytes", (int,), _MOST),
    ("seconds_cold", (int, float), 1e9),
)
"""Key, types, largest value."""
_LONGEST_SHOWN = 40


class Damaged(Exception):
    """An artifact that is damaged or invalid; the message says how."""


class NothingCompiled(Exception):
    """The engine has compiled nothing, or nothing that may be shared."""


class Manifest(NamedTuple):
    """``size`` and ``sha256`` are those of the archive, ``files`` and ``unpacked_bytes`` of its
    content. ``seconds_cold``: how long the engine that compiled it took from start to healthy."""

    key: str
    subject: Mapping[str, Any]
    size: int
    sha256: str
    files: int
    unpacked_bytes: int
    seconds_cold: float
    made: str

    def document(self) -> dict[str, Any]:
        """The content of the file."""
        return {"format": ARTIFACT_FORMAT, **self._asdict()}


def key_of(subject: Mapping[str, Any]) -> str:
    """The first 32 hexadecimal digits of the SHA-256 over the subject's canonical JSON."""
    return hashlib.sha256(canonical(subject)).hexdigest()[:32]


def canonical(subject: Mapping[str, Any]) -> bytes:
    """The subject as canonical JSON."""
    text = json.dumps(subject, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode()


def archive_of(place: Path) -> Path:
    """The archive that the key's folder ``place`` is packed into."""
    return place.with_name(f"{place.name}.collected.tar.gz")


def read_manifest(file: Path) -> Manifest:
    """The manifest in ``file``, whose name is its key. Raises Damaged, OSError."""
    try:
        document = read(read_regular(file, LARGEST), file.name, limits=Limits(size=LARGEST))
    except InvalidJson as error:
        raise Damaged(str(error)) from None
    return manifest_of(document, file.name)


def sha256_in(content: bytes) -> str | None:
    """The SHA-256 of the archive, from a manifest of which nothing else is checked; ``None``
    without a valid one."""
    try:
        digest = read(content, "the manifest", limits=Limits(size=LARGEST))["sha256"]
    except (InvalidJson, LookupError, TypeError):
        return None
    return digest if isinstance(digest, str) and SHA256.fullmatch(digest) else None


def manifest_of(document: Any, name: str) -> Manifest:
    """The manifest in ``document``; ``name`` is its file name. Raises Damaged."""

    def shown(value: object) -> str:
        return repr(value)[:_LONGEST_SHOWN]

    if not isinstance(document, dict):
        raise Damaged(f"{name} is not a JSON object")
    if document.get("format") != ARTIFACT_FORMAT:
        raise Damaged(
            f"{name} has the format {shown(document.get('format'))}, not {ARTIFACT_FORMAT}"
        )
    for field, kinds, most in _NUMBERS:
        value: Any = document.get(field, 0 if field == "seconds_cold" else None)
        if type(value) not in kinds or not 0 <= value <= most:
            raise Damaged(f"{name} has the {field} {shown(value)}")
    key, subject, digest = (document.get(field) for field in ("key", "subject", "sha256"))
    if not isinstance(subject, dict) or key != key_of(subject):
        raise Damaged(f"{name} has a key that does not match its subject")
    if name != f"{key}{MANIFEST_SUFFIX}":
        raise Damaged(f"{name} has the key {key}")
    if not isinstance(digest, str) or not SHA256.fullmatch(digest):
        raise Damaged(f"{name} has no sha256")
    return Manifest(
        key=key,
        subject=subject,
        size=document["size"],
        sha256=digest,
        files=document["files"],
        unpacked_bytes=document["unpacked_bytes"],
        seconds_cold=float(document.get("seconds_cold", 0)),
        made=str(document.get("made", ""))[:_LONGEST_SHOWN],
    )


_LEVEL = 3
"""gzip's level; higher ones hardly make kernels smaller."""
_NO_CACHE = ("vllm/assets", "vllm/media", "vllm/xla_cache")
_LEFT_OUT = (".safetensors", ".gguf", ".pt", ".pth", ".ckpt", ".lock", ".tmp", ".pid")
"""Endings of weights and of temporary files."""
_NOT_COMPILED = "vllm/modelinfos/"
"""vLLM's information about its own classes, which exists without compiled code."""


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
    if all(path.startswith(_NOT_COMPILED) for path in paths):
        raise NothingCompiled("the engine has compiled nothing (does it run with --enforce-eager?)")
    # Not ``peagle.store``: this package has the standard library only.
    descriptor, temporary = tempfile.mkstemp(prefix=archive.name, dir=archive.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            packed = _write_archive(file, place, paths, hidden)
        os.replace(temporary, archive)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return packed


def _paths(place: Path) -> Iterator[str]:
    """The files of the caches below ``place``, sorted. Follows no link."""
    for name in sorted(FOLDERS.values()):
        for folder, below, files in os.walk(place / name):
            relative = Path(folder).relative_to(place).as_posix()
            below[:] = sorted(each for each in below if f"{relative}/{each}" not in _NO_CACHE)
            for file in sorted(files):
                if not file.endswith(_LEFT_OUT):
                    yield f"{relative}/{file}"


def _write_archive(file: IO[bytes], place: Path, paths: list[str], hidden: list[bytes]) -> Packed:
    written: list[str] = []
    unpacked = 0
    hashed = _Hashed(file)
    with (
        gzip.GzipFile(filename="", fileobj=hashed, mode="wb", compresslevel=_LEVEL, mtime=0) as out,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            content, member = _read_member(place, path)
            if member is None or any(secret in content for secret in hidden):
                continue
            archive.addfile(member, io.BytesIO(content))
            written.append(path)
            unpacked += member.size
    if all(path.startswith(_NOT_COMPILED) for path in written):
        raise NothingCompiled(
            "every compiled file contains the value of a secret variable, or was removed "
            "(is a key or token so short that it occurs everywhere?)"
        )
    return Packed(hashed.size, hashed.hash.hexdigest(), len(written), unpacked)


def _read_member(place: Path, path: str) -> tuple[bytes, tarfile.TarInfo | None]:
    """The content and header of a file; no header if it is gone or not a regular file.

    The time is in whole seconds, rounded down: ninja, which builds FlashInfer's kernels, rebuilds
    files that look newer than in its record.
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
    member.mtime = int(facts.st_mtime)
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


_UNREADABLE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError)


def unpack(archive: Path, manifest: Manifest, folder: Path) -> None:
    """Unpack all of ``archive`` into ``folder``, which is empty.

    Raises Damaged for every difference from the manifest, and OSError. The caller removes what was
    written until then.
    """
    with open_regular(archive) as file:
        # Checked first, so that nothing of another archive is decompressed.
        if hashlib.file_digest(file, "sha256").hexdigest() != manifest.sha256:
            raise Damaged(f"{archive.name} does not match the sha256 in its manifest")
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:gz") as content:
                members = content.getmembers()
                folders = {member.name.partition("/")[0] for member in members}
                if others := folders.difference(FOLDERS.values()):
                    raise Damaged(f"{archive.name} holds {min(others)!r}, which is no cache")
                content.extractall(folder, members, filter="data")
        except _UNREADABLE as error:
            raise Damaged(f"{archive.name} cannot be read: {error}") from None
    files, unpacked = sum(member.isreg() for member in members), sum(m.size for m in members)
    if (files, unpacked) != (manifest.files, manifest.unpacked_bytes):
        raise Damaged(f"{archive.name} holds {files} files of {unpacked} bytes, "
                      f"not {manifest.files} of {manifest.unpacked_bytes}")  # fmt: skip
