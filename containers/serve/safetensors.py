"""The header of a safetensors file: which tensors it holds, in which shape, and how long it is."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_LARGEST_HEADER = 100_000_000
"""Bytes; safetensors' own limit."""


class DamagedFile(Exception):
    """A file that is not safetensors, or not all of one. The text says which."""


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """The shape of every tensor, by name. Reads the header only. Raises DamagedFile, OSError."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        begin = stream.read(8)
        length = struct.unpack("<Q", begin)[0] if len(begin) == 8 else 0
        if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
            raise DamagedFile(_what_else(begin + stream.read(100), size))
        header = _parsed(stream.read(length))
    whole = 8 + length + max((int(one["data_offsets"][1]) for one in header.values()), default=0)
    if size < whole:
        raise DamagedFile(f"is cut short: {size:,} bytes of {whole:,}")
    return {name: [int(n) for n in one["shape"]] for name, one in header.items()}


def _parsed(header: bytes) -> dict[str, Any]:
    try:
        document = json.loads(header)
        document.pop("__metadata__", None)
        for tensor in document.values():
            if not (tensor["shape"] is not None and tensor["data_offsets"][1] >= 0):
                raise ValueError
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise DamagedFile("is no safetensors file: its header cannot be read") from None
    return dict(document)


def _what_else(begin: bytes, size: int) -> str:
    if not size:
        return "is empty"
    if begin.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the weights"
    return f"is no safetensors file, or cut short ({size:,} bytes)"
