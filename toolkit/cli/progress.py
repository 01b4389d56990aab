"""Live progress of work in an account, told on a StatusLine."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from toolkit.aws.watch import Progress
from toolkit.cli.durations import in_words
from toolkit.cli.waiting import StatusLine
from toolkit.money import dollars


class Ticker:
    """Shows progress while it is open; ``show`` is the observer to hand down."""

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
        """One more state of things; a change of state is news."""
        news = progress.state != self._state or not progress.lasting
        self._state = progress.state
        self._status.tell(describe(progress, self._free), news)


def describe(progress: Progress, free: bool = False) -> str:
    """State, elapsed time, cost so far and the last log line, as far as there are any.

    In the sandbox (``free``) the cost is what AWS would have taken.
    """
    parts = [progress.state]
    if progress.seconds:
        parts.append(in_words(progress.seconds))
    if progress.cost_usd is not None:
        parts.append(f"{dollars(progress.cost_usd)} {'on AWS' if free else 'so far'}")
    if progress.line:
        parts.append(progress.line)
    return " | ".join(parts)
