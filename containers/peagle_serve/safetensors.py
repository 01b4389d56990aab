"""The header of a safetensors file, and which safetensors files of a checkpoint vLLM loads.

A file is 8 bytes with the length of the header, little-endian; the header, a JSON object from
tensor names to ``dtype``, ``shape`` and ``data_offsets``; and the bytes of the tensors without
gaps, which are never read here. Everything that the safetensors library rejects is rejected here
with a message that names the tensor; so is a name that occurs twice.

vLLM loads the safetensors files at the top level of a checkpoint
(``vllm/model_executor/model_loader/default_loader.py``, vLLM 0.28.0): ``consolidated*`` files if
there are any, else all, and of these only the ones that an index names. It ignores subfolders
such as ``original/`` and ``metal/``.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeGuard

from peagle_serve.json_reader import InvalidJson, Limits, open_regular, read

LARGEST_HEADER = 10_000_000
"""Bytes. The library takes 100 million, for which Python needs seconds and a gigabyte; files of
50,000 tensors, more than known checkpoints have in one, need 7 million."""
LARGEST_INDEX = 32_000_000
"""Bytes. The largest indexes have about 20 million, that of GPT-OSS-120B has 60,000."""
_HEADER_LIMITS = Limits(size=LARGEST_HEADER, values=500_000)
"""A tensor has 8 to 10 values. Within these a header takes less than 2 s and 256 MB."""
_INDEX_LIMITS = Limits(size=LARGEST_INDEX, values=500_000)

DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""The dtypes of safetensors 0.8, with the bits of one number."""

_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
_MOST_BITS = 2**67
_MOST_DIMENSIONS = 64
_COPY_AGAIN = "copy the file again"
_COPY_INDEX_AGAIN = "copy the index again, or save the weights again"
_LFS_POINTER = b"version https://git-lfs"
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_OTHER_FORMATS = (
    ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz", ".h5", ".msgpack", ".tensors",
)  # fmt: skip
_CONSOLIDATED = "consolidated*.safetensors"


class DamagedFile(Exception):
    """A file that is damaged, incomplete, or of another kind. ``message`` names the file."""

    def __init__(self, message: str, fix: str = _COPY_AGAIN) -> None:
        self.message, self.fix = message, fix
        super().__init__(message)


class TensorInfo(NamedTuple):
    """One tensor of a header. ``begin`` and ``end`` are byte offsets behind the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of a file, by name, in the order of their bytes.

    Accepts dtypes that are unknown here: vLLM may be newer. Raises DamagedFile, OSError.
    """
    with open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.read(64)
        head += stream.read(max(0, header_bytes(head, size, file.name) - len(head)))
    return parse_header(head, size, file.name, any_dtype=True)


def header_bytes(start: bytes, file_size: int, file: str) -> int:
    """The bytes that the header takes, including the 8 bytes of its length.

    ``start`` is the beginning of the file, 8 bytes or more. Raises DamagedFile when the file cannot
    hold such a header, or the header is larger than ``LARGEST_HEADER``.
    """
    if start.startswith(_LFS_POINTER):
        raise DamagedFile(
            f"{file} is a Git LFS pointer, not the weights",
            "run `git lfs pull`, or download the file again",
        )
    if len(start) < _LENGTH.size:
        raise DamagedFile(f"{file} is truncated: it has {file_size:,} bytes")
    length: int = _LENGTH.unpack_from(start)[0]
    if _LENGTH.size + length > file_size:
        raise DamagedFile(
            f"{file} is truncated, or not a safetensors file: its header would have {length:,} "
            f"bytes and the whole file has {file_size:,}"
        )
    if length > LARGEST_HEADER:
        raise DamagedFile(
            f"{file} has a header of {length / 1e6:,.0f} MB and is not read: the limit is "
            f"{LARGEST_HEADER // 10**6} MB; a model of 120 billion parameters needs less than 1 MB",
            "copy the file again, or save the weights with the safetensors library",
        )
    return _LENGTH.size + length


