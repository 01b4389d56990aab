"""One line that says how far something is, on stderr: rewritten in place on a terminal, a new
line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

_LINE_EVERY_SECONDS = 10.0


class StatusLine:
    """Used as a context; the line is gone when it ends."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._shown_at = float("-inf")
        self._on_terminal = sys.stderr.isatty()

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def show(self, what: str, detail: str = "") -> None:
        """``what`` is going on, since how many seconds, and ``detail`` as far as there is room."""
        now = time.monotonic()
        if not self._on_terminal and now - self._shown_at < _LINE_EVERY_SECONDS:
            return
        self._shown_at = now
        line = f"{what}, {now - self._begin:.0f} s{': ' if detail else ''}{detail}"
        width = shutil.get_terminal_size().columns - 1
        line = "".join(character if character.isprintable() else " " for character in line)[:width]
        sys.stderr.write(f"\r\x1b[2K{line}" if self._on_terminal else f"{line}\n")
        sys.stderr.flush()
