"""A server of known timings with OpenAI's streams, to check the load generator.

It answers each request after a fixed time, then sends outputs at a fixed interval, and records when
it really sent them.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from peagle.errors import EngineError
from peagle.protocol import parse_response

_LARGEST = 8 << 20
_MOST_TOKENS = 1 << 16
_ENDS = (
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    asyncio.CancelledError,
    ConnectionError,
)
"""How a connection ends."""
_HEAD = (
    b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)


@dataclass(frozen=True)
class SimulatedTiming:
    """Seconds to the first output and between outputs, and tokens of each output.

    ``fails_after``: from this request on, the server answers with an error (``fails_with``), or
    closes the connection in the middle of the answer (0). ``streams``: else one whole answer.
    ``accepts_ignore_eos``: else such a request is rejected. ``metrics`` is its ``/metrics`` page.
    """

    ttft: float = 0.2
    itl: float = 0.02
    tokens_per_output: int = 2
    fails_after: int | None = None
    fails_with: int = 500
    streams: bool = True
    accepts_ignore_eos: bool = True
    metrics: str = ""


@dataclass
class SimulatedServer:
    """A running server: its base URL, and by request the seconds to its first output and between
    its outputs, as sent. ``keys`` are the headers of authorization that it has seen."""

    timing: SimulatedTiming
    base_url: str = ""
    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    requests: int = 0
    keys: set[str] = field(default_factory=set)


@contextmanager
def simulated_server(timing: SimulatedTiming) -> Iterator[SimulatedServer]:
    """Run the server on a free port of this machine, in a thread of its own."""
    server = SimulatedServer(timing)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        listening = await asyncio.start_server(
            lambda reader, writer: _converse(server, reader, writer), "127.0.0.1", 0, limit=_LARGEST
        )
        server.base_url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await stop.wait()
        listening.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(5)
        _close(loop)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


async def _converse(
    server: SimulatedServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection, one after another."""
    with suppress(*_ENDS):
        while True:
            path, key, body = await _request(reader)
            server.keys |= {key} if key else set()
            if path.endswith("/models"):
                await _whole(writer, 200, {"object": "list", "data": [{"id": "simulated"}]})
            elif path == "/metrics" and server.timing.metrics:
                await _whole(writer, 200, server.timing.metrics)
            elif body is None:
                await _whole(writer, 404, {"error": {"message": f"no {path}", "code": 404}})
            elif not await _answer(server, writer, body):
                break
    with suppress(ConnectionError, asyncio.CancelledError):
        writer.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, Any] | None]:
    """Path, authorization and JSON body of the next request; the body is ``None`` without one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    start, *lines = head.split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    length = headers.get("content-length", "0")
    content = await reader.readexactly(min(int(length), _LARGEST) if length.isdecimal() else 0)
    path, key = start.split(" ")[1] if " " in start else "", headers.get("authorization", "")
    try:
        return path, key, parse_response(content) if content else None
    except EngineError:
        return path, key, None


async def _answer(
    server: SimulatedServer, writer: asyncio.StreamWriter, body: dict[str, Any]
) -> bool:
    """Stream one answer; whether the connection stays open."""
    received = time.perf_counter()
    timing = server.timing
    if not timing.accepts_ignore_eos and "ignore_eos" in body:
        await _whole(writer, 400, {"error": {"message": "ignore_eos is unknown"}})
        return True
    server.requests += 1
    fails = timing.fails_after is not None and server.requests > timing.fails_after
    if fails and timing.fails_with:
        error = {"message": "EngineCore died", "type": "InternalServerError"}
        await _whole(writer, timing.fails_with, {"error": error})
        return True
    asked = body.get("max_tokens")
    tokens = asked if type(asked) is int and 0 < asked <= _MOST_TOKENS else 16
    usage = {"prompt_tokens": _words(body), "completion_tokens": tokens}
    usage["total_tokens"] = sum(usage.values())
    if not timing.streams:
        choice = {"index": 0, "message": {"role": "assistant", "content": "word"}, "text": "word"}
        await _whole(
            writer, 200, {"object": "chat.completion", "choices": [choice], "usage": usage}
        )
        return True
    outputs = -(-tokens // timing.tokens_per_output)
    last = 0.0
    writer.write(_HEAD % (200, b"OK", b"text/event-stream"))
    for number in range(outputs):
        due = received + timing.ttft + number * timing.itl
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if fails and number == outputs // 2:
            return False
        _event(writer, {"choices": [{"index": 0, "delta": {"content": "word "}, "text": "word "}]})
        await writer.drain()
        now = time.perf_counter()
        if number:
            server.gaps.append(now - last)
        else:
            server.ttft.append(now - received)
        last = now
    _event(writer, {"choices": [], "usage": usage})
    _chunk(writer, b"data: [DONE]\n\n")
    _chunk(writer, b"")
    await writer.drain()
    return True


def _words(body: dict[str, Any]) -> int:
    """The words of a prompt count as its tokens, the template as 4."""
    messages = body.get("messages")
    texts = [body.get("prompt") or ""]
    if isinstance(messages, list):
        texts += [one.get("content") for one in messages if isinstance(one, dict)]
    return len(" ".join(map(str, texts)).split()) + 4


def _event(writer: asyncio.StreamWriter, document: dict[str, Any]) -> None:
    common = {"id": "simulated", "object": "chat.completion.chunk", "created": 0}
    document = {**common, "model": "simulated", **document}
    _chunk(writer, f"data: {json.dumps(document)}\n\n".encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def _whole(writer: asyncio.StreamWriter, status: int, content: dict[str, Any] | str) -> None:
    """Send a JSON document, or a text."""
    kind = b"text/plain" if isinstance(content, str) else b"application/json"
    text = content if isinstance(content, str) else json.dumps(content)
    writer.write(_HEAD % (status, b"OK" if status == 200 else b"Error", kind))
    _chunk(writer, text.encode())
    _chunk(writer, b"")
    await writer.drain()