def parse_header(
    head: bytes,
    file_size: int,
    file: str,
    *,
    any_dtype: bool = False,
) -> dict[str, TensorInfo]:
    """The tensors of the file named ``file``, in the order of their bytes.

    ``head`` is its first ``header_bytes()`` bytes or more. Raises DamagedFile when the file is cut
    short, is not a safetensors file, or its header contradicts itself.
    """
    size = header_bytes(head, file_size, file)
    if len(head) < size:
        raise DamagedFile(f"{file} is truncated: it ends inside the header")
    document = _json_object(head[_LENGTH.size : size], file)
    metadata = document.pop(_METADATA, None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())
    ):
        _refuse(file, f"{_METADATA} of its header is not an object of strings")
    found = [(name, _tensor(name, entry, file, any_dtype)) for name, entry in document.items()]
    found.sort(key=lambda pair: (pair[1].begin, pair[1].end))
    end, before = 0, ""
    for name, tensor in found:
        if tensor.begin < end:
            _refuse(file, f"{_shown(name)} overlaps {_shown(before)}")
        if tensor.begin > end:
            _refuse(file, f"{tensor.begin - end:,} bytes before {_shown(name)} belong to no tensor")
        end, before = tensor.end, name
    available = file_size - size
    if end > available:
        raise DamagedFile(
            f"{file} is truncated: it has {file_size:,} bytes, and its tensors end at "
            f"{size + end:,}"
        )
    if end < available:
        _refuse(file, f"{available - end:,} bytes at its end belong to no tensor")
    return dict(found)


def _json_object(text: bytes, file: str) -> dict[str, Any]:
    try:
        document = read(text, "its header", limits=_HEADER_LIMITS)
    except InvalidJson as error:
        kind = "not a safetensors file" if error.is_syntax else "damaged"
        raise DamagedFile(f"{file} is {kind}: {error}") from None
    if not isinstance(document, dict):
        raise DamagedFile(f"{file} is not a safetensors file: its header is not a JSON object")
    return document


