"""Progress on stderr: one line, rewritten in place on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Self

from peagle.checkpoints.contents import watch_hashing
from peagle.text import format_duration, format_size, format_usd

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from peagle.deploy.context import Progress

REPEAT_SECONDS = 15.0
DEPLOYMENT_REPEAT_SECONDS = 60.0
"""Starting an endpoint takes up to an hour."""


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

    Without a terminal, as in a pipeline, it prints a line every 15 seconds: the log shows that the
    command is alive, and does not fill up.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, repeat_seconds: float = REPEAT_SECONDS
    ) -> None:
        self._clock = clock
        self._repeat_seconds = repeat_seconds
        self._started_at = clock()
        self._printed_at = float("-inf")
        self._live: Live | None = None
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
            if self._live:
                self._live.stop()
                self._live = None

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
            if self._terminal:
                self._rewrite(line, self._terminal)
                return
            now = self._clock()
            if at_once or now - self._printed_at >= self._repeat_seconds:
                self._printed_at = now
                self.show_notice(line)

    def show_notice(self, text: str) -> None:
        """Show a text that stays: on a terminal, above the line."""
        with self._lock:
            if self._live:
                self._live.console.print(
                    _printable(text), soft_wrap=True, markup=False, emoji=False
                )
            else:
                print(_printable(text), file=sys.stderr, flush=True)

    @cached_property
    def _terminal(self) -> Console | None:
        """The terminal, if rich can rewrite a line of it; imports rich, so not before a line is
        shown."""
        if not sys.stderr.isatty():
            return None
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        return console if console.is_interactive else None

    def _rewrite(self, line: str, terminal: Console) -> None:
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(
                console=terminal, auto_refresh=False, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()
            terminal.show_cursor()  # also after a signal that ends the process
        text = Text(_printable(line), no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)


class DeploymentProgress(StatusLine):
    """The progress of a deployment with its cost. Without a terminal: a line for each new state,
    for the first line of the log, and every minute.

    ``sandbox``: the cost is the one on AWS.
    """

    def __init__(self, sandbox: bool, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock, DEPLOYMENT_REPEAT_SECONDS)
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
