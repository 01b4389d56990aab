"""What the container adds to vLLM's server: readiness, draining, counters and warm starts.

vLLM loads ``Middleware`` by ``--middleware``. It exchanges messages with the supervisor over an
inherited socket, and ends the server when the supervisor has ended.

``/ping`` returns 200 when the engine answers and, with speculation, the drafter has drafted: a
configured drafter may not be loaded. So the server sends itself one request and waits until its
drafts are counted; this also warms the kernels for the first user. While draining, new requests get
503.

On ``/invocations``, these values of the header ``X-Amzn-SageMaker-Custom-Attributes`` are answered
here and never reach vLLM; all other requests pass without buffering:

    peagle=counters                vLLM's speculation counters, from its /metrics
    peagle=warm, {}                the manifest of the compile caches; the first request packs them
    peagle=warm, {"offset": 0, "length": n}    n bytes of the archive, at most 4 MiB

Errors are objects with ``error``; of warm starts 403 without ``PEAGLE_WARM=collect``, 503 before
the engine is healthy, 409 if nothing was compiled, 400 for another body, 500 if the archive cannot
be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from peagle_serve.contract import (
    ATTRIBUTES_HEADER,
    CACHE_VARIABLE,
    COLLECT,
    COLLECT_FOLDER_VARIABLE,
    COUNTERS_ATTRIBUTE,
    DRAIN,
    FAILED,
    HEALTHY,
    HELLO,
    IDLE,
    K_SCHEDULE,
    LARGEST_PART,
    SOCKET_VARIABLE,
    STARTED_VARIABLE,
    SUBJECT_VARIABLE,
    WARM_ATTRIBUTE,
    WARM_MODE_VARIABLE,
)
from peagle_serve.environment import normalized, read_speculative_config
from peagle_serve.json_reader import InvalidJson, read

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_TOKENS = 16
_COUNTING_SECONDS = 5.0
"""vLLM counts a step shortly after its response."""
_POLL_SECONDS = 0.05
_BODY = json.dumps(
    {"prompt": "Hello", "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True}
).encode()
_MAY_NOT_DRAFT = ("ngram", "ngram_gpu", "suffix", "custom_class")
"""Methods that propose from the text so far, and may have nothing to propose."""
_LONGEST_BODY = 4096


class _BadStatus(Exception):
    """A response other than 200."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


