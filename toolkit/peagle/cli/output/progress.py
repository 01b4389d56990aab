"""Progress on stderr: one line, rewritten in place on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from peagle.text import format_duration, format_usd

if TYPE_CHECKING:
    from peagle.deploy.context import Progress

QUIET_SECONDS = 15.0
"""How often an unchanged state is repeated without a terminal."""


class StatusLine:
    """A context manager; on a terminal the line is cleared at its end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = clock()
        self._printed_at = float("-inf")
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
        """Show ``what``, its elapsed seconds, and as much of ``detail`` as fits."""
        self.tell(f"{what}, {self._clock() - self._begin:.0f} s{': ' if detail else ''}{detail}")

    def tell(self, line: str, news: bool = False) -> None:
        """Show a line. Without a terminal only ``news`` is printed at once."""
        now = self._clock()
        if not self._on_terminal and not news and now - self._printed_at < QUIET_SECONDS:
            return
        self._printed_at = now
        line = "".join(character if character.isprintable() else " " for character in line)
        if self._on_terminal:
            self._write(f"\r\x1b[2K{line[: shutil.get_terminal_size().columns - 1]}")
        else:
            self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


class Ticker:
    """Shows progress while it is open; pass ``show`` as the observer."""

    def __init__(self, free: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = free
        self._state = ""
        self._status = StatusLine(clock)

    def __enter__(self) -> Ticker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.__exit__(kind, error, trace)

    def show(self, progress: Progress) -> None:
        """Show a state; a change of state is news."""
        news = progress.state != self._state or not progress.lasting
        self._state = progress.state
        self._status.tell(describe(progress, self._free), news)


def describe(progress: Progress, free: bool = False) -> str:
    """State, elapsed time, cost so far and the last log line, where known.

    In the sandbox (``free``) the cost is the one on AWS.
    """
    parts = [progress.state]
    if progress.seconds:
        parts.append(format_duration(progress.seconds))
    if progress.cost_usd is not None:
        parts.append(f"{format_usd(progress.cost_usd)} {'on AWS' if free else 'so far'}")
    if progress.line:
        parts.append(progress.line)
    return " | ".join(parts)
