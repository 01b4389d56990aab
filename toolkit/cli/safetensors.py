"""The header of a safetensors file: which tensors it holds, and whether it is whole.

The file is 8 bytes with the length of the header, little-endian; the header, a JSON object from
tensor names to ``data_offsets``; and the tensors, which are never read here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import UserError

_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 100_000_000  # bytes, the limit of the safetensors library
_AGAIN = "copy the head again"


def tensor_names(path: Path) -> tuple[str, ...]:
    """The tensors of the file. Raises UserError for one that is cut short or no safetensors."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_LENGTH.size)
            length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else size
            if _LENGTH.size + length > size:
                raise UserError(f"{path} is cut short: its header does not fit into it", _AGAIN)
            if length > _LONGEST_HEADER:
                raise UserError(f"{path} is not a safetensors file", _AGAIN)
            header = json.loads(file.read(length))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", "check the file") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a safetensors file: no JSON header", _AGAIN) from error
    tensors = dict(_tensors(header, path))
    end = _LENGTH.size + length + max(tensors.values(), default=0)
    if end > size:
        message = f"{path} is cut short: it has {size:,} bytes, and its tensors end at {end:,}"
        raise UserError(message, _AGAIN)
    return tuple(tensors)


def _tensors(header: Any, path: Path) -> Iterator[tuple[str, int]]:
    """Each tensor's name, and where it ends after the header."""
    if not isinstance(header, dict):
        raise UserError(f"{path} is not a safetensors file: its header is no object", _AGAIN)
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not (isinstance(offsets, list) and len(offsets) == 2 and type(offsets[1]) is int):
            raise UserError(f"{path}: the header does not say where {name!r} lies", _AGAIN)
        yield name, offsets[1]
