"""Readiness and draining, inside vLLM's server.

vLLM loads ``LifecycleMiddleware`` by ``--middleware``. It exchanges the messages of ``engine`` with
the supervisor over an inherited socket, and ends the server when the supervisor has ended.

``/ping`` returns 200 when the engine answers and, with speculation, the drafter has drafted: a
configured drafter may not be loaded. So the server sends itself one request and waits until its
drafts are counted; this also warms the kernels for the first user. While draining, new requests get
503.
Requests carry the engine's time to healthy, in seconds, as ``STARTED_AFTER`` in their scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping

from peagle_serve.contract import K_SCHEDULE
from peagle_serve.counters import Application, Message, Receive, Send, answer, call, sum_counters
from peagle_serve.engine import (
    DRAIN,
    FAILED,
    HEALTHY,
    HELLO,
    IDLE,
    SOCKET_VARIABLE,
    STARTED_VARIABLE,
)
from peagle_serve.environment import read_speculative_config

TOKENS = 16
_COUNTING_SECONDS = 5.0
"""vLLM counts a step shortly after its response."""
_POLL_SECONDS = 0.05
_BODY = json.dumps(
    {"prompt": "Hello", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
).encode()
_MAY_NOT_DRAFT = ("ngram", "ngram_gpu", "suffix", "custom_class")
"""Methods that propose from the text so far, and may have nothing to propose."""


def always_drafts(environment: Mapping[str, str]) -> bool:
    """Whether a drafter is configured that always drafts; ``checks`` keeps its counters on."""
    try:
        config = read_speculative_config(environment)
    except ValueError:
        return False
    # A schedule of K may contain 0 for a single request.
    return bool(config) and config.get("method") not in _MAY_NOT_DRAFT and K_SCHEDULE not in config


async def prove(app: Application, scope: Message) -> str:
    """Why the drafter does not draft; "" when it has drafted, or the model accepts no prompt."""
    status, answer = await call(app, scope, "POST", "/invocations", _BODY)
    if status >= 500:
        return f"the engine responded to its first request with {status}: {answer[:200]}"
    if status != 200:
        return ""
    clock = asyncio.get_running_loop().time
    until = clock() + _COUNTING_SECONDS
    while clock() < until:
        status, page = await call(app, scope, "GET", "/metrics")
        if status != 200 or sum_counters(page)["drafts"] > 0:
            return ""
        await asyncio.sleep(_POLL_SECONDS)
    return f"speculation is configured, and {TOKENS} tokens were generated without a draft"


STARTED_AFTER = "peagle.started_after"
HEALTH_PATHS = ("/ping", "/health")
_ALWAYS_ANSWERED = ("/metrics",)


class LifecycleMiddleware:
    """The outermost ASGI application around vLLM's."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._supervisor = _SupervisorSocket(os.environ.get(SOCKET_VARIABLE))
        self._began = float(os.environ.get(STARTED_VARIABLE) or time.monotonic())
        self._proved = asyncio.Event()
        self._started_after = 0.0
        self._draining = False
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] in _ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
        elif self._draining:
            await _refuse(send, "the container is shutting down")
        elif scope["path"] in HEALTH_PATHS and not self._proved.is_set():
            await _refuse(send, "the engine has not produced any drafts yet")
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward a request, and count it as running until its last byte."""
        if self._proved.is_set():
            scope[STARTED_AFTER] = self._started_after
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
            self._report_if_idle()

    async def _lifespan(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward the server's lifespan, and start the proof after its start-up."""
        self._supervisor.listen(self._receive)

        async def watch(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                task = asyncio.create_task(self._prove(scope))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        await self._app(scope, receive, watch)

    async def _prove(self, scope: Message) -> None:
        reason = await prove(self._app, scope) if always_drafts(os.environ) else ""
        if reason:
            self._supervisor.send(f"{FAILED} {reason}")
            return
        self._started_after = time.monotonic() - self._began
        self._proved.set()
        self._supervisor.send(HEALTHY)

    def _receive(self, message: str) -> None:
        if message == DRAIN:
            self._draining = True
            self._report_if_idle()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def _report_if_idle(self) -> None:
        if self._draining and self._running == 0:
            self._supervisor.send(IDLE)


class _SupervisorSocket:
    """The supervisor's end of the socket; without a supervisor, messages are dropped."""

    def __init__(self, descriptor: str | None) -> None:
        self._socket = socket.socket(fileno=int(descriptor)) if descriptor else None

    def listen(self, receive: Callable[[str], object]) -> None:
        """Say hello, and call ``receive`` with each message; with "" at the end."""
        if self._socket is None:
            return
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._read, receive)
        self.send(HELLO)

    def send(self, message: str) -> None:
        """Send a line, unless the other side has gone."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(" ".join(message.split()).encode() + b"\n")

    def _read(self, receive: Callable[[str], object]) -> None:
        assert self._socket is not None
        try:
            received = self._socket.recv(4096).decode("ascii", errors="replace")
        except BlockingIOError:
            return
        except OSError:
            received = ""
        if not received:
            asyncio.get_running_loop().remove_reader(self._socket)
            receive("")
        for message in received.split():
            receive(message)


async def _refuse(send: Send, reason: str) -> None:
    error = {"message": reason, "type": "unavailable", "code": 503}
    await answer(send, 503, {"error": error}, (b"retry-after", b"1"), (b"connection", b"close"))
