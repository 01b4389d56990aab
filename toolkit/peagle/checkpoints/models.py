"""What was read of one checkpoint. Data without behaviour.

A place where the files of one checkpoint lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


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


class Source(Protocol):
    """A folder, an S3 prefix or a repository of the hub.

    Every method raises PeagleErrors only. None follows a file below the top level: vLLM reads no
    weights there.
    """

    @property
    def location(self) -> str:
        """The place as the user names it, without a slash at its end."""

    def names(self) -> Mapping[str, int]:
        """The files at the top level, each with its size in bytes."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """``length`` bytes of the file from ``start``, or to its end; fewer when it ends before.

        No more than that crosses the network.
        """

    def digests(self, name: str) -> Mapping[str, str]:
        """What is known of the file's contents without downloading it: ``sha256``, ``md5`` or
        ``git`` (the id of a git blob) to hexadecimal digits. Empty when nothing is known, or
        ``names`` has not been asked yet."""
