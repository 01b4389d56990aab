"""The four shapes of an answer: a narrow terminal loses no text and breaks no command."""

import sys

import pytest

from peagle.cli.view import (
    DeploymentProgress,
    StatusLine,
    print_documents,
    print_facts,
    print_findings,
    print_line,
    print_table,
)
from peagle.deploy.context import Progress
from peagle.findings import Finding

COMMAND = ("peagle", "plan", "a" * 40, "--set", "a value with blanks")
FINDING = Finding(
    level="warning", code="some-code", where="max_model_len", message="m " * 30, fix="do it",
    command=COMMAND,
)  # fmt: skip
LINE = f"peagle plan {'a' * 40} --set 'a value with blanks'"


@pytest.mark.parametrize("width", ["40", "60", "200", ""])
def test_every_shape_keeps_its_texts_and_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    rows = [("ml.g6e.xlarge", "1,234,567", "word " * 9), ("x", "7", "")]
    print_table(("type", "tokens", "why"), rows, right=("tokens",), title="Table")
    print_facts([("label", "text " * 9), ("to do", ("run", LINE)), ("none", "")], err=False)
    print_findings([FINDING], title="Findings")
    print_line("Next", LINE)
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert shown.count("word") == shown.count("text") == 9
    assert "1,234,567" in shown
    assert "[some-code]" in shown
    assert "max_model_len:" in shown
    assert shown.count(LINE) == 3, "of a fact, of a finding, and the next one"
    assert "none" not in shown


def test_a_table_keeps_its_urls_in_one_piece(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(("pair", "url"), [("word " * 9, "http://127.0.0.1:24479/v1")])
    assert "http://127.0.0.1:24479/v1" in capsys.readouterr().out


def test_no_column_is_cut_off_where_the_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    place = {
        "instance_type": "ml.g7e.12xlarge", "gpu": "RTX PRO 6000", "price_per_hour_usd": 10.36,
        "max_concurrency": 43.27, "tokens_per_second": 1852.0, "usd_per_million_tokens": 1.55,
    }  # fmt: skip
    print_documents([place], [*place])
    shown = capsys.readouterr().out
    for text in ("12xlarge", "10.36", "43.27", "1,852", "1.55"):
        assert text in shown


def test_a_table_with_a_long_word_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_table(("argument", "value", "because"), [("--speculative-config", "x" * 90, "word " * 9)])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("x") == 90


def test_columns_come_closer_and_names_stay_whole_where_a_table_is_too_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_documents(
        [{"name": "n" * 24, "state": "s" * 9, "pair": "p" * 40}], ["name", "state", "pair"]
    )
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 60
    assert "n" * 24 in shown
    assert shown.count("p") == 41, "with the heading's"


def test_a_table_whose_words_fit_is_no_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words, more = ["w" * 20, "x" * 7, "y" * 14, "z" * 18], " more text here"
    first = [word + more * times for word, times in zip(words, (2, 2, 0, 2), strict=True)]
    second = [word + more * times for word, times in zip(words, (0, 1, 1, 2), strict=True)]
    print_table(["a", "b", "c", "d"], [first, second])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert all(shown.count(word) == 2 for word in words)


# Progress on stderr, with and without a terminal.
def use_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stderr a terminal that can rewrite a line."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


def on_screen(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a terminal shows from each erased line to the next one."""
    return capsys.readouterr().err.split("\r\x1b[2K")


def test_without_a_terminal_there_is_a_line_every_15_seconds(
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


def test_on_a_terminal_the_line_is_rewritten_and_cleared_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "30")
    with StatusLine(lambda: 0.0) as status:
        status.show("starting", "a very long line of the log\x1b[31m with colors")
        status.show("proving")
    assert on_screen(capsys) == ["", "starting, 0 s: a very long...", "proving, 0 s", ""]


@pytest.mark.parametrize(("progress", "sandbox", "line"), [
    (Progress("Creating", 83.4, 0.0326, "Loading weights"), False,
     "Creating | 1m 23s | $0.03 so far | Loading weights"),
    (Progress("Creating", 83.4, 0.0326), True, "Creating | 1m 23s | $0.03 on AWS"),
    (Progress("Creating model", line="m"), False, "Creating model | m"),
])  # fmt: skip
def test_deployment_shows_state_time_cost_and_line(
    progress: Progress, sandbox: bool, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with DeploymentProgress(sandbox) as status:
        status.observe(progress)
    assert capsys.readouterr().err == f"{line}\n"


def test_without_a_terminal_a_deployment_has_a_line_per_change_and_per_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    with DeploymentProgress(sandbox=False, clock=lambda: now) as status:
        for second in range(140):
            now = float(second)
            state = "Creating" if second < 135 else "InService"
            line = f"Loading weights: {second}%" if second >= 90 else "no log yet"
            status.observe(Progress(state, now, line=line, is_logging=second >= 90))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "Creating | no log yet",
        "Creating | 1m 00s | no log yet",
        "Creating | 1m 30s | Loading weights: 90%",
        "InService | 2m 15s | Loading weights: 135%",
    ]


def test_a_notice_stays_above_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    with DeploymentProgress(sandbox=False) as status:
        status.observe(Progress("Creating", 1))
        status.observe(Progress("peagle-tiny", line="no capacity", is_notice=True))
        status.observe(Progress("Creating", 2))
    assert on_screen(capsys) == [
        "", "Creating | 1s", "peagle-tiny: no capacity\nCreating | 1s", "Creating | 2s", "",
    ]  # fmt: skip


def test_a_thread_that_still_runs_shows_nothing_after_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    with StatusLine(lambda: 0.0) as status:
        status.show("starting")
    capsys.readouterr()
    status.show("starting")
    assert capsys.readouterr().err == ""
