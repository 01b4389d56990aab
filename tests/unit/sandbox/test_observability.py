"""What the sandbox keeps of an engine's log, and the log of AWS's plain image."""

from __future__ import annotations

import os

import pytest

from peagle.engine_log import log_fields, log_text
from peagle.sandbox.observability import stock_line
from peagle_serve.logs import Log, Redactor


def written_by_ours(line: str) -> str:
    """A line of the engine as the entrypoint writes it."""
    reading, writing = os.pipe()
    try:
        Log(Redactor({}), writing).engine(line)
        return os.read(reading, 65536).decode().rstrip("\n")
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=7) INFO 11-22 08:38:19 [metrics.py:120] SpecDecoding metrics: Mean ...",
        'INFO:     127.0.0.1:5000 - "GET /ping HTTP/1.1" 200 OK',
        '(APIServer pid=7) INFO:     127.0.0.1:5000 - "POST /invocations HTTP/1.1" 200 OK',
        "Traceback (most recent call last):",
        "ValueError: the head does not belong to this target",
    ],
)
def test_lines_of_vllm_get_their_form_back(line: str) -> None:
    ours = written_by_ours(line)
    assert ours.startswith('{"time":')
    stock, _, rest = stock_line(ours).partition(" [metrics")
    expected, _, _ = line.partition(" [metrics")
    if rest:  # the time is that of the entrypoint
        stock, expected = stock[:22], expected[:22]
    assert stock == expected


def test_the_entrypoint_s_own_lines_are_left_out_or_notes() -> None:
    reading, writing = os.pipe()
    log = Log(Redactor({}), writing)
    log.info("starting vLLM", event="start", argv=["vllm"])
    log.error("the head is missing", "mount it", event="refused", cause="head", exit_code=2)
    os.close(writing)
    with os.fdopen(reading) as stream:
        started, refused = stream.read().splitlines()
    assert stock_line(started) == ""
    assert log_text(stock_line(refused)) == "sandbox: error: the head is missing (mount it)"
    assert log_fields(stock_line(refused))["cause"] == "head"
    assert stock_line("sandbox: a note") == "sandbox: a note"
