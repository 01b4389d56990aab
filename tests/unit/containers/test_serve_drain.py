"""After a signal the entrypoint drains the engine, up to a limit."""

from __future__ import annotations

import signal
import time

import pytest

from tests.unit.containers.supervised import HEALTHY, Run

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_engine_finish_its_requests(run: Run, number: int) -> None:
    container = run(
        f"{HEALTHY} assert receive() == 'drain'; sleep(0.5); print('answered', flush=True);"
        "send('idle'); sleep()"
    )
    container.wait_for("healthy")

    container.stop(number)

    assert container.ended() == 0
    entries = container.entries()
    messages = [document["message"] for document in entries]
    assert messages.index("answered") < messages.index("all requests are answered")
    assert entries[messages.index("answered")]["stage"] == "draining"
    assert (entries[-1]["level"], entries[-1]["stage"]) == ("INFO", "ended")


def test_draining_has_a_limit(run: Run) -> None:
    container = run(f"{HEALTHY} sleep()", PEAGLE_DRAIN_SECONDS="1")
    container.wait_for("healthy")
    begin = time.monotonic()

    container.stop()

    assert container.ended() == 0
    assert 1 <= time.monotonic() - begin < 4
    container.wait_for("cut-off")


def test_a_second_signal_stops_at_once(run: Run) -> None:
    container = run(f"{HEALTHY} sleep()")
    container.wait_for("healthy")
    container.stop()
    container.wait_for("drain")

    container.stop()

    assert container.ended(5) == 0


@pytest.mark.parametrize("before", ["", HEALTHY])
def test_an_engine_that_ignores_signals_is_killed_with_its_children(run: Run, before: str) -> None:
    container = run(f"ignore_sigterm(); linger(); {before} print('begun', flush=True); sleep()",
                    PEAGLE_DRAIN_SECONDS="0")  # fmt: skip
    container.wait_for("begun")

    container.stop()

    assert container.ended(5) == 0


def test_a_signal_during_start_up_ends_it(run: Run) -> None:
    container = run("print('loading', flush=True); sleep()")
    container.wait_for("loading")

    container.stop()

    assert container.ended(5) == 0
