"""The header of a safetensors file: which tensors it holds, and whether it is whole.

The file is 8 bytes with the length of the header, little-endian; the header, a JSON object from
tensor names to ``dtype``, ``shape`` and ``data_offsets``; and the bytes of the tensors, one after
the other without a gap, which are never read here. What the safetensors library refuses is refused
here in words that name the tensor. Stricter: no name twice, and no header of more than 25 MB.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NoReturn, TypeGuard

from peagle.checkpoints.models import Tensor
from peagle.errors import CheckpointError

LONGEST_HEADER = 25_000_000
"""Bytes. That of a model with 120 billion parameters has less than 1 MB; the library's own limit,
100 MB, would have us download what cannot be a header."""

_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
_AGAIN = "copy the file again"
_NOT_COPIED = "run `git lfs pull`, or download the file itself"
_LFS_POINTER = b"version https://git-lfs"
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""The dtypes of safetensors 0.8, with the bits of one number."""

_MOST_BITS = 2**67


class _Entry:
    """A tensor of the header, with where its bytes begin and end."""

    def __init__(self, name: str, tensor: Tensor, begin: int) -> None:
        self.name, self.tensor, self.begin = name, tensor, begin

    @property
    def end(self) -> int:
        return self.begin + self.tensor.size


def header_bytes(start: bytes, file_size: int, file: str) -> int:
    """How many bytes of the file its header takes, the 8 of its length included.

    ``start`` is the beginning of the file, 8 bytes or more. Raises CheckpointError when the file
    cannot hold such a header, or the header is too long to be one.
    """
    if start.startswith(_LFS_POINTER):
        raise CheckpointError(f"{file} is a pointer of Git LFS, not the weights", _NOT_COPIED)
    if len(start) < _LENGTH.size:
        raise CheckpointError(f"{file} is cut short: it has {file_size:,} bytes", _AGAIN)
    length: int = _LENGTH.unpack_from(start)[0]
    if _LENGTH.size + length > file_size:
        raise CheckpointError(
            f"{file} is cut short, or no safetensors file: its header would have {length:,} bytes "
            f"and the whole file has {file_size:,}",
            _AGAIN,
        )
    if length > LONGEST_HEADER:
        raise CheckpointError(
            f"{file} says that its header has {length / 1e6:,.0f} MB; it is not read, since even a "
            f"model of 120 billion parameters has less than 1 MB (the limit is "
            f"{LONGEST_HEADER / 1e6:.0f} MB)",
            "copy the file again, or save the weights with the safetensors library",
        )
    return _LENGTH.size + length


def parse_header(head: bytes, file_size: int, file: str) -> dict[str, Tensor]:
    """The tensors of the file called ``file``, in the order of their bytes.

    ``head`` is its first ``header_bytes()`` bytes or more. Raises CheckpointError when the file is
    cut short, is no safetensors file, or its header contradicts itself.
    """
    size = header_bytes(head, file_size, file)
    document = _json(head[_LENGTH.size : size], size - _LENGTH.size, file)
    _check_metadata(document.pop(_METADATA, None), file)
    available = file_size - size
    entries = [_entry(name, said, file) for name, said in document.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    end = _check_contiguous(entries, file)
    if end > available:
        raise CheckpointError(
            f"{file} is cut short: it has {file_size:,} bytes, and its tensors end at "
            f"{size + end:,}",
            _AGAIN,
        )
    if end < available:
        _refuse(file, f"{available - end:,} bytes at its end belong to no tensor")
    return {entry.name: entry.tensor for entry in entries}


def _json(text: bytes, length: int, file: str) -> dict[str, Any]:
    if len(text) < length:
        raise CheckpointError(f"{file} is cut short: it ends within its header", _AGAIN)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                _refuse(file, f"its header has {_shown(name)} twice")
            found[name] = value
        return found

    try:
        document = json.loads(text.decode(), object_pairs_hook=once, parse_constant=_no_constant)
        # Half of a surrogate pair is no name that could be printed.
        "".join(document if isinstance(document, dict) else ()).encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is not a safetensors file: its header is no JSON that can be read", _AGAIN
        ) from error
    if not isinstance(document, dict):
        raise CheckpointError(
            f"{file} is not a safetensors file: its header is no JSON object", _AGAIN
        )
    return document


def _no_constant(name: str) -> NoReturn:
    """Python's json takes NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def _check_metadata(said: Any, file: str) -> None:
    if said is None:
        return
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        _refuse(file, f"{_METADATA} of its header is not an object of texts")


def _entry(name: str, said: Any, file: str) -> _Entry:
    what = _shown(name)
    if not isinstance(said, dict):
        _refuse(file, f"its header does not say what {what} is")
    dtype, shape, offsets = said.get("dtype"), said.get("shape"), said.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        _refuse(file, f"{what} has the unknown dtype {_shown(dtype)}")
    if not _are_counts(shape):
        _refuse(file, f"the shape of {what} is {_shown(shape)}, not a list of whole numbers")
    if not _are_counts(offsets) or len(offsets) != 2:
        _refuse(file, f"its header does not say where {what} lies")
    begin, end = offsets
    if end < begin:
        _refuse(file, f"{what} ends at {end:,}, before it begins at {begin:,}")
    bits = _bits(dtype, shape)
    if bits != 8 * (end - begin):
        size = f"{bits / 8:,.10g}" if bits is not None else "far too many"
        _refuse(
            file,
            f"{what} is {dtype} {_shown(shape)}, which takes {size} bytes, and the header gives it "
            f"{end - begin:,}",
        )
    return _Entry(name, Tensor(dtype, tuple(shape), end - begin, file), begin)


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _bits(dtype: str, shape: list[int]) -> int | None:
    """The bits that such a tensor takes; ``None`` for more than any machine has.

    A hostile shape is not multiplied to its end: the product could have millions of digits.
    """
    if 0 in shape:
        return 0
    bits = _BITS[dtype]
    for size in shape:
        bits *= size
        if bits > _MOST_BITS:
            return None
    return bits


def _check_contiguous(entries: list[_Entry], file: str) -> int:
    """Where the last tensor ends, after checking that they follow one another."""
    end, before = 0, ""
    for entry in entries:
        if entry.begin < end:
            _refuse(file, f"{_shown(entry.name)} overlaps {_shown(before)}")
        if entry.begin > end:
            _refuse(
                file, f"{entry.begin - end:,} bytes before {_shown(entry.name)} are of no tensor"
            )
        end, before = entry.end, entry.name
    return end


def _shown(value: Any) -> str:
    """A value of the file for a message: short, and nothing in it that moves a cursor."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse(file: str, why: str) -> NoReturn:
    raise CheckpointError(f"{file} is damaged: {why}", _AGAIN)
