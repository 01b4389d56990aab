"""Every line of the log is one JSON document; the engine's lines are parsed."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engine_log import log_text
from peagle_serve.engine import EngineLines
from peagle_serve.logs import LONGEST, SERVING, STARTING, Log, Redactor


class Written:
    """A log, and its output."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        self.log = Log(Redactor({"HF_TOKEN": "very-secret"}), writing)

    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]

    def lines(self) -> list[str]:
        """The lines so far."""
        self.log.info("mark", event="mark")
        read = b""
        while b'"event": "mark"' not in read:
            read += os.read(self._reading, 65536)
        return read.decode().splitlines()[:-1]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "(EngineCore pid=8) INFO 11-20 11:34:26 [core.py:131] Loading [1/2]",
            {
                "level": "INFO",
                "process": "EngineCore pid=8",
                "place": "core.py:131",
                "message": "Loading [1/2]",
            },
        ),
        (
            "WARNING 11-20 11:34:26 [a.py:1] x",
            {"level": "WARNING", "place": "a.py:1", "message": "x"},
        ),
        (
            "INFO:     Started server process [7]",
            {"level": "INFO", "message": "Started server process [7]"},
        ),
        (
            "(Worker_TP0 pid=9) plain",
            {"level": "INFO", "process": "Worker_TP0 pid=9", "message": "plain"},
        ),
        ("ValueError: no", {"level": "ERROR", "message": "ValueError: no"}),
        (
            "x.py:1: FutureWarning: old",
            {"level": "WARNING", "message": "x.py:1: FutureWarning: old"},
        ),
        ("", {"level": "INFO", "message": ""}),
    ],
)
def test_a_line_is_parsed(line: str, fields: dict[str, str]) -> None:
    assert EngineLines().fields(line) == fields


def test_every_line_of_a_traceback_is_an_error() -> None:
    lines = EngineLines()
    entries = [
        "(APIServer pid=7) Traceback (most recent call last):",
        '(APIServer pid=7)   File "core.py", line 1, in run',
        '(APIServer pid=7)   File "core.py", line 2, in start',
        "(APIServer pid=7)     begin()",
        "of another process",
        "(APIServer pid=7) KeyError",
        "(APIServer pid=7) plain",
    ]

    assert [lines.fields(line)["level"] for line in entries] == [
        "ERROR", "ERROR", "ERROR", "ERROR", "INFO", "ERROR", "INFO",
    ]  # fmt: skip


def test_a_traceback_keeps_its_indentation() -> None:
    assert EngineLines().fields('(APIServer pid=7)   File "core.py"')["message"] == (
        '  File "core.py"'
    )


def test_every_line_has_time_level_and_stage() -> None:
    written = Written()
    written.log.info("begun", event="start", argv=["python", "--api-key", "x"])
    written.log.stage = STARTING
    written.log.warning("look")
    written.log.error("broken", "repair it", event="crash", cause="port-in-use", exit_code=1)
    written.log.engine("INFO 11-20 11:34:26 [a.py:1] with very-secret in it")

    begun, look, broken, engine = written.documents()

    assert {"time", "level", "stage", "message"} <= set(begun) & set(look) & set(engine)
    assert begun["time"].endswith("Z")
    assert len(begun["time"]) == len("2026-11-20T11:34:26.131Z")
    assert (begun["stage"], begun["argv"]) == ("checking", ["python", "--api-key", "***"])
    assert (look["level"], look["stage"]) == ("WARNING", "starting")
    assert (broken["fix"], broken["cause"], broken["exit_code"]) == ("repair it", "port-in-use", 1)
    assert (engine["from"], engine["message"]) == ("engine", "with *** in it")


def test_user_input_is_redacted_once_the_engine_serves() -> None:
    written = Written()
    written.log.stage = SERVING
    written.log.engine("ValueError: x [type=t, input_value='my diary', input_type=str]")

    assert "diary" not in written.lines()[0]


def test_a_progress_bar_keeps_its_last_state_and_empty_lines_are_dropped() -> None:
    written = Written()
    written.log.engine("\r  0% |   |\r 50% |# |\r100% |##|\r")
    written.log.engine("   ")
    written.log.engine("\x1b[32mgreen\x1b[0m")

    assert [document["message"] for document in written.documents()] == ["100% |##|", "green"]


@given(st.text(st.characters(exclude_characters="\n")))
def test_any_output_of_the_engine_is_one_line_of_json(line: str) -> None:
    written = Written()
    written.log.engine(line)

    for document in written.documents():
        assert document["message"]


@pytest.mark.parametrize("filler", ["x", '"', "\u65e5", "\ud800", "\x01"])
def test_a_line_is_short_enough_for_docker_and_keeps_its_end(filler: str) -> None:
    written = Written()
    written.log.engine(f"ValueError: {filler * 30_000} the end")

    (line,) = written.lines()

    assert len(line.encode()) < LONGEST + 1000 < 16_384
    assert json.loads(line)["message"].endswith("the end")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "(EngineCore pid=8) INFO 11-20 11:34:26 [core.py:131] Loading",
            "(EngineCore pid=8) INFO [core.py:131] Loading",
        ),
        ("ValueError: the last word", "ValueError: the last word"),
        ("fake: line 2", "fake: line 2"),
    ],
)
def test_log_text_shows_an_engines_line_as_written(line: str, text: str) -> None:
    written = Written()
    written.log.engine(line)

    assert log_text(written.lines()[0]) == text


def test_log_text_shows_the_entrypoints_lines() -> None:
    written = Written()
    written.log.error("no model is named", "set SM_VLLM_MODEL", event="refused")
    written.log.stage = STARTING
    written.log.info("starting vLLM", event="start", argv=["python", "-m"])

    assert [log_text(line) for line in written.lines()] == [
        "serve: error: no model is named (set SM_VLLM_MODEL)",
        'serve: starting vLLM: ["python", "-m"]',
    ]


@pytest.mark.parametrize("command", ["peagle", [1], [["peagle"]], {"a": 1}, [None, "x"], 5])
def test_a_command_that_another_program_wrote_is_none(command: object) -> None:
    fields = {"time": "T", "event": "refused", "message": "no", "fix": "do", "command": command}
    assert log_text(json.dumps(fields, separators=(",", ":"))) == "serve: error: no (do)"


@pytest.mark.parametrize("line", ["", "plain", "{", '{"time": ', '{"a": 1}', '{"time":1'])
def test_log_text_leaves_lines_of_other_programs_unchanged(line: str) -> None:
    assert log_text(line) == line
