"""Threads that end with the program: a second Ctrl-C waits for none of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

WORKERS = 8
"""boto3 keeps ten connections."""

PATIENCE_SECONDS = 10.0
"""What is under way when a run ends early may come to its end, if it does so soon."""

T = TypeVar("T")
_Call = tuple[Future[Any], Callable[[], Any]]


class Workers:
    """Does calls in their order, some at a time."""

    def __init__(self, count: int = WORKERS) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The call's result, some time."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def end(self, patience: float = PATIENCE_SECONDS) -> None:
        """Begin no other call, and wait a while for those that have begun."""
        while True:
            try:
                self._calls.get_nowait()
            except Empty:
                break
        for _ in self._threads:
            self._calls.put(None)
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            future, call = given
            try:
                future.set_result(call())
            except BaseException as error:  # every end of a call is the caller's to see
                future.set_exception(error)
