"""Runs calls in parallel, with a deadline."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

from peagle.errors import EngineError, PeagleError

WORKERS = 10
"""As many connections as boto3 keeps."""

T = TypeVar("T")


def run_parallel(
    calls: Sequence[Callable[[], T]], until: float, late: PeagleError, workers: int = WORKERS
) -> list[T]:
    """The results of the calls, ``workers`` at a time, in order; raises the first error that
    occurs.

    Raises ``late`` once ``time.monotonic()`` passes ``until``. A call that still waits, for
    instance for a server that sends a byte per second, continues in a daemon thread: no socket
    timeout would end it.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, T | BaseException]] = SimpleQueue()
    abandoned = threading.Event()
    for number in range(len(calls)):
        waiting.put(number)

    def work() -> None:
        while not abandoned.is_set():
            try:
                number = waiting.get_nowait()
            except Empty:
                return
            try:
                done.put((number, calls[number]()))
            except BaseException as error:  # whatever ended the call is raised to the caller
                done.put((number, error))

    for _ in range(min(workers, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    results: dict[int, T] = {}
    try:
        while len(results) < len(calls):
            try:
                number, result = done.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                raise late from None
            if isinstance(result, BaseException):
                raise result
            results[number] = result
    finally:
        abandoned.set()
    return [results[number] for number in range(len(calls))]


def ask_parallel(calls: Sequence[Callable[[], T]], limit: float, workers: int = WORKERS) -> list[T]:
    """The results of calls that ask engines, each of which may take ``limit`` seconds. Raises
    EngineError (no-answer) once that time has passed for all, and as ``run_parallel``."""
    seconds = limit * math.ceil(len(calls) / workers)
    message = f"the engine did not answer within {seconds:.0f} s"
    late = EngineError(message, "look at the engine's log", "no-answer")
    return run_parallel(calls, time.monotonic() + seconds, late, workers)
