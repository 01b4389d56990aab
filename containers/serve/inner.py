"""The server asks itself: a request straight into the application, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


async def call(
    app: Application, scope: Message, method: str, path: str, body: bytes = b""
) -> tuple[int, str]:
    """Status and text of the answer. ``scope`` is that of any call to the same application."""
    status, page = 500, bytearray()
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        """The body once; after it nothing, as from a client that waits for its answer."""
        if parts:
            return parts.pop()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

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
