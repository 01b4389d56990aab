"""Told to end, the entrypoint lets the engine answer first, and does not wait for ever."""

from __future__ import annotations

import signal
import time

import pytest

from tests.unit.containers.supervised import HEALTHY, Run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_lets_the_engine_answer_first(run: Run, number: int) -> None:
    container = run(
        f"{HEALTHY} assert hear() == 'drain'; sleep(0.5); print('answered', flush=True);"
        "tell('idle'); sleep()"
    )
    container.wait_for("healthy")

    container.ask_to_end(number)

    assert container.ended() == 0
    told = container.told()
    messages = [document["message"] for document in told]
    assert messages.index("answered") < messages.index("all requests are answered")
    assert told[messages.index("answered")]["stage"] == "draining"
    assert (told[-1]["level"], told[-1]["stage"]) == ("INFO", "ended")


def test_draining_has_a_limit(run: Run) -> None:
    container = run(f"{HEALTHY} sleep()", PEAGLE_DRAIN_SECONDS="1")
    container.wait_for("healthy")
    begin = time.monotonic()

    container.ask_to_end()

    assert container.ended() == 0
    assert 1 <= time.monotonic() - begin < 4
    container.wait_for("cut-off")


def test_told_twice_it_does_not_wait(run: Run) -> None:
    container = run(f"{HEALTHY} sleep()")
    container.wait_for("healthy")
    container.ask_to_end()
    container.wait_for("drain")

    container.ask_to_end()

    assert container.ended(5) == 0


@pytest.mark.parametrize("before", ["", HEALTHY])
def test_an_engine_that_minds_no_signal_is_killed_with_its_children(run: Run, before: str) -> None:
    container = run(f"deaf(); linger(); {before} print('begun', flush=True); sleep()",
                    PEAGLE_DRAIN_SECONDS="0")  # fmt: skip
    container.wait_for("begun")

    container.ask_to_end()

    assert container.ended(5) == 0


def test_told_to_end_while_it_starts_it_ends(run: Run) -> None:
    container = run("print('loading', flush=True); sleep()")
    container.wait_for("loading")

    container.ask_to_end()

    assert container.ended(5) == 0
