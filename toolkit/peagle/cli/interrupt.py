"""Ctrl-C that no finalizer loses.

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

_AGAIN_SECONDS = 0.01

_OF_FILES = {"close", "closed", "flush"}
"""What Python calls to finalize a file or an HTTP response (``iobase_finalize`` of CPython)."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block Ctrl-C raises KeyboardInterrupt, after a running finalizer has ended.

    A program that ignores SIGINT, as in the background of a shell, goes on ignoring the signal.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    later = signal.signal(signal.SIGALRM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, later)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    if _in_finalizer(frame):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        return
    raise KeyboardInterrupt


def _in_finalizer(frame: FrameType | None) -> bool:
    """Whether the frame, or one that called it, may be a finalizer's."""
    while frame is not None:
        name = frame.f_code.co_name
        if name == "__del__":
            return True
        if name in _OF_FILES and isinstance(frame.f_locals.get("self"), io.IOBase):
            return True
        frame = frame.f_back
    return False
