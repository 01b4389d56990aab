"""One line that says how far something is, on stderr: rewritten in place on a terminal, a new
line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType

QUIET_SECONDS = 15.0
"""Without a terminal, what lasts is repeated this often."""


class StatusLine:
    """Used as a context; on a terminal the line is gone when it ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = clock()
        self._told_at = float("-inf")
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
            self._write("\r\x1b[2K")

    def show(self, what: str, detail: str = "") -> None:
        """``what`` is going on, since how many seconds, and ``detail`` as far as there is room."""
        self.tell(f"{what}, {self._clock() - self._begin:.0f} s{': ' if detail else ''}{detail}")

    def tell(self, line: str, news: bool = False) -> None:
        """The line as it is now. Without a terminal only ``news`` are told at once."""
        now = self._clock()
        if not self._on_terminal and not news and now - self._told_at < QUIET_SECONDS:
            return
        self._told_at = now
        line = "".join(character if character.isprintable() else " " for character in line)
        if self._on_terminal:
            self._write(f"\r\x1b[2K{line[: shutil.get_terminal_size().columns - 1]}")
        else:
            self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
