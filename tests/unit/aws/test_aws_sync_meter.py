"""Speed and time left, from the bytes that this run moved."""

from __future__ import annotations

import threading
import time

import pytest

from peagle.weights.transfer import Meter, SyncProgress, Workers


def test_existing_bytes_count_as_done_but_not_towards_the_speed() -> None:
    reports: list[SyncProgress] = []
    now = [0.0]
    meter = Meter(1000, reports.append, lambda: now[0])

    meter.advance("a", 400, moved=False)
    assert (reports[-1].done, reports[-1].speed, reports[-1].seconds_left) == (400, 0, None)

    now[0] = 4.0
    meter.advance("b", 200, moved=True)
    assert (reports[-1].done, reports[-1].moved, reports[-1].speed) == (600, 200, 50)
    assert reports[-1].seconds_left == 8
    assert reports[-1].file == "b"


def test_speed_is_that_of_the_last_seconds() -> None:
    reports: list[SyncProgress] = []
    now = [0.0]
    meter = Meter(10_000, reports.append, lambda: now[0])
    for _ in range(60):
        now[0] += 1
        meter.advance("a", 100, moved=True)
    for _ in range(30):
        now[0] += 1
        meter.advance("a", 10, moved=True)

    assert reports[-1].speed == pytest.approx(10)


def test_there_is_no_estimate_in_the_first_seconds() -> None:
    reports: list[SyncProgress] = []
    now = [0.0]
    meter = Meter(1000, reports.append, lambda: now[0])

    now[0] = 0.1
    meter.advance("a", 1, moved=True)

    assert reports[-1].seconds_left is None


def test_waiting_calls_are_dropped_at_the_end() -> None:
    workers, release = Workers(1), threading.Event()
    started: list[int] = []

    def call(number: int) -> None:
        started.append(number)
        release.wait(10)

    first = workers.submit(lambda: call(1))
    workers.submit(lambda: call(2))
    while not started:
        time.sleep(0.01)
    threading.Timer(0.05, release.set).start()
    workers.end()

    assert first.done()
    assert started == [1]


def test_the_end_does_not_wait_forever() -> None:
    workers, release = Workers(1), threading.Event()
    workers.submit(lambda: release.wait(30))
    start = time.monotonic()

    workers.end(patience=0.1)

    assert time.monotonic() - start < 5
    release.set()
