"""Read untrusted files: regular ones only, up to a limit.

Opening a pipe waits for a writer, and a device such as ``/dev/zero`` never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError, also for anything else."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(file))
    return os.fdopen(descriptor, "rb")


def read_regular(file: Path, limit: int) -> bytes:
    """The content of a regular file of at most ``limit`` bytes. Raises OSError."""
    with open_regular(file) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"More than {limit:,} bytes", str(file))
    return content
