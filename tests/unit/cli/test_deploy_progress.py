"""Progress on stderr."""

from __future__ import annotations

import pytest

from peagle.cli.output.progress import Ticker, describe
from peagle.deploy.context import Progress


def test_state_time_cost_and_line_are_shown() -> None:
    progress = Progress("Creating", 83.4, 0.0326, "Loading weights")

    assert describe(progress) == "Creating | 1m 23s | $0.03 so far | Loading weights"
    assert describe(progress, free=True) == ("Creating | 1m 23s | $0.03 on AWS | Loading weights")
    assert describe(Progress("Creating model", line="m")) == "Creating model | m"


def test_without_a_terminal_a_lasting_state_is_told_when_it_changes_and_every_15_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    with Ticker(clock=lambda: now) as ticker:
        for second in range(40):
            now = float(second)
            ticker.show(Progress("Creating" if second < 35 else "InService", now))

    told = capsys.readouterr().err.splitlines()
    assert told == ["Creating", "Creating | 15s", "Creating | 30s", "InService | 35s"]


def test_every_step_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with Ticker() as ticker:
        for name in ("a", "b"):
            ticker.show(Progress("Removing", line=name, lasting=False))

    assert capsys.readouterr().err.splitlines() == ["Removing | a", "Removing | b"]
