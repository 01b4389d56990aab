"""A full disk, told in the user's words."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def room_in_temporary(what: str) -> Iterator[None]:
    """Around what writes to the temporary folder. Raises UserError when that is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UserError(
            f"the disk of {tempfile.gettempdir()} is full: {what} does not fit there",
            "make room, or name another folder with TMPDIR; nothing was kept",
        ) from error