class Middleware:
    """An ASGI application around vLLM's."""

    def __init__(self, app: Application) -> None:
        descriptor = os.environ.get(SOCKET_VARIABLE)
        self._app = app
        self._supervisor = socket.socket(fileno=int(descriptor)) if descriptor else None
        self._began = float(os.environ.get(STARTED_VARIABLE) or time.monotonic())
        self._healthy = asyncio.Event()
        self._seconds_cold = 0.0
        """From the engine's start to healthy."""
        self._draining = False
        self._running = 0
        self._proof: asyncio.Task[None] | None = None
        self._packing: asyncio.Task[dict[str, Any]] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            if self._supervisor is not None:
                self._supervisor.setblocking(False)
                asyncio.get_running_loop().add_reader(self._supervisor, self._read_messages)
                self._tell(HELLO)

            async def watch(message: Message) -> None:
                await send(message)
                if message["type"] == "lifespan.startup.complete":
                    self._proof = asyncio.create_task(self._prove(scope))

            await self._app(scope, receive, watch)
        elif scope["type"] != "http" or scope["path"] == "/metrics":
            await self._app(scope, receive, send)
        elif self._draining:
            await _refuse(send, "the container is shutting down")
        elif scope["path"] in ("/ping", "/health") and not self._healthy.is_set():
            await _refuse(send, "the engine has not produced any drafts yet")
        else:
            self._running += 1  # until its last byte
            try:
                await self._respond(scope, receive, send)
            finally:
                self._running -= 1
                self._tell_if_idle()

    async def _respond(self, scope: Message, receive: Receive, send: Send) -> None:
        header = ATTRIBUTES_HEADER.lower().encode()
        values: list[str] = []
        if scope["path"] == "/invocations":
            sent = (value for name, value in scope["headers"] if name.lower() == header)
            values = [value.decode("ascii", "replace").strip() for value in sent]
        if COUNTERS_ATTRIBUTE in values:
            status, page = await call(self._app, scope, "GET", "/metrics")
            if status == 200:
                await _answer(send, 200, sum_counters(page))
            else:
                await _answer(send, 502, {"error": f"the engine's /metrics returned {status}"})
        elif WARM_ATTRIBUTE in values:
            try:
                await _answer(send, 200, await self._warm_start(receive))
            except _BadStatus as refusal:
                await _answer(send, refusal.status, {"error": str(refusal)})
        else:
            await self._app(scope, receive, send)

    async def _prove(self, scope: Message) -> None:
        if always_drafts(os.environ) and (reason := await _why_no_drafts(self._app, scope)):
            self._tell(f"{FAILED} {reason}")
            return
        self._seconds_cold = time.monotonic() - self._began
        self._healthy.set()
        self._tell(HEALTHY)

    def _tell(self, message: str) -> None:
        """Send a line to the supervisor, if there is one and it has not gone."""
        if self._supervisor is not None:
            with contextlib.suppress(OSError):
                self._supervisor.send(" ".join(message.split()).encode() + b"\n")

    def _tell_if_idle(self) -> None:
        if self._draining and self._running == 0:
            self._tell(IDLE)

    def _read_messages(self) -> None:
        """Drain when the supervisor asks for it, and end the server when it has ended."""
        assert self._supervisor is not None
        try:
            received = self._supervisor.recv(4096).decode("ascii", errors="replace")
        except BlockingIOError:
            return
        except OSError:
            received = ""
        if DRAIN in received.split():
            self._draining = True
            self._tell_if_idle()
        if not received:
            asyncio.get_running_loop().remove_reader(self._supervisor)
            os.kill(os.getpid(), signal.SIGTERM)

    async def _warm_start(self, receive: Receive) -> dict[str, Any] | bytes:
        """The manifest, or a part of the archive. Packs once for all requests, also if a client
        disconnects. Raises _BadStatus."""
        if SUBJECT_VARIABLE not in os.environ:
            start = f"start it with {WARM_MODE_VARIABLE}={COLLECT}"
            raise _BadStatus(403, f"this container does not collect: {start}")
        if not self._healthy.is_set():
            raise _BadStatus(503, "the engine is not healthy yet")
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False) and len(body) <= _LONGEST_BODY
        try:
            part = read(body or b"{}", "the body", limit=_LONGEST_BODY)
            offset, length = (part["offset"], part["length"]) if part != {} else (0, 1)
            is_range = type(offset) is int and type(length) is int and len(part) in (0, 2)
        except (InvalidJson, LookupError, TypeError):
            offset = length = is_range = False
        if not (is_range and offset >= 0 and 1 <= length <= LARGEST_PART):
            raise _BadStatus(
                400, f'the body is neither {{}} nor an "offset" and a "length" up to {LARGEST_PART}'
            )
        if self._packing is None:
            self._packing = asyncio.create_task(asyncio.to_thread(_pack, self._seconds_cold))
        try:
            manifest = await asyncio.shield(self._packing)
        except _BadStatus:
            self._packing = None  # the next request tries again
            raise
        if part == {}:
            return manifest
        if offset > manifest["size"]:
            raise _BadStatus(400, f"the archive has {manifest['size']} bytes")

        def read_archive() -> bytes:
            from peagle_serve.warm import locate_archive

            with locate_archive(Path(os.environ[COLLECT_FOLDER_VARIABLE])).open("rb") as file:
                file.seek(offset)
                return file.read(length)

        return await asyncio.to_thread(read_archive)


def always_drafts(environment: Mapping[str, str]) -> bool:
    """Whether a drafter is configured that always drafts; ``checks`` keeps its counters on."""
    try:
        config = read_speculative_config(normalized(environment))
    except ValueError:
        return False
    # A schedule of K may contain 0 for a single request.
    return bool(config) and config.get("method") not in _MAY_NOT_DRAFT and K_SCHEDULE not in config


