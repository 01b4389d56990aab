"""One checkpoint as it was read, and the protocol of the sources it is read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Tensor:
    """A tensor of a safetensors header: ``dtype`` as in the header (``BF16``, ``U8``, ``F32``),
    ``shape``, ``size`` in bytes, and the file that holds it."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    file: str


@dataclass(frozen=True)
class Checkpoint:
    """config.json and the safetensors headers of one location.

    ``tensors`` is ``None`` if no header was read (a folder with a config.json only).
    ``other_weights`` are weight files in other formats, which are not read. ``tokenizer`` is the
    result of ``reading.describe_tokenizer``. ``bytes_read`` counts all files, without listings.
    ``takes_media``: the files include a processor for images and the like, without which vLLM
    serves text only.
    """

    location: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor] | None = None
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    bytes_read: int = 0
    other_weights: tuple[str, ...] = ()
    takes_media: bool = True


class Source(Protocol):
    """A folder, an S3 prefix or a repository of the hub.

    Every method raises PeagleErrors only. Files below the top level are ignored: vLLM reads no
    weights there.
    """

    @property
    def location(self) -> str:
        """The location as the user names it, without a slash at its end."""

    def names(self) -> Mapping[str, int]:
        """The files at the top level, each with its size in bytes."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """``length`` bytes of the file from ``start``, fewer at its end; all by default.

        Nothing else of the file is transferred.
        """

    def digests(self, name: str) -> Mapping[str, str]:
        """Digests of the file that need no download: ``sha256``, ``md5`` or ``git`` (a git blob id)
        to hexadecimal digits. Empty if none is known, or before the first call of ``names``."""
