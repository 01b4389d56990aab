"""Parallel calls with a time limit."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from peagle.parallel import WORKERS, run_parallel


@pytest.mark.thorough
def test_the_first_error_ends_all() -> None:
    begun: list[int] = []
    never = threading.Event()

    def fail(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise KeyError("broken")
        if number > 3:
            never.wait(30)

    with pytest.raises(KeyError):
        run_parallel([partial(fail, number) for number in range(1000)], time.monotonic() + 30)
    never.set()
    assert len(begun) <= 3 + WORKERS + 1


@pytest.mark.thorough
def test_the_time_limit_ends_the_wait() -> None:
    never = threading.Event()
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        run_parallel([lambda: 1, lambda: never.wait(60)], begin + 0.2)
    assert time.monotonic() - begin < 20
    never.set()
