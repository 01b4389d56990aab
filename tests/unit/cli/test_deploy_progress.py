"""Progress, durations and prices in words."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.cli.output.progress import Ticker, describe
from peagle.deploy.context import Progress
from peagle.text import duration, in_words, price_words

CONTEXT = click.Context(click.Command("x"))
OPTION = click.Option(["--since"])


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


@given(number=st.integers(0, 999_999_999), unit=st.sampled_from("smhd"))
def test_a_duration_is_its_number_of_units(number: int, unit: str) -> None:
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]

    assert duration(CONTEXT, OPTION, f"{number}{unit}") == number * seconds


@given(st.text())
def test_anything_else_is_refused(text: str) -> None:
    digits, unit = text[:-1], text[-1:]
    if digits.isascii() and digits.isdigit() and len(digits) < 10 and unit in ("s", "m", "h", "d"):
        return
    with pytest.raises(click.BadParameter):
        duration(CONTEXT, OPTION, text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m 00s"),
        (3599, "59m 59s"),
        (3600, "1h 00m"),
        (7322, "2h 02m"),
    ],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_prices_are_per_hour_and_per_day() -> None:
    assert price_words(1.408) == "$1.41 per hour, $33.79 per day"
    assert price_words(None) == "not known"
    assert price_words(0.0) == "$0.00 per hour, $0.00 per day"
    assert "nothing in the sandbox" in price_words(1.0, sandbox=True)
