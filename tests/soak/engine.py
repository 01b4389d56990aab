"""A fast stand-in for vLLM's server: streams numbered words through the container's middlewares.

It is installed as vLLM, so that ``peagle_serve`` starts it, loads its middlewares into it, and
drains it. Like uvicorn, it ends after SIGTERM when its connections are answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from importlib import import_module
from typing import Any

GAP_SECONDS = 0.05
"""Between two words."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
_METRICS = b"vllm:spec_decode_num_drafts_total 1.0\nvllm:spec_decode_num_draft_tokens_total 5.0\n"
"""The drafter has drafted: the container waits for it."""


async def application(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await asyncio.Event().wait()
    elif scope["path"] == "/metrics":
        await _answer(send, "text/plain", _METRICS)
    elif scope["method"] == "GET":
        await _answer(send, "application/json", b"{}")
    else:
        request = json.loads((await receive())["body"])
        if request.get("stream"):
            await _stream(request, send)
        else:
            await _answer(send, "application/json", b'{"choices": [{"text": "Hello"}]}')


async def _answer(send: Send, kind: str, body: bytes) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(request: Message, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    count = request["max_tokens"]
    for number in range(count):
        last = number == count - 1
        choice = {"index": 0, "delta": {"content": f"{number} "},
                  "finish_reason": "length" if last else None}  # fmt: skip
        await _event(send, json.dumps({"id": f"chatcmpl-{os.getpid()}", "choices": [choice]}))
        await asyncio.sleep(GAP_SECONDS)
    await _event(send, "[DONE]")
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _event(send: Send, data: str) -> None:
    body = f"data: {data}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


class Connection:
    """One connection, with one request after the other."""

    def __init__(self, app: Application, server: Server, reader: asyncio.StreamReader,
                 writer: asyncio.StreamWriter) -> None:  # fmt: skip
        self._app, self._server = app, server
        self._reader, self._writer = reader, writer
        self._chunked = False
        self._keep = True

    async def serve(self) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while self._keep and not self._server.ending.is_set():
                await self._request()
        with suppress(ConnectionError):
            self._writer.close()
            await self._writer.wait_closed()

    async def _request(self) -> None:
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        method, path, _ = first.decode().split(" ")
        pairs = [line.split(b":", 1) for line in lines]
        headers = [(name.lower(), value.strip()) for name, value in pairs]
        body = await self._reader.readexactly(int(dict(headers).get(b"content-length", b"0")))
        self._keep = dict(headers).get(b"connection", b"").lower() != b"close"
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if not parts:
                await asyncio.Event().wait()
            return parts.pop()

        self._server.running += 1
        try:
            await self._app(scope, receive, self._send)
        finally:
            self._server.running -= 1
        print(f'INFO:     127.0.0.1:5000 - "{method} {path} HTTP/1.1" 200 OK', flush=True)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            names = {name.lower(): value for name, value in headers}
            self._chunked = b"content-length" not in names
            headers += [(b"transfer-encoding", b"chunked")] if self._chunked else []
            self._keep = self._keep and names.get(b"connection") != b"close"
            lines = b"".join(b"%s: %s\r\n" % pair for pair in headers)
            self._writer.write(b"HTTP/1.1 %d Status\r\n%s\r\n" % (message["status"], lines))
            return
        body = message.get("body", b"")
        if self._chunked:
            self._writer.write(b"%x\r\n%s\r\n" % (len(body), body) if body else b"")
            self._writer.write(b"" if message.get("more_body") else b"0\r\n\r\n")
        else:
            self._writer.write(body)
        await self._writer.drain()


class Server:
    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.running = 0

    async def run(self, app: Application, port: int) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.ending.set)
        started = asyncio.Event()

        async def receive() -> Message:
            return {"type": "lifespan.startup"}

        async def send(message: Message) -> None:
            started.set()

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await Connection(app, self, reader, writer).serve()

        lifespan = asyncio.ensure_future(app({"type": "lifespan"}, receive, send))
        await started.wait()
        server = await asyncio.start_server(connect, "127.0.0.1", port, backlog=2048)
        await self.ending.wait()
        server.close()
        while self.running:
            await asyncio.sleep(0.01)
        lifespan.cancel()


def main() -> None:
    app: Application = application
    for place, argument in enumerate(sys.argv):
        if argument == "--middleware":
            module, _, name = sys.argv[place + 1].rpartition(".")
            app = getattr(import_module(module), name)(app)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    asyncio.run(Server().run(app, port))


if __name__ == "__main__":
    main()
    os._exit(0)
