"""``peagle invoke`` of an endpoint that scaled to zero: it waits, and shows for how long."""

from __future__ import annotations

import pytest

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.bench.targets import target_of_endpoint
from peagle.catalog import load_catalog
from peagle.deploy import records
from peagle.deploy.invoke import WakeUpOptions, wake
from tests.unit.cli.commands import NAME, Terminal
from tests.unit.cli.test_copies import COPIES, status_of, terminal

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


@pytest.mark.thorough
def test_the_first_refusal_becomes_a_wait_with_progress(asleep: Terminal) -> None:
    wake_at(asleep, 1)

    done = asleep.run(*ASK)

    assert (done.code, done.out) == (0, "Hello world\n"), done.err
    assert f"{NAME} wakes up: 0s of about " in done.err
    assert "woke up after 0.0 s" in done.err


@pytest.mark.thorough
def test_the_wait_is_in_the_document(asleep: Terminal) -> None:
    wake_at(asleep, 1)

    document = asleep.run(*ASK, "--json").document

    assert document["text"] == "Hello world"
    assert document["waited_seconds"] > 0


@pytest.mark.thorough
def test_the_wait_ends_with_the_timeout(asleep: Terminal) -> None:
    done = asleep.run(*ASK, "--wake-timeout", "0s")

    assert done.code == 4
    assert f"{NAME} scaled to zero, and did not wake up within 0s" in done.err


@pytest.mark.thorough
def test_nobody_waits_for_copies_that_nothing_starts(asleep: Terminal) -> None:
    assert asleep.run("scale", NAME, "--off", "--yes").code == 0

    done = asleep.run(*ASK)

    assert (done.code, f"peagle scale {NAME} --to 1" in done.err) == (4, True), done.err


@pytest.mark.thorough
def test_an_update_wakes_one_copy_to_prove_it(asleep: Terminal) -> None:
    done = asleep.run(*COPIES, "--scale-to-zero", "--k", "3")

    assert done.code == 0, done.err
    assert status_of(asleep)["copies_running"] == 1


@pytest.mark.thorough
def test_a_proof_wakes_what_sleeps_and_proves_the_copies_that_run(asleep: Terminal) -> None:
    wake_at(asleep, 1)

    done = asleep.run("prove", NAME, "--json")

    assert done.code == 0, done.err
    assert f"{NAME} wakes up: 0s of about " in done.err
    assert (done.document["instance_count"], len(done.document["instances"])) == (1, 1)


@pytest.mark.thorough
def test_what_runs_is_not_woken(asleep: Terminal) -> None:
    wake_at(asleep, 1)
    (record,) = records.all_records()
    aws, shown = asleep.world.aws, list[str]()
    wake_up = WakeUpOptions(on_progress=shown.append)

    live = sagemaker.describe(aws, NAME)
    assert live is not None

    assert wake(aws, live, record, wake_up) is not None

    assert any("wakes up: 0s of about " in line for line in shown)
    assert status_of(asleep)["copies_running"] == 1
    awake = sagemaker.describe(aws, NAME)
    assert awake is not None
    assert wake(aws, awake, record, wake_up) is None


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_other_commands_name_the_one_that_waits(asleep: Terminal) -> None:
    assert asleep.run("scale", NAME, "--off", "--yes").code == 0

    done = asleep.run("prove", NAME)

    assert (done.code, len(done.err.splitlines())) == (4, 1)
    assert f"peagle scale {NAME} --to 1" in done.err
