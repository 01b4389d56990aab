"""How ``peagle warm`` ends when it is told to, on AWS and on this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_politely() -> Iterator[None]:
    """SIGTERM as Ctrl-C: a pipeline that is cancelled must not leave an endpoint or an engine
    behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
