"""Ctrl-C that the finalizer of a file or an HTTP response does not lose.

Python raises KeyboardInterrupt in whatever runs when the signal arrives. While the garbage
collector finalizes an object, such as an HTTP response, Python drops the exception, and the command
would run on as if the user had not pressed Ctrl-C.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_RETRY_SECONDS = 0.01

_CALLED_BY_FINALIZERS = {"close", "closed", "flush"}
"""What CPython's ``iobase_finalize`` calls of a file or an HTTP response."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block Ctrl-C raises KeyboardInterrupt, after a running finalizer has ended.

    A program that ignores SIGINT, as in the background of a shell, continues to ignore it.
    """
    at_alarm = signal.signal(signal.SIGALRM, interrupt)
    at_interrupt = signal.getsignal(signal.SIGINT)
    if at_interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, at_interrupt)
        signal.signal(signal.SIGALRM, at_alarm)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C: a cancelled pipeline must not leave an endpoint or an engine. Works
    within ``interruptible``."""
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt(_number: int, frame: FrameType | None) -> None:
    """A signal handler: raise KeyboardInterrupt, during a finalizer a moment later."""
    if _in_finalizer(frame):
        signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
        return
    raise KeyboardInterrupt


def _in_finalizer(frame: FrameType | None) -> bool:
    """Whether the frame, or one that called it, may be a finalizer's."""
    while frame is not None:
        name = frame.f_code.co_name
        if name == "__del__":
            return True
        if name in _CALLED_BY_FINALIZERS and isinstance(frame.f_locals.get("self"), io.IOBase):
            return True
        frame = frame.f_back
    return False
