"""A place where the files of one checkpoint lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


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
