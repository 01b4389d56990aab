"""How fast and how long: from the bytes that this run moved, not from those that were there."""

from __future__ import annotations

import threading
import time

import pytest

from peagle.weights.queue import Meter, SyncProgress, Workers


def test_what_was_there_counts_as_done_and_not_as_speed() -> None:
    told: list[SyncProgress] = []
    now = [0.0]
    meter = Meter(1000, told.append, lambda: now[0])

    meter.advance("a", 400, moved=False)
    assert (told[-1].done, told[-1].speed, told[-1].seconds_left) == (400, 0, None)

    now[0] = 4.0
    meter.advance("b", 200, moved=True)
    assert (told[-1].done, told[-1].moved, told[-1].speed) == (600, 200, 50)
    assert told[-1].seconds_left == 8
    assert told[-1].file == "b"


def test_speed_is_that_of_the_last_seconds() -> None:
    told: list[SyncProgress] = []
    now = [0.0]
    meter = Meter(10_000, told.append, lambda: now[0])
    for _ in range(60):
        now[0] += 1
        meter.advance("a", 100, moved=True)
    for _ in range(30):
        now[0] += 1
        meter.advance("a", 10, moved=True)

    assert told[-1].speed == pytest.approx(10)


def test_nobody_can_tell_how_long_after_a_moment() -> None:
    told: list[SyncProgress] = []
    now = [0.0]
    meter = Meter(1000, told.append, lambda: now[0])

    now[0] = 0.1
    meter.advance("a", 1, moved=True)

    assert told[-1].seconds_left is None


def test_calls_that_wait_are_not_begun_once_it_ends() -> None:
    workers, release = Workers(1), threading.Event()
    begun: list[int] = []

    def call(number: int) -> None:
        begun.append(number)
        release.wait(10)

    first = workers.submit(lambda: call(1))
    workers.submit(lambda: call(2))
    while not begun:
        time.sleep(0.01)
    threading.Timer(0.05, release.set).start()
    workers.end()

    assert first.done()
    assert begun == [1]


def test_it_is_not_waited_for_ever() -> None:
    workers, release = Workers(1), threading.Event()
    workers.submit(lambda: release.wait(30))
    start = time.monotonic()

    workers.end(patience=0.1)

    assert time.monotonic() - start < 5
    release.set()
