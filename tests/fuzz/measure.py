"""One input: which error it ends in, how long it takes, how much memory it needs.

Time is CPU time: the tests share the machine with others. Memory is the growth of the resident set
up to its peak, which Linux lets a process reset. An input far beyond a limit is stopped by a timer
on the CPU time, or by a limit on the address space.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tests.fuzz.parser import Parser

MOST_SECONDS = 2.0
MOST_BYTES = 256 << 20
_MORE_ADDRESSES = 2 * MOST_BYTES
"""Address space that an input may add; more of it is reserved than used."""
_STOP_SECONDS = 1.5 * MOST_SECONDS


class TooSlow(BaseException):
    """The timer's exception; no parser catches it."""


@dataclass(frozen=True)
class Measured:
    """``failure`` is empty for an input within the limits, and ``kind`` is its kind: the same for
    equal causes. ``refused``: it ended in an error that the parser promises."""

    seconds: float
    peak_bytes: int
    refused: bool
    failure: str = ""
    kind: str = ""


class Failed(AssertionError):
    """An input that exceeds a limit; the message names parser, input and what happened."""


def check(parser: Parser, value: Any) -> Measured:
    """Run one input. Raises Failed."""
    found = measure(parser, value)
    if found.failure:
        raise Failed(f"{parser.name}: {found.failure}\ninput: {ascii(value)[:2000]}")
    return found


def measure(parser: Parser, value: Any) -> Measured:
    """Run one input, and compare it with the limits."""
    parser.prepare()
    before = _reset_peak()
    failure, kind, refused, cause = "", "", False, None
    started = time.process_time()
    try:
        with _stopped_beyond_the_limits():
            parser.parse(value)
    except parser.allowed:
        refused = True
    except TooSlow:
        failure = f"still runs after {_STOP_SECONDS:g} s"
    except MemoryError:
        failure = f"needs more than {_MORE_ADDRESSES >> 20} MB"
    except Exception as error:
        cause = error
        kind = f"{type(error).__name__} ({_place(error)})"
        failure = f"{kind}: {str(error)[:300]}"
    seconds = time.process_time() - started
    peak = max(0, _peak() - before)
    if not failure and seconds > MOST_SECONDS:
        failure = f"took {seconds:.1f} s"
    if not failure and peak > MOST_BYTES:
        failure = f"took {peak >> 20} MB"
    if cause is not None:
        cause.__traceback__ = None
    if peak > MOST_BYTES // 4:
        gc.collect()
    return Measured(seconds, peak, refused, failure, kind or failure)


def _place(error: BaseException) -> str:
    """The innermost line of the code under test."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/peagle/" in file or "/peagle_serve/" in file:
            place = f"{file[file.rindex('/peagle') + 1 :]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place or "outside the code"


@contextlib.contextmanager
def _stopped_beyond_the_limits() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _MORE_ADDRESSES, hard))
    signal.setitimer(signal.ITIMER_PROF, _STOP_SECONDS)
    kept = [(holder, name, getattr(holder, name)) for holder, name, _ in _FORBIDDEN]
    for holder, name, instead in _FORBIDDEN:
        setattr(holder, name, instead)
    try:
        yield
    finally:
        for holder, name, own in kept:
            setattr(holder, name, own)
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _no_network(*_: object) -> None:
    raise OSError("no parser needs the network")


_FORBIDDEN: tuple[tuple[Any, str, Any], ...] = (
    (socket.socket, "connect", _no_network),
    (time, "sleep", lambda seconds: None),
)
"""What a parser does after it has parsed must not wait."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


def _reset_peak() -> int:
    """Let the peak of the resident set begin at its present size, and return that in bytes."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as stream:
        stream.write("5")
    return _peak()


def _peak() -> int:
    with open("/proc/self/status", "rb") as stream:
        line = next(line for line in stream if line.startswith(b"VmHWM:"))
    return int(line.split()[1]) << 10


def quietly(function: Callable[[Any], object]) -> Callable[[Any], object]:
    """The function, without what it prints."""

    def run(value: Any) -> object:
        import io

        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return function(value)

    return run
