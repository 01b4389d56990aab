"""Safetensors files and sources for tests."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from peagle.errors import CheckpointError

BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def file_of(header: object, tensors: int) -> bytes:
    """A file with this header, an object or bytes, and this many bytes of tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(tensors)


def header_of(shapes: Shapes) -> tuple[dict[str, Any], int]:
    """The header for tensors of these dtypes and shapes, and their size in bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        numbers = 1
        for size in shape:
            numbers *= size
        begin, end = end, end + numbers * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return header, end


def weights(shapes: Shapes) -> bytes:
    """A whole file with these tensors, all zero."""
    return file_of(*header_of(shapes))


def head_of(shapes: Shapes) -> bytes:
    """The beginning of such a file, up to its first tensor."""
    return file_of(header_of(shapes)[0], 0)


ONE = weights({"fc.weight": ("BF16", (4, 8))})
OTHER = weights({"lm_head.weight": ("F32", (8, 4))})
CONFIG = b'{"hidden_size": 4, "vocab_size": 8}'


def index_of(**tensors: str) -> bytes:
    """An index; a name's underscores stand for dots."""
    return json.dumps(
        {"weight_map": {name.replace("__", "."): file for name, file in tensors.items()}}
    ).encode()


@dataclass
class Memory:
    """A source in memory that records reads. ``sizes`` may claim other sizes."""

    files: Mapping[str, bytes]
    sizes: Mapping[str, int] = field(default_factory=dict)
    reads: list[tuple[str, int, int | None]] = field(default_factory=list)
    location: str = "memory"

    def names(self) -> dict[str, int]:
        return {name: len(content) for name, content in self.files.items()} | dict(self.sizes)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads.append((name, start, length))
        if name not in self.files:
            raise CheckpointError(f"{name} does not exist")
        return self.files[name][start:][:length]

    def digests(self, name: str) -> Mapping[str, str]:
        return {}