def _tensor(name: str, entry: Any, file: str, any_dtype: bool) -> TensorInfo:
    what = _shown(name)
    if not isinstance(entry, dict):
        _refuse(file, f"its header does not describe {what}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not (any_dtype or dtype in DTYPE_BITS):
        _refuse(file, f"{what} has the unknown dtype {_shown(dtype)}")
    if not _are_counts(shape):
        _refuse(file, f"the shape of {what} is {_shown(shape)}, not a list of sizes")
    if not _are_counts(offsets) or len(offsets) != 2:
        _refuse(file, f"its header has no valid data_offsets for {what}")
    begin, end = offsets
    if end < begin:
        _refuse(file, f"{what} ends at {end:,}, before it begins at {begin:,}")
    bits = _bits(DTYPE_BITS[dtype], shape) if dtype in DTYPE_BITS else 8 * (end - begin)
    if bits != 8 * (end - begin):
        needed = f"{bits / 8:,.10g}" if bits is not None else "far too many"
        _refuse(
            file,
            f"{what} is {dtype} {_shown(shape)}, which takes {needed} bytes, and the header gives "
            f"it {end - begin:,}",
        )
    return TensorInfo(dtype, tuple(shape), begin, end)


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    """Whether these are numbers that the format can hold, and no more than a tensor has."""
    is_list = isinstance(value, list) and len(value) <= _MOST_DIMENSIONS
    return is_list and all(type(n) is int and 0 <= n < 2**64 for n in value)


def _bits(bits: int, shape: list[int]) -> int | None:
    """The bits of such a tensor; ``None`` for more than any machine has.

    A hostile shape is not multiplied to its end: the product could have millions of digits.
    """
    if 0 in shape:
        return 0
    for size in shape:
        bits *= size
        if bits > _MOST_BITS:
            return None
    return bits


def _shown(value: Any) -> str:
    """A value of the file for a message: short and printable."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse(file: str, why: str) -> NoReturn:
    raise DamagedFile(f"{file} is damaged: {why}")


def index_name(names: Iterable[str]) -> str:
    """The file name that the index of these files has, if there is one."""
    if any(fnmatchcase(name, _CONSOLIDATED) for name in names):
        return "consolidated.safetensors.index.json"
    return "model.safetensors.index.json"


def parse_index(content: bytes, file: str) -> dict[str, str]:
    """The file of each tensor, by tensor name.

    Raises DamagedFile when the index named ``file`` is damaged, or names files of other folders.
    """
    try:
        document: Any = read(content, file, limits=_INDEX_LIMITS)
    except InvalidJson as error:
        raise DamagedFile(str(error), _COPY_INDEX_AGAIN) from None
    files = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(files, dict) or not files:
        raise DamagedFile(f"{file} has no weight_map, so vLLM loads nothing", _COPY_INDEX_AGAIN)
    for tensor, name in files.items():
        if not isinstance(name, str) or not name:
            raise DamagedFile(f"{file} names no file for {_shown(tensor)}", _COPY_INDEX_AGAIN)
    for name in sorted(set(files.values())):
        if "/" in name or "\\" in name or name in (".", ".."):
            raise DamagedFile(
                f"{file} names {_shown(name)}, which is not in the same folder",
                "correct the index: vLLM loads weights of the same folder only",
            )
    return files


def weight_files(names: Iterable[str], index: Mapping[str, str] | None) -> tuple[str, ...]:
    """The safetensors files that vLLM loads, of the files ``names``, sorted.

    Raises DamagedFile when a file is missing that the index names or, without an index, one of a
    numbered set.
    """
    names = tuple(names)
    kind = index_name(names)
    pattern = _CONSOLIDATED if kind.startswith("consolidated") else "*.safetensors"
    # vLLM uses glob, which skips hidden files such as the ._model.safetensors of macOS.
    found = sorted(n for n in names if fnmatchcase(n, pattern) and not n.startswith("."))
    if index is None:
        _check_numbered(found)
        return tuple(found)
    named = set(index.values())
    missing = sorted(named.difference(found))
    if missing:
        raise DamagedFile(
            f"{kind} names missing files ({len(missing)} of {len(named)}): {first_names(missing)}",
            "copy the missing files too; a folder or a broken link does not count",
        )
    return tuple(name for name in found if name in named)


def other_weights(names: Iterable[str]) -> tuple[str, ...]:
    """Files that look like weights in another format than safetensors."""
    return tuple(sorted(name for name in names if name.endswith(_OTHER_FORMATS)))


def _check_numbered(found: Iterable[str]) -> None:
    """Raise DamagedFile when ``model-00001-of-00002`` exists without its other half, of which vLLM
    would load what there is. Some sets are numbered from 0."""
    sets: dict[tuple[str, int], set[int]] = {}
    for match in filter(None, map(_NUMBERED.fullmatch, found)):
        sets.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, total), numbers in sets.items():
        if len(numbers) < total:
            first = 0 if 0 in numbers else 1
            missing = sorted(set(range(first, first + total)) - numbers)
            shown = stem[:80]
            files = [f"{shown}-{number:05}-of-{total:05}.safetensors" for number in missing]
            raise DamagedFile(
                f"{shown}-*-of-{total:05}.safetensors: {len(missing)} of {total} files are missing:"
                f" {first_names(files)}",
                "copy the missing files too, and the index",
            )


def first_names(names: Sequence[str], most: int = 5) -> str:
    """The first names for a message, printable, and the number of the others."""
    shown = ", ".join(ascii(name)[1:-1][:80] for name in names[:most])
    return f"{shown}, and {len(names) - most} more" if len(names) > most else shown
