"""``peagle invoke`` of an endpoint that scaled to zero: it waits, and shows for how long."""

from __future__ import annotations

import pytest

from peagle.aws.client import Aws
from peagle.bench.targets import target_of_endpoint
from peagle.catalog import load_catalog
from peagle.deploy import records
from tests.unit.cli.commands import NAME, Terminal
from tests.unit.cli.test_copies import COPIES, status_of, terminal

pytestmark = pytest.mark.thorough

__all__ = ["terminal"]

ASK = ("invoke", NAME, "Say hello")


@pytest.fixture
def asleep(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A deployment that scaled to zero, and time that passes a thousand times as fast."""
    monkeypatch.setattr("peagle.deploy.invoke.RETRY_SECONDS", 0.005)
    assert terminal.run(*COPIES, "--scale-to-zero").code == 0
    sleep(terminal)
    return terminal


def sleep(terminal: Terminal) -> None:
    terminal.cloud.components.scale(0, NAME, {"CopyCount": 0})
    found = status_of(terminal)
    assert (found["copies_running"], status_of(terminal)["state"]) == (0, "InService")


def wake_at(terminal: Terminal, refusals: int) -> None:
    """Let a copy run after so many refused requests."""
    seen = 0

    def after(operation: str) -> None:
        nonlocal seen
        seen += operation.startswith(("describe_scalable", "invoke"))
        if seen == refusals:
            terminal.cloud.components.scale(0, NAME, {"CopyCount": 1})
            terminal.cloud.components.describe(NAME)
            terminal.cloud.components.describe(NAME)

    terminal.cloud.after = after


def test_the_first_refusal_becomes_a_wait_with_progress(asleep: Terminal) -> None:
    wake_at(asleep, 1)
    done = asleep.run(*ASK)
    assert (done.code, done.out) == (0, "Hello world\n"), done.err
    assert f"{NAME} wakes up: 0s of about " in done.err
    assert "woke up after 0.0 s" in done.err


@pytest.mark.parametrize("words", [ASK, ("prove", NAME)])
def test_nobody_waits_for_copies_that_nothing_starts(
    asleep: Terminal, words: tuple[str, ...]
) -> None:
    late = asleep.run(*ASK, "--wake-timeout", "0s")
    assert asleep.run("scale", NAME, "--off", "--yes").code == 0
    never = asleep.run(*words)
    assert (late.code, "did not wake up within 0s" in late.err) == (4, True)
    assert (never.code, f"peagle scale {NAME} --to 1" in never.err) == (4, True), never.err


def test_an_update_wakes_one_copy_to_prove_it(asleep: Terminal) -> None:
    asleep.succeeds(*COPIES, "--scale-to-zero", "--k", "3")
    assert status_of(asleep)["copies_running"] == 1


def test_a_proof_wakes_what_sleeps_and_proves_the_copies_that_run(asleep: Terminal) -> None:
    wake_at(asleep, 1)
    done = asleep.succeeds("prove", NAME, "--json")
    assert f"{NAME} wakes up: 0s of about " in done.err
    assert (done.document["instance_count"], len(done.document["instances"])) == (1, 1)


def test_a_measurement_wakes_what_sleeps_before_it_counts(
    asleep: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = records.all_records()
    woken = RuntimeError("woken")

    def no_token(*_: object) -> None:
        raise woken

    monkeypatch.setattr(Aws, "bearer_token", no_token)
    wake_at(asleep, 1)
    with pytest.raises(RuntimeError):
        target_of_endpoint(asleep.world.aws, NAME, record, load_catalog())
    assert status_of(asleep)["copies_running"] == 1
