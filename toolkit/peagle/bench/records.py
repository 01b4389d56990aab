"""Read what aiperf writes: one JSON line per request (``profile_export.jsonl``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any

from peagle.bench.sender import SentRequest
from peagle.errors import EngineError, count_of, parsing
from peagle.protocol import engine_message
from peagle.text import sanitize
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, Limits

PHASE = "load"
"""The phases are called ``load0``, ``load1``, ...; the first is the warm-up."""

_LIMITS = Limits(size=64 << 20, depth=16, values=2_000_000)
_LONGEST = 300
_CUT_OFF = "the server closed the connection before the end of an answer"
_KNOWN = {
    "ClientConnectorError": "the server refuses the connection",
    "ClientOSError": _CUT_OFF,
    "ClientPayloadError": _CUT_OFF,
    "InvalidInferenceResultError": "the server sent no text",
    "ServerDisconnectedError": _CUT_OFF,
    "RequestTimeoutError": "the answer took too long",
    "TimeoutError": "the answer took too long",
}
"""aiperf's names of errors without a status -> what has happened."""


def requests_in(lines: Iterable[bytes]) -> Iterator[SentRequest]:
    """The requests of these lines, in their order.

    A line that is cut off, as of an aiperf that was killed, is ignored. Raises EngineError for
    another format.
    """
    for line in lines:
        try:
            document = json_reader.read(line, "a record of aiperf", limits=_LIMITS)
        except InvalidJson as error:
            if error.is_syntax and not line.endswith(b"\n"):
                return
            raise EngineError(f"{error}", code="invalid-response") from error
        with parsing("a record of aiperf", EngineError):
            yield _request(document)


def _request(document: Mapping[str, Any]) -> SentRequest:
    metadata, metrics = document["metadata"], document["metrics"]
    name = metadata["phase_name"]
    repetition = count_of(int(name.removeprefix(PHASE)))
    start = _number(metadata["request_start_ns"]) / 1e9
    end = _number(metadata["request_end_ns"]) / 1e9
    if document.get("error"):
        return SentRequest(repetition, start, end, error=_message(document["error"]))
    output_tokens = _count(metrics, "usage_completion_tokens")
    ttft = _seconds(metrics, "time_to_first_token")
    if not output_tokens or ttft is None:
        # vLLM reports an error after the first output as an event of the stream.
        why = "the answer ended early, or without its number of tokens"
        return SentRequest(repetition, start, end, error=why)
    gaps = metrics["inter_chunk_latency"]["value"] if "inter_chunk_latency" in metrics else []
    return SentRequest(
        repetition,
        start,
        end,
        ttft,
        tuple(_number(gap) / 1e3 for gap in gaps),
        _count(metrics, "usage_prompt_tokens"),
        output_tokens,
    )


def _seconds(metrics: Mapping[str, Any], name: str) -> float | None:
    return _number(metrics[name]["value"]) / 1e3 if name in metrics else None


def _count(metrics: Mapping[str, Any], name: str) -> int | None:
    return count_of(metrics[name]["value"]) if name in metrics else None


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value) or value < 0:
        raise ValueError(f"{ascii(value)[:40]} is not a time")
    return float(value)


def _message(error: Any) -> str:
    """The engine's own message, or aiperf's without its internals."""
    if not isinstance(error, dict):
        return sanitize(error, _LONGEST)
    text = str(error.get("message") or error.get("type") or "the request failed")
    if error.get("code"):
        return sanitize(f"HTTP {error['code']}: {engine_message(text)}", _LONGEST)
    return _KNOWN.get(str(error.get("type"))) or sanitize(text, _LONGEST)