async def _why_no_drafts(app: Application, scope: Message) -> str:
    """Why the drafter does not draft; "" when it has drafted, or the model accepts no prompt."""
    status, text = await call(app, scope, "POST", "/invocations", _BODY)
    if status >= 500:
        return f"the engine responded to its first request with {status}: {text[:200]}"
    if status != 200:
        return ""
    until = time.monotonic() + _COUNTING_SECONDS
    while time.monotonic() < until:
        status, page = await call(app, scope, "GET", "/metrics")
        if status != 200 or sum_counters(page)["drafts"] > 0:
            return ""
        await asyncio.sleep(_POLL_SECONDS)
    return f"speculation is configured, and {_TOKENS} tokens were generated without a draft"


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

    request = {
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
            (b"content-length", b"%d" % len(body)),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": dict(scope.get("state", {})),
    }
    await app(request, receive, send)
    return status, page.decode("utf-8", errors="replace")


_SAMPLE = re.compile(
    r"^vllm:(?:spec_decode_num_(?P<name>drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)"
    r"|prefix_(?P<cache>cache_queries|cache_hits))_total(?:\{(?P<labels>.*)\})? (?P<value>\S+)",
    re.MULTILINE,
)
_POSITION = re.compile(r'(?:^|,)position="(\d{1,9})"')


def sum_counters(page: str) -> dict[str, Any]:
    """The counters in Prometheus text, summed over engines. Without speculation those of drafts are
    0 and ``speculation`` is false. ``cache_queries`` and ``cache_hits`` are tokens of prompts, and
    absent where the engine does not count them."""
    totals = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
    positions: dict[int, int] = {}
    cache: dict[str, int] = {}
    has_drafts = False
    for sample in _SAMPLE.finditer(page):
        name, count = sample["name"], _read_count(sample["value"])
        has_drafts |= name is not None
        if name is None:
            cache[sample["cache"]] = cache.get(sample["cache"], 0) + count
        elif name in totals:
            totals[name] += count
        elif position := _POSITION.search(sample["labels"] or ""):
            place = int(position[1])
            positions[place] = positions.get(place, 0) + count
    return {
        **cache,
        "speculation": has_drafts,
        **totals,
        "accepted_per_position": [positions[place] for place in sorted(positions)],
    }


def _read_count(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError):  # NaN and +Inf are values in this format
        return 0


async def _answer(
    send: Send, status: int, body: dict[str, Any] | bytes, *more: tuple[bytes, bytes]
) -> None:
    """Respond with a JSON document, or with bytes; ``more`` are headers."""
    kind = b"application/octet-stream" if isinstance(body, bytes) else b"application/json"
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _refuse(send: Send, reason: str) -> None:
    error = {"message": reason, "type": "unavailable", "code": 503}
    await _answer(send, 503, {"error": error}, (b"retry-after", b"1"), (b"connection", b"close"))


def _pack(seconds_cold: float) -> dict[str, Any]:
    """Pack the caches and create the manifest. Raises _BadStatus."""
    # Only collecting containers need these imports.
    from peagle_serve.logs import Redactor
    from peagle_serve.warm import Manifest, NothingCompiled, locate_archive, pack

    place = Path(os.environ[COLLECT_FOLDER_VARIABLE])
    try:
        packed = pack(place, locate_archive(place), Redactor(os.environ).secrets)
    except NothingCompiled as error:
        raise _BadStatus(409, str(error)) from None
    except OSError as error:
        fix = f"set {CACHE_VARIABLE} to a folder of a larger disk"
        raise _BadStatus(500, f"the archive: {error.strerror} ({fix})") from None
    manifest = Manifest(
        key=place.name,
        subject=read(os.environ[SUBJECT_VARIABLE], SUBJECT_VARIABLE),
        seconds_cold=round(seconds_cold, 1),
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **packed,
    )
    return manifest.document()
