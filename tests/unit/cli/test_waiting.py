"""The line that says how far something is."""

from __future__ import annotations

import sys

import pytest

from peagle.cli.output.progress import StatusLine


def test_in_a_file_there_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    with StatusLine(lambda: now) as status:
        for second in range(35):
            now = float(second)
            status.show("starting", "a line of the log")

    assert capsys.readouterr().err.splitlines() == [
        "starting, 0 s: a line of the log",
        "starting, 15 s: a line of the log",
        "starting, 30 s: a line of the log",
    ]


def test_on_a_terminal_it_is_rewritten_and_gone_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")

    with StatusLine(lambda: 0.0) as status:
        status.show("starting", "a very long line of the log\x1b[31m with colours")
        status.show("proving")

    shown = capsys.readouterr().err
    *lines, last = shown.split("\r\x1b[2K")[1:]
    assert lines == ["starting, 0 s: a very long li"[:29], "proving, 0 s"]
    assert last == ""
