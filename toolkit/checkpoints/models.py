"""What was read of one checkpoint. Data without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tensor:
    """One tensor of a safetensors header: ``dtype`` as written there (``BF16``, ``U8``, ``F32``),
    its ``shape``, its ``size`` in bytes, and the file that holds it."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    file: str


@dataclass(frozen=True)
class Checkpoint:
    """config.json and the safetensors headers at one place.

    ``tensors`` is ``None`` when no header was read (a folder that holds a config.json only).
    ``other_weights`` are files with weights in another format, of which nothing is read.
    ``tokenizer`` holds what can be compared of a tokenizer without reading a large file, as
    ``tokenizer.describe_tokenizer`` says. ``bytes_read`` is what was read of all files together;
    listings are not counted. ``takes_media``: what turns images and the like into numbers lies
    beside it, without which vLLM serves text alone.
    """

    location: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor] | None = None
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    bytes_read: int = 0
    other_weights: tuple[str, ...] = ()
    takes_media: bool = True
