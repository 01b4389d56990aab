"""vLLM's speculation counters through ``/invocations``, the one route that SageMaker offers.

vLLM loads ``CountersMiddleware`` by ``--middleware``. A request with the header
``X-Amzn-SageMaker-Custom-Attributes: peagle=counters`` is answered from the server's ``/metrics``;
all others pass without buffering. Also here: requests of the server to itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from peagle_serve.contract import ATTRIBUTES_HEADER, COUNTERS_ATTRIBUTE

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


async def call(
    app: Application, scope: Message, method: str, path: str, body: bytes = b""
) -> tuple[int, str]:
    """Status and text of the response to a request without a connection. ``scope`` is that of any
    request to the same application."""
    status, page = 500, bytearray()
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        """The body once; then block, as a client that waits for its response."""
        if parts:
            return parts.pop()
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        page.extend(message.get("body", b""))

    await app(_request(scope, method, path, len(body)), receive, send)
    return status, page.decode("utf-8", errors="replace")


def _request(scope: Message, method: str, path: str, length: int) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": scope.get("asgi", {"version": "3.0"}),
        "app": scope.get("app"),
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % length),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": dict(scope.get("state", {})),
    }


def has_attribute(scope: Message, attribute: str) -> bool:
    """Whether a request to ``/invocations`` has that attribute, such as ``peagle=counters``."""
    header = ATTRIBUTES_HEADER.lower().encode()
    return (
        scope["type"] == "http"
        and scope["path"] == "/invocations"
        and any(name.lower() == header and value.strip() == attribute.encode()
                for name, value in scope["headers"])
    )  # fmt: skip


async def answer(
    send: Send, status: int, body: dict[str, Any] | bytes, *more: tuple[bytes, bytes]
) -> None:
    """Respond with a JSON document, or with bytes; ``more`` are headers."""
    kind = b"application/octet-stream" if isinstance(body, bytes) else b"application/json"
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


_CACHE = re.compile(
    r"^vllm:prefix_cache_(?P<name>queries|hits)_total(?:\{.*\})? (?P<value>\S+)", re.MULTILINE
)
_SAMPLE = re.compile(
    r"^vllm:spec_decode_num_(?P<name>drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)"
    r"_total(?:\{(?P<labels>.*)\})? (?P<value>\S+)",
    re.MULTILINE,
)
_POSITION = re.compile(r'(?:^|,)position="(\d{1,9})"')


class CountersMiddleware:
    """An ASGI application around vLLM's."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if has_attribute(scope, COUNTERS_ATTRIBUTE):
            await answer(send, *await self._counters(scope))
        else:
            await self._app(scope, receive, send)

    async def _counters(self, scope: Message) -> tuple[int, dict[str, Any]]:
        status, page = await call(self._app, scope, "GET", "/metrics")
        if status != 200:
            return 502, {"error": f"the engine's /metrics returned {status}"}
        return 200, sum_counters(page)


def sum_counters(page: str) -> dict[str, Any]:
    """The counters in Prometheus text, summed over engines.

    Without speculation those of drafts are 0 and ``speculation`` is false. ``cache_queries`` and
    ``cache_hits`` are tokens of prompts, and absent where the engine does not count them.
    """
    totals = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
    positions: dict[int, int] = {}
    samples = list(_SAMPLE.finditer(page))
    for sample in samples:
        count = _count(sample["value"])
        position = _POSITION.search(sample["labels"] or "")
        if sample["name"] in totals:
            totals[sample["name"]] += count
        elif position:
            place = int(position[1])
            positions[place] = positions.get(place, 0) + count
    cache: dict[str, int] = {}
    for sample in _CACHE.finditer(page):
        name = f"cache_{sample['name']}"
        cache[name] = cache.get(name, 0) + _count(sample["value"])
    return {
        **cache,
        "speculation": bool(samples),
        **totals,
        "accepted_per_position": [positions[place] for place in sorted(positions)],
    }


def _count(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError):  # NaN and +Inf are values in this format
        return 0
