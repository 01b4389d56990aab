"""aiperf's records of requests: whole, failed, cut off, and of another format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peagle.bench.aiperf import requests_in
from peagle.errors import EngineError

# As aiperf 0.13.0 wrote them, without the metrics that are not read.
METADATA = {"session_num": 0, "request_start_ns": 1795360789440639418,
            "request_end_ns": 1795360789604441464, "benchmark_phase": "profiling",
            "phase_name": "load2", "was_cancelled": False}  # fmt: skip
GOOD: dict[str, Any] = {
    "metadata": METADATA,
    "metrics": {
        "time_to_first_token": {"value": 69.177212, "unit": "ms"},
        "inter_chunk_latency": {"value": [10.310284, 10.5], "unit": "ms"},
        "usage_completion_tokens": {"value": 20, "unit": "tokens"},
        "usage_prompt_tokens": {"value": 7, "unit": "tokens"},
    },
}
REFUSED = {
    "type": "ClientConnectorError",
    "message": "ClientConnectorError(ConnectionKey(host='127.0.0.1', port=8805))",
    "cause_chain": ["ClientConnectorError", "ConnectionRefusedError"],
}
FAILED = {"code": 500, "type": "X", "message": '{"error":{"message":"EngineCore died"}}'}


def line(document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"


def test_a_record_has_times_in_seconds_and_the_servers_tokens() -> None:
    (found,) = requests_in([line(GOOD)])

    assert (found.repetition, found.prompt_tokens, found.output_tokens) == (2, 7, 20)
    assert found.start == pytest.approx(1795360789.440639)
    assert found.end == pytest.approx(1795360789.604441)
    assert found.ttft == pytest.approx(0.069177212)
    assert found.gaps == pytest.approx((0.010310284, 0.0105))
    assert not found.error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (REFUSED, "the server refuses the connection"),
        (FAILED, "HTTP 500: EngineCore died"),
        ({"type": "ClientPayloadError", "message": "x"}, "closed the connection"),
        ({"type": "New", "message": "what\x1b is it"}, "what is it"),
        ("text", "text"),
    ],
)
def test_a_failed_request_has_one_clear_message(error: Any, message: str) -> None:
    (found,) = requests_in([line({"metadata": METADATA, "metrics": {}, "error": error})])

    assert message in found.error
    assert found.output_tokens is None


def test_a_stream_with_an_error_and_a_line_that_is_cut_off() -> None:
    """vLLM reports an error in a stream as an event, which aiperf does not count as an error."""
    metrics = {name: GOOD["metrics"][name] for name in ("time_to_first_token",)}

    (found,) = requests_in([line({"metadata": METADATA, "metrics": metrics}), line(GOOD)[:200]])

    assert "ended early" in found.error


@pytest.mark.parametrize(
    "damaged",
    [
        b"{}\n",
        b"[]\n",
        b"no json\n",
        line(GOOD | {"metadata": METADATA | {"phase_name": "other"}}),
        line(GOOD | {"metadata": METADATA | {"request_start_ns": -1}}),
        line(GOOD | {"metrics": GOOD["metrics"] | {"usage_completion_tokens": {"value": 2.5}}}),
    ],
)
def test_another_format_is_an_error(damaged: bytes) -> None:
    with pytest.raises(EngineError):
        list(requests_in([damaged]))
