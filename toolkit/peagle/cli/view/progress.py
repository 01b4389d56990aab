"""Progress on stderr: one line, rewritten in place on a terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from peagle.checkpoints.contents import watch_hashing
from peagle.cli.view.console import line_width
from peagle.text import format_duration, format_size, format_usd, shortened

if TYPE_CHECKING:
    from peagle.deploy.context import Progress

_ERASE = "\r\x1b[2K"


@contextmanager
def show_hashing() -> Iterator[None]:
    """In the block, show how far large files of weights are read: their hash is part of the plan,
    and compared with the files when that is deployed."""
    with StatusLine() as status:

        def read(name: str, done: int, size: int) -> None:
            status.show(f"hashing {name}", f"{format_size(done)} of {format_size(size)}")

        with watch_hashing(read):
            yield


class StatusLine:
    """A context manager that shows the current step; on a terminal the line is cleared at its end.

    Without a terminal, as in a pipeline, it prints a line every ``repeat_seconds``: the log shows
    that the command is alive, and does not fill up.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, repeat_seconds: float = 15.0
    ) -> None:
        self._clock = clock
        self._repeat_seconds = repeat_seconds
        self._started_at = clock()
        self._printed_at = float("-inf")
        self._is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._line = ""  # on the terminal
        self._lock = threading.RLock()  # calls in threads show their steps
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True  # a thread that still runs writes nothing below an error
            self.clear()

    def clear(self) -> None:
        """Remove the line from a terminal, before other output."""
        with self._lock:
            if self._line:
                print(_ERASE, end="", file=sys.stderr, flush=True)
                self._line = ""

    def show(self, step: str, detail: str = "") -> None:
        """Show the step, its elapsed seconds, and as much of ``detail`` as fits."""
        seconds = self._clock() - self._started_at
        self.show_line(f"{step}, {seconds:.0f} s{': ' if detail else ''}{detail}")

    def show_line(self, line: str, at_once: bool = False) -> None:
        """Show a line. Without a terminal one that follows too soon is omitted, unless
        ``at_once``."""
        with self._lock:
            if self._is_closed:
                return
            now = self._clock()
            if self._is_terminal:
                self._line = shortened(_printable(line), line_width(err=True) - 1)
                print(f"{_ERASE}{self._line}", end="", file=sys.stderr, flush=True)
            elif at_once or now - self._printed_at >= self._repeat_seconds:
                self._printed_at = now
                self.show_notice(line)

    def show_notice(self, text: str) -> None:
        """Show a text that stays: on a terminal, above the line."""
        with self._lock:
            start = _ERASE if self._line else ""
            print(f"{start}{_printable(text)}\n{self._line}", end="", file=sys.stderr, flush=True)


class DeploymentProgress(StatusLine):
    """The progress of a deployment with its cost. Without a terminal: a line for each new state,
    for the first line of the log, and every minute, since a start takes up to an hour.

    ``sandbox``: the cost is the one on AWS.
    """

    def __init__(self, sandbox: bool, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock, 60.0)
        self._sandbox = sandbox
        self._shown = ("", False)

    def observe(self, progress: Progress) -> None:
        """Show state, elapsed time, cost so far and the last log line, where known."""
        if progress.is_notice:
            self.show_notice(f"{progress.state}: {progress.line}")
            return
        parts = [progress.state]
        if progress.seconds:
            parts.append(format_duration(progress.seconds))
        if progress.cost_usd is not None:
            so_far = "on AWS" if self._sandbox else "so far"
            parts.append(f"{format_usd(progress.cost_usd)} {so_far}")
        if progress.line:
            parts.append(progress.line)
        shown = (progress.state, progress.is_logging)
        is_new = shown != self._shown or not progress.lasting
        self._shown = shown
        self.show_line(" | ".join(parts), at_once=is_new)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
