"""Several calls at once, none of which can keep its caller waiting beyond a point in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

WORKERS = 10
"""As many connections as boto3 keeps."""

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]], until: float) -> list[T]:
    """The results of the calls, in their order; the first error that comes is raised.

    Raises TimeoutError when ``time.monotonic()`` passes ``until``. A call that still waits, perhaps
    for a server that sends a byte a second, is left to itself in a thread that ends with the
    program: no timeout of a socket would end it.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, T | BaseException]] = SimpleQueue()
    given_up = threading.Event()
    for number in range(len(calls)):
        waiting.put(number)

    def work() -> None:
        while not given_up.is_set():
            try:
                number = waiting.get_nowait()
            except Empty:
                return
            try:
                done.put((number, calls[number]()))
            except BaseException as error:  # every end of a call is the caller's to see
                done.put((number, error))

    for _ in range(min(WORKERS, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    try:
        return _collect(len(calls), done, until)
    finally:
        given_up.set()


def _collect(count: int, done: SimpleQueue[tuple[int, T | BaseException]], until: float) -> list[T]:
    results: dict[int, T] = {}
    while len(results) < count:
        try:
            number, result = done.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            raise TimeoutError from None
        if isinstance(result, BaseException):
            raise result
        results[number] = result
    return [results[number] for number in range(count)]
