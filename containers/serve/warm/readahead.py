"""The weights read into the page cache while something else is unpacked."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

_WEIGHTS = (".safetensors", ".bin", ".gguf")
_STEP = 128 * 1024
"""Bytes for each call: the kernel reads no more of a wish than one window of its own read-ahead."""


def read_ahead(folders: Iterable[str]) -> threading.Thread:
    """Begin to read all weights in ``folders``, as far as half of the free memory takes them.

    Nobody needs to wait for the thread, and nobody minds if it fails.
    """
    thread = threading.Thread(target=_read, args=(list(folders), _free_bytes() // 2), daemon=True)
    thread.start()
    return thread


def _read(folders: list[str], limit: int) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            for file in sorted(Path(folder).iterdir()):
                if file.name.endswith(_WEIGHTS) and limit > 0:
                    limit -= _read_file(file, limit)


def _read_file(file: Path, limit: int) -> int:
    """How many bytes of the file were asked for."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = min(os.fstat(descriptor).st_size, limit)
        for begin in range(0, size, _STEP):
            os.posix_fadvise(descriptor, begin, _STEP, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)
    return size


def _free_bytes() -> int:
    """The memory that programs could still take; none if nobody says."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
