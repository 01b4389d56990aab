"""The middleware answers requests for the counters and forwards all others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from peagle.protocol import parse_counters
from peagle_serve.contract import ATTRIBUTES_HEADER, COUNTERS_ATTRIBUTE
from peagle_serve.counters import CountersMiddleware, Message, sum_counters

PAGE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a \\"b\\" {c}"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a"} 2.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="a"} 1.79e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="a"} 1.2e+02
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="position=\\"9\\""} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="10"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="2"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="a",position="2"} 2.0
vllm:num_requests_running{engine="0"} 3.0
"""


def test_the_counters_of_all_engines_are_summed() -> None:
    assert sum_counters(PAGE) == {
        "speculation": True,
        "drafts": 12,
        "draft_tokens": 120,
        "accepted_tokens": 30,
        "accepted_per_position": [7, 1],
    }


def test_without_speculation_all_counters_are_zero() -> None:
    counted = sum_counters("vllm:num_requests_running 3.0\n")

    assert counted["speculation"] is False
    assert parse_counters(counted).drafts == 0
    assert parse_counters(counted).accepted_per_position == ()


HEADER = ATTRIBUTES_HEADER.lower().encode()
ATTRIBUTE = COUNTERS_ATTRIBUTE.encode()


class Server:
    """A fake of vLLM's ASGI application."""

    def __init__(self, metrics_status: int = 200) -> None:
        self.metrics_status = metrics_status
        self.calls: list[tuple[Message, Any, Any]] = []

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        self.calls.append((scope, receive, send))
        if scope["path"] == "/metrics":
            assert scope["method"] == "GET"
            half = len(PAGE) // 2
            await send({"type": "http.response.start", "status": self.metrics_status})
            await send({"type": "http.response.body", "body": PAGE[:half].encode()})
            await send({"type": "http.response.body", "body": PAGE[half:].encode()})


def responses(server: Server, scope: Message) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("the counters need no body")

    asyncio.run(CountersMiddleware(server)(scope, receive, send))
    return sent


def request(path: str = "/invocations", attribute: bytes = ATTRIBUTE, **more: Any) -> Message:
    headers = [(b"content-type", b"application/json"), (HEADER, attribute)]
    return {"type": "http", "method": "POST", "path": path, "headers": headers, **more}


def test_a_request_for_the_counters_is_answered() -> None:
    start, body = responses(Server(), request())

    assert start["status"] == 200
    assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()
    assert json.loads(body["body"])["drafts"] == 12


def test_unreadable_metrics_are_an_error() -> None:
    start, body = responses(Server(metrics_status=500), request())

    assert start["status"] == 502
    assert "500" in json.loads(body["body"])["error"]


@pytest.mark.parametrize(
    "scope",
    [
        request(attribute=b"other"),
        request(path="/v1/chat/completions"),
        request(path="/metrics"),
        {**request(), "headers": []},
        {"type": "lifespan"},
        {"type": "websocket", "path": "/invocations", "headers": [(HEADER, ATTRIBUTE)]},
    ],
)
def test_any_other_request_is_forwarded_unchanged(scope: Message) -> None:
    seen: list[tuple[Message, Any, Any]] = []

    async def server(*call: Any) -> None:
        seen.append(call)

    async def receive() -> Message:
        return {}

    async def send(message: Message) -> None:
        return None

    asyncio.run(CountersMiddleware(server)(scope, receive, send))

    assert len(seen) == 1
    assert all(got is given for got, given in zip(seen[0], (scope, receive, send), strict=True))
