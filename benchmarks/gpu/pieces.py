"""A large file in pieces that each fit one transfer, compressed by all processors, and back.

A piece is one file, ``<name>.<number>``: a line of JSON with the parcel's table of contents, then
its bytes. So pieces travel one by one and in any order. The content is compressed in blocks that
do not depend on each other, since lzma does not hold Python's lock: threads do it, both ways.
Standard library only: it runs on the bare host.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BLOCK_BYTES = 24 << 20
_PRESET = 3
"""Of xz: 6 takes twice the time for 5 % less."""
_LONGEST_TABLE = 1 << 20


class DamagedParcel(Exception):
    """A piece is not what its table of contents says. The text says in what."""


@dataclass(frozen=True)
class Parcel:
    """The table of contents. ``size`` and ``sha256``: of the content; ``blocks``: the compressed
    size of each; ``pieces``: the SHA-256 of each; ``notes``: what the packer wants to tell."""

    name: str
    sha256: str
    size: int
    blocks: list[int]
    piece_bytes: int
    pieces: list[str]
    notes: dict[str, Any]

    @property
    def compressed(self) -> int:
        """Bytes that travel."""
        return sum(self.blocks)


def pack(
    content: Path, out: Path, name: str, piece_bytes: int, notes: dict[str, Any] | None = None
) -> tuple[Parcel, list[Path]]:
    """Cut the file ``content`` into files of at most ``piece_bytes`` in the folder ``out``.

    Pieces of the same name that lie there are replaced.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{name}.*"):
        old.unlink()
    whole, blocks, digest = out / f"{name}.whole", [], hashlib.sha256()
    with whole.open("wb") as file, _threads() as threads:
        for compressed, raw in _compressed_blocks(threads, content):
            digest.update(raw)
            blocks.append(len(compressed))
            file.write(compressed)
    room = piece_bytes - _table_bytes(blocks, piece_bytes, notes)
    digests = [hashlib.sha256(part).hexdigest() for part in _parts(whole, room)]
    parcel = Parcel(
        name, digest.hexdigest(), content.stat().st_size, blocks, room, digests, notes or {}
    )
    files = []
    for number, part in enumerate(_parts(whole, room), 1):
        files.append(out / f"{name}.{number}")
        files[-1].write_bytes(json.dumps(asdict(parcel)).encode() + b"\n" + part)
    whole.unlink()
    return parcel, files


def take(piece: Path, kept: Path) -> tuple[Parcel, list[int]]:
    """Keep a copy of a piece in the folder ``kept``.

    Returns the table of contents, and the numbers that are still missing. Raises DamagedParcel.
    """
    parcel, content = read(piece)
    kept.mkdir(parents=True, exist_ok=True)
    copy = kept / f"{parcel.name}.{_number(piece)}"
    partial = copy.with_name(f"{copy.name}.part")
    partial.write_bytes(json.dumps(asdict(parcel)).encode() + b"\n" + content)
    partial.replace(copy)
    return parcel, missing(parcel, kept)


def read(piece: Path) -> tuple[Parcel, bytes]:
    """The table of contents of a piece, and its own bytes. Raises DamagedParcel."""
    try:
        with piece.open("rb") as file:
            said = json.loads(file.readline(_LONGEST_TABLE))
            content = file.read()
        parcel = Parcel(**said)
        expected = parcel.pieces[_number(piece) - 1]
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise DamagedParcel(f"{piece} is no piece of a parcel: {error}") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise DamagedParcel(f"{piece} is damaged ({len(content)} bytes): send it again")
    return parcel, content


def missing(parcel: Parcel, kept: Path) -> list[int]:
    """The pieces that are not in ``kept``, or are there of another parcel of that name."""
    numbers = range(1, len(parcel.pieces) + 1)
    return [number for number in numbers if not _is_of(kept / f"{parcel.name}.{number}", parcel)]


def join(parcel: Parcel, kept: Path, content: Path) -> None:
    """Put the pieces in ``kept`` together into the file ``content``, which is whole or not there.

    Raises DamagedParcel.
    """
    names = [kept / f"{parcel.name}.{number}" for number in range(1, len(parcel.pieces) + 1)]
    whole = memoryview(b"".join(read(name)[1] for name in names))
    ends = [sum(parcel.blocks[: index + 1]) for index in range(len(parcel.blocks))]
    blocks = [whole[end - size : end] for end, size in zip(ends, parcel.blocks, strict=True)]
    partial, digest = content.with_name(f"{content.name}.part"), hashlib.sha256()
    try:
        with partial.open("wb") as file, _threads() as threads:
            for raw in threads.map(lzma.decompress, blocks):
                digest.update(raw)
                file.write(raw)
        if digest.hexdigest() != parcel.sha256:
            raise DamagedParcel(f"{parcel.name} is not what was sent")
        partial.replace(content)
    except lzma.LZMAError as error:
        raise DamagedParcel(f"{parcel.name} is not what was sent: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _compressed_blocks(threads: ThreadPoolExecutor, content: Path) -> Iterator[tuple[bytes, bytes]]:
    """Each block, compressed and raw; a few at a time are in memory."""
    at_once = 2 * (os.cpu_count() or 1)
    with content.open("rb") as file:
        while batch := [raw for raw in (file.read(BLOCK_BYTES) for _ in range(at_once)) if raw]:
            yield from zip(threads.map(_compressed, batch), batch, strict=True)


def _compressed(raw: bytes) -> bytes:
    return lzma.compress(raw, preset=_PRESET)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1)


def _table_bytes(blocks: list[int], piece_bytes: int, notes: dict[str, Any] | None) -> int:
    """More than the line of JSON at the head of each piece will take. Raises ValueError."""
    count = sum(blocks) // piece_bytes + 2
    table = 4096 + 12 * len(blocks) + 68 * count + len(json.dumps(notes or {}))
    if 2 * table > piece_bytes:
        raise ValueError(f"pieces of {piece_bytes} bytes are too small")
    return table


def _parts(whole: Path, room: int) -> Iterator[bytes]:
    with whole.open("rb") as file:
        while part := file.read(room):
            yield part


def _number(piece: Path) -> int:
    return int(piece.suffix.removeprefix("."))


def _is_of(piece: Path, parcel: Parcel) -> bool:
    try:
        with piece.open("rb") as file:
            return bool(json.loads(file.readline(_LONGEST_TABLE))["sha256"] == parcel.sha256)
    except (OSError, ValueError, KeyError):
        return False
