"""SIGTERM before anybody looks after signals.

The kernel drops a signal that the first process of a container has no handler for, and Python has
none: who told the container to end in its first moments would wait until he kills it. So a handler
is there before anything else is imported. What is left is Python's own start, some 15 ms.
"""

import os
import signal
import sys
import time
from types import FrameType

_STANDARD_ERROR = 2


def end_when_told() -> None:
    """End with exit code 0 at SIGTERM or SIGINT, as a container does that is told to end later,
    until the supervisor takes the signals over."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """By an exception, so that what is half done is undone. The line is that of ``logs``, which may
    be half imported."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    line = (
        f'{{"time": "{stamp}.000Z", "level": "INFO", "stage": "ended", '
        '"message": "ended, as it was told to, before vLLM was started"}\n'
    )
    os.write(_STANDARD_ERROR, line.encode())
    sys.exit(0)
