"""Live progress on stderr: one line that is rewritten on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from toolkit.aws.watch import Progress
from toolkit.cli.console import say
from toolkit.cli.durations import in_words

QUIET_SECONDS = 15.0
"""Without a terminal a state that lasts is repeated this often."""


class Ticker:
    """Shows progress while it is open; ``show`` is the observer to hand down."""

    def __init__(self, free: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = free
        self._clock = clock
        self._state = ""
        self._said = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Ticker:
        if sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """One more state of things."""
        line = describe(progress, self._free)
        if self._live:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
            return
        now = self._clock()
        news = progress.state != self._state or not progress.lasting
        if news or now - self._said >= QUIET_SECONDS:
            self._state, self._said = progress.state, now
            say(line)


def describe(progress: Progress, free: bool = False) -> str:
    """State, elapsed time, cost so far and the last log line, as far as there are any.

    In the sandbox (``free``) the cost is what AWS would have taken.
    """
    parts = [progress.state]
    if progress.seconds:
        parts.append(in_words(progress.seconds))
    if progress.cost_usd is not None:
        parts.append(f"${progress.cost_usd:.2f} {'on AWS' if free else 'so far'}")
    if progress.line:
        parts.append(progress.line)
    return " | ".join(parts)
