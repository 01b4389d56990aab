"""Logs of vLLM's crashes: whole ones, and lines of our own runs, of its source and of reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.engine.logs import find_crash
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.crash import parse_crash

LOGS = Path(__file__).parent / "crashes"
CRASHES: dict[str, tuple[str, str, str]] = json.loads((LOGS / "logs.json").read_text("utf-8"))
"""Log -> part of the line, cause and part of the fix."""
CORPUS: list[tuple[str, str, str]] = json.loads((LOGS / "corpus.json").read_text("utf-8"))
"""Lines, cause, and a word of the fix."""
CONSEQUENCES = [
    "Process EngineCore:",
    "(APIServer pid=7) Traceback (most recent call last):",
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}",
]
HEALTHY = [
    "(APIServer pid=7) INFO 11-20 11:34:11 [x.py:1] worker exited with code 137, restarted",
    'INFO:     127.0.0.1:4 - "POST /invocations HTTP/1.1" 200 OK',
    "(APIServer pid=7) INFO 11-20 [x.py:6] killed 3 idle streams; GPU KV cache usage: 13.7%",
    "(EngineCore pid=8) WARNING 11-20 11:34:11 [x.py:6] exit code 137",
]


@pytest.mark.parametrize(("log", "cause", "fix"), CORPUS, ids=lambda part: str(part)[:40])
def test_a_log_has_its_cause_and_a_fix(log: str, cause: str, fix: str) -> None:
    lines = [*HEALTHY, *log.splitlines(), *CONSEQUENCES]
    crash = find_crash(lines)
    assert (crash.cause, bool(crash.fix)) == (cause, bool(cause))
    assert fix in " ".join((crash.fix, *crash.command))
    assert crash == parse_crash(lines)
    assert not any(code in crash.line for code in ("\x1b", "#033", "^["))


def test_a_cause_decides_before_the_kill_that_followed_it() -> None:
    known = parse_crash(["Killed", "OSError: [Errno 28] No space left on device"])
    assert known.cause == "disk-full"
    assert parse_crash(["ValueError: strange", "exit code 137"]).cause == "killed"
    assert parse_crash(HEALTHY).line == ""


@pytest.mark.parametrize("name", CRASHES)
def test_the_cause_is_found_in_a_real_log(name: str) -> None:
    words, cause, fix = CRASHES[name]
    crash = parse_crash((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines())
    assert words in crash.line
    assert crash.cause == cause
    assert fix in crash.fix
    assert "\n" not in str(InvalidEnvironment(crash.line, crash.fix))


def test_every_log_has_an_expectation() -> None:
    assert {file.stem for file in LOGS.glob("*.log")} == set(CRASHES)


def test_lines_of_another_process_do_not_belong_to_a_message() -> None:
    lines = ["(Worker pid=9) ValueError: no", "(EngineCore pid=8) goes on", "(Worker pid=9) more"]
    assert parse_crash(lines).line == "ValueError: no"
