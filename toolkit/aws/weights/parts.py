"""How a file is cut into parts, and the checksums of parts and whole.

The checksum of an object in parts is the SHA-256 of its parts' SHA-256, as S3 reckons it
(ChecksumType COMPOSITE), so it says something only together with the size of the parts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

PART_BYTES = 16 * 1024 * 1024
"""Large enough that a request costs little, small enough that a lost one does too."""

_MOST_PARTS = 10_000
"""S3 takes no more."""

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Part:
    """``size`` bytes of a file from ``start``; numbers begin at 1, as in S3."""

    number: int
    start: int
    size: int


def part_bytes(size: int) -> int:
    """How large the parts of a file of ``size`` bytes are: the same for every run."""
    smallest = -(-size // _MOST_PARTS)
    return max(PART_BYTES, -(-smallest // _MIB) * _MIB)


def parts_of(size: int, each: int) -> tuple[Part, ...]:
    """The parts of a file; an empty file is one empty part."""
    starts = range(0, size, each) if size else (0,)
    return tuple(Part(n, at, min(each, size - at)) for n, at in enumerate(starts, 1))


def sha256(content: bytes) -> str:
    """A part's checksum as S3 writes it."""
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def combined(checksums: Iterable[str]) -> str:
    """The object's checksum from its parts' ones; one part's is the object's own."""
    each = list(checksums)
    if len(each) == 1:
        return each[0]
    return sha256(b"".join(base64.b64decode(checksum) for checksum in each))
