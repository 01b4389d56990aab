"""Whether the drafter is loaded: it is when it has drafted.

vLLM's configuration, and the counters that it registers from it, say what was asked for. So the
server is asked once, by itself, for a few tokens, and must have counted a draft. This also warms
the kernels that the first user would have waited for.

Inside vLLM's server: is it ready, is it draining, and how many requests run.

vLLM loads the class by ``--middleware``. It speaks with the supervisor over an inherited socket, in
the words of ``words``. When the supervisor has ended this server ends too, since nobody is left to
look after it.

A request that goes on to other middleware carries how long the engine took to start, in seconds, as
``STARTED_AFTER`` in its scope, once the engine is healthy.

``/ping`` is green when the engine answers and, where speculation was asked for, the drafter has
drafted (see ``proof``): configured is not loaded. While draining everything new is answered 503.
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

from peagle_serve.contract import SPECULATION
from peagle_serve.counters import Application, Message, Receive, Send, call, counters_of
from peagle_serve.engine import (
    DRAIN,
    FAILED,
    HEALTHY,
    HELLO,
    IDLE,
    SOCKET_VARIABLE,
    STARTED_VARIABLE,
)
from peagle_serve.environment import members

TOKENS = 16
_PATIENCE_SECONDS = 5.0
"""vLLM counts a step just after it has answered."""
_POLL_SECONDS = 0.05
_BODY = json.dumps(
    {"prompt": "Hello", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
).encode()
_MAY_FIND_NOTHING = ("ngram", "ngram_gpu", "suffix", "custom_class")
"""Methods that propose from the text so far, which may hold nothing to propose."""
_SCHEDULE = "num_speculative_tokens_per_batch_size"
"""A schedule of K may say none for a single request."""


def asked_for(environment: Mapping[str, str]) -> bool:
    """Whether a drafter was asked for that always drafts. Its drafts are counted (``checks``)."""
    try:
        config = members(environment.get(SPECULATION, ""))
    except ValueError:
        return False
    method = config["method"].value if "method" in config else None
    return method not in _MAY_FIND_NOTHING and _SCHEDULE not in config


async def prove(app: Application, scope: Message) -> str:
    """Why the drafter cannot be loaded; "" when it has drafted, or when the model takes no prompt
    and nothing can be seen."""
    status, answer = await call(app, scope, "POST", "/invocations", _BODY)
    if status >= 500:
        return f"the engine answered its first request with {status}: {answer[:200]}"
    if status != 200:
        return ""
    clock = asyncio.get_running_loop().time
    until = clock() + _PATIENCE_SECONDS
    while clock() < until:
        status, page = await call(app, scope, "GET", "/metrics")
        if status != 200 or counters_of(page)["drafts"] > 0:
            return ""
        await asyncio.sleep(_POLL_SECONDS)
    return f"speculation was asked for, and {TOKENS} tokens came without a draft"


STARTED_AFTER = "peagle.started_after"
PATHS_OF_HEALTH = ("/ping", "/health")
_ALWAYS_ANSWERED = ("/metrics",)


class LifecycleMiddleware:
    """The outermost ASGI application around vLLM's."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._supervisor = _Supervisor(os.environ.get(SOCKET_VARIABLE))
        self._began = float(os.environ.get(STARTED_VARIABLE) or time.monotonic())
        self._proved = asyncio.Event()
        self._started_after = 0.0
        self._draining = False
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] in _ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
        elif self._draining:
            await _refuse(send, "this container is about to end")
        elif scope["path"] in PATHS_OF_HEALTH and not self._proved.is_set():
            await _refuse(send, "the engine has not shown yet that it drafts")
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, and remember until the last byte that somebody waits."""
        if self._proved.is_set():
            scope[STARTED_AFTER] = self._started_after
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
            self._tell_if_idle()

    async def _live(self, scope: Message, receive: Receive, send: Send) -> None:
        """The server's own life: begin to prove when it has started up."""
        self._supervisor.listen(self._hear)

        async def notice(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                task = asyncio.create_task(self._prove(scope))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        await self._app(scope, receive, notice)

    async def _prove(self, scope: Message) -> None:
        reason = await prove(self._app, scope) if asked_for(os.environ) else ""
        if reason:
            self._supervisor.tell(f"{FAILED} {reason}")
            return
        self._started_after = time.monotonic() - self._began
        self._proved.set()
        self._supervisor.tell(HEALTHY)

    def _hear(self, word: str) -> None:
        if word == DRAIN:
            self._draining = True
            self._tell_if_idle()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def _tell_if_idle(self) -> None:
        if self._draining and self._running == 0:
            self._supervisor.tell(IDLE)


class _Supervisor:
    """The other end of the socket; nobody, where the server was started without a supervisor."""

    def __init__(self, descriptor: str | None) -> None:
        self._socket = socket.socket(fileno=int(descriptor)) if descriptor else None

    def listen(self, hear: Callable[[str], object]) -> None:
        """Greet, and call ``hear`` with each word that comes; with "" when the other side ended."""
        if self._socket is None:
            return
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._read, hear)
        self.tell(HELLO)

    def tell(self, words: str) -> None:
        """Send a line; nobody minds when the other side has gone."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(" ".join(words.split()).encode() + b"\n")

    def _read(self, hear: Callable[[str], object]) -> None:
        assert self._socket is not None
        try:
            heard = self._socket.recv(4096).decode("ascii", errors="replace")
        except BlockingIOError:
            return
        except OSError:
            heard = ""
        if not heard:
            asyncio.get_running_loop().remove_reader(self._socket)
            hear("")
        for word in heard.split():
            hear(word)


async def _refuse(send: Send, reason: str) -> None:
    """Answer 503, and end the connection."""
    body = json.dumps({"error": {"message": reason, "type": "unavailable", "code": 503}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"1"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
