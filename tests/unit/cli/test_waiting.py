"""The line that says how far something is."""

from __future__ import annotations

import sys

import pytest

from toolkit.cli.waiting import StatusLine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds; set its only element."""
    now = [0.0]
    monkeypatch.setattr("toolkit.cli.waiting.time.monotonic", lambda: now[0])
    return now


def test_in_a_file_there_is_a_line_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with StatusLine() as status:
        for second in range(25):
            clock[0] = second
            status.show("starting", "a line of the log")

    assert capsys.readouterr().err.splitlines() == [
        "starting, 0 s: a line of the log",
        "starting, 10 s: a line of the log",
        "starting, 20 s: a line of the log",
    ]


def test_on_a_terminal_it_is_rewritten_and_gone_at_the_end(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")

    with StatusLine() as status:
        status.show("starting", "a very long line of the log\x1b[31m with colours")
        status.show("proving")

    shown = capsys.readouterr().err
    *lines, last = shown.split("\r\x1b[2K")[1:]
    assert lines == ["starting, 0 s: a very long li"[:29], "proving, 0 s"]
    assert last == ""
