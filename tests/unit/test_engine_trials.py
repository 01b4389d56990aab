"""A trial of the engine is stopped by its CPU time, which a busy machine does not change."""

import time
from typing import Any

import pytest

from tests.engine import drafting


def spin(case: dict[str, Any]) -> dict[str, Any]:
    while True:
        pass


def wait(case: dict[str, Any]) -> dict[str, Any]:
    time.sleep(3600)
    return {}


def served(case: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.2)
    return {"stage": "served", "error": ""}


@pytest.mark.thorough
@pytest.mark.parametrize(("outcome", "limit", "seconds", "reason"), [
    (spin, "PROCESSOR_SECONDS", 0.2, "s of CPU time"), (wait, "IDLE_SECONDS", 0.5, "s idle"),
])  # fmt: skip
def test_a_trial_that_never_ends_is_killed_and_the_reason_is_reported(
    outcome: Any, limit: str, seconds: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "outcome", outcome)
    monkeypatch.setattr(drafting, limit, seconds)
    monkeypatch.setattr(drafting, "LOOK_SECONDS", 0.1)
    killed = drafting.in_a_fork({})
    assert killed["stage"] == "killed"
    assert killed["error"].startswith("exit -9: stopped after ")
    assert reason in killed["error"]


@pytest.mark.thorough
def test_a_trial_that_ends_reports_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "outcome", served)
    monkeypatch.setattr(drafting, "LOOK_SECONDS", 0.05)
    assert drafting.in_a_fork({}) == {"stage": "served", "error": ""}
