"""Readiness and draining in vLLM's server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from peagle_serve.counters import Message, call
from peagle_serve.lifecycle import STARTED_AFTER, LifecycleMiddleware, always_drafts

SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"
CONFIG = '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 5}'


class Server:
    """A fake of vLLM's application that counts ``drafts`` for each generating request."""

    def __init__(self, drafts: int = 1, status: int = 200) -> None:
        self.drafts, self.status = drafts, status
        self.counted = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.paths: list[str] = []
        self.scopes: list[Message] = []

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await asyncio.Event().wait()
        self.paths.append(scope["path"])
        self.scopes.append(scope)
        body = b""
        if scope["path"] == "/invocations":
            assert json.loads((await receive())["body"])["max_tokens"] > 5
            self.counted += self.drafts
        if scope["path"] == "/metrics":
            body = b"vllm:spec_decode_num_drafts_total %d\n" % self.counted
        if scope["path"] == "/slow":
            await self.answers.wait()
        status = self.status if scope["path"] == "/invocations" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})


class World:
    """The middleware around a server, with a supervisor at the other end of the socket."""

    def __init__(self, server: Server, other: socket.socket) -> None:
        self.server, self.other = server, other
        self.middleware = LifecycleMiddleware(server)

    async def begin(self) -> None:
        """The server starts up."""

        async def receive() -> Message:
            return {"type": "lifespan.startup"}

        async def send(message: Message) -> None:
            assert message["type"] == "lifespan.startup.complete"

        self.life = asyncio.create_task(self.middleware({"type": "lifespan"}, receive, send))
        await self.wait()

    async def wait(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0.01)

    async def ask(self, path: str) -> int:
        status, _ = await call(self.middleware, {"type": "http"}, "GET", path)
        return status

    def received(self) -> list[str]:
        try:
            return self.other.recv(1000).decode().splitlines()
        except BlockingIOError:
            return []

    def send(self, word: str) -> None:
        self.other.send(word.encode() + b"\n")


def close(middleware: LifecycleMiddleware) -> None:
    """Close the socket, which a server keeps open."""
    its_end = middleware._supervisor._socket
    assert its_end is not None
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop().remove_reader(its_end)
    its_end.close()


Play = Callable[[Callable[[World], Awaitable[None]], Server], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Run a scene in a new world."""
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    monkeypatch.setenv("PEAGLE_SUPERVISOR_SOCKET", str(theirs.detach()))
    monkeypatch.setenv(SPECULATION, CONFIG)

    def run(scene: Callable[[World], Awaitable[None]], server: Server) -> None:
        async def run_scene() -> None:
            world = World(server, mine)
            try:
                await scene(world)
            finally:
                world.life.cancel()
                close(world.middleware)

        asyncio.run(run_scene())

    yield run
    mine.close()


@pytest.mark.thorough
def test_it_is_ready_when_a_draft_is_counted(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        assert world.received() == ["hello", "healthy"]
        assert await world.ask("/ping") == 200

    play(scene, Server())


@pytest.mark.thorough
def test_without_a_draft_it_is_not_ready(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle_serve.lifecycle._COUNTING_SECONDS", 0.02)

    async def scene(world: World) -> None:
        await world.begin()
        _hello, failed = world.received()
        assert failed.startswith(
            "failed speculation is configured, and 16 tokens were generated without"
        )
        assert await world.ask("/ping") == 503
        assert await world.ask("/health") == 503

    play(scene, Server(drafts=0))


@pytest.mark.thorough
def test_an_engine_that_fails_its_first_request_is_not_ready(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        assert "failed the engine responded to its first request with 500" in world.received()[1]
        assert await world.ask("/ping") == 503

    play(scene, Server(status=500))


@pytest.mark.thorough
def test_a_model_that_accepts_no_prompt_is_ready(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        assert await world.ask("/ping") == 200

    play(scene, Server(drafts=0, status=400))


@pytest.mark.thorough
def test_without_speculation_no_request_is_sent(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SPECULATION)

    async def scene(world: World) -> None:
        await world.begin()
        assert world.received() == ["hello", "healthy"]
        assert world.server.paths == []
        assert await world.ask("/ping") == 200

    play(scene, Server(drafts=0))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({SPECULATION: "{"}, False),
        ({SPECULATION: CONFIG}, True),
        ({SPECULATION: '{"model": "a/b", "num_speculative_tokens": 1}'}, True),
        ({SPECULATION: '{"method": "mtp"}'}, True),
        ({SPECULATION: '{"method": "ngram", "num_speculative_tokens": 5}'}, False),
        ({SPECULATION: '{"method": "suffix"}'}, False),
        ({SPECULATION: '{"model": "a/b", "num_speculative_tokens_per_batch_size": []}'}, False),
    ],
)
def test_only_methods_that_always_draft_are_proved(
    environment: dict[str, str], expected: bool
) -> None:
    assert always_drafts(environment) is expected


@pytest.mark.thorough
@pytest.mark.parametrize("drafts", [0, 1])
def test_requests_carry_the_time_to_healthy(
    play: Play, monkeypatch: pytest.MonkeyPatch, drafts: int
) -> None:
    monkeypatch.setattr("peagle_serve.lifecycle._COUNTING_SECONDS", 0.02)
    monkeypatch.setenv("PEAGLE_ENGINE_STARTED", str(time.monotonic() - 47))

    async def scene(world: World) -> None:
        await world.begin()
        await world.ask("/v1/models")
        scope = world.server.scopes[-1]
        if drafts:
            assert 47 <= scope[STARTED_AFTER] < 57
        else:
            assert STARTED_AFTER not in scope

    play(scene, Server(drafts=drafts))


@pytest.mark.thorough
def test_draining_finishes_requests_and_refuses_new_ones(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.received()
        world.server.answers.clear()
        running = asyncio.create_task(world.ask("/slow"))
        await world.wait()

        world.send("drain")
        await world.wait()

        assert await world.ask("/invocations") == 503
        assert await world.ask("/ping") == 503
        assert await world.ask("/metrics") == 200
        assert world.received() == [], "something still runs"
        world.server.answers.set()
        assert await running == 200
        assert world.received() == ["idle"]

    play(scene, Server())


@pytest.mark.thorough
def test_without_requests_it_is_idle_at_once(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.received()
        world.send("drain")
        await world.wait()
        assert world.received() == ["idle"]

    play(scene, Server())


@pytest.mark.thorough
def test_a_disconnected_client_does_not_delay_idle(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.received()
        world.server.answers.clear()
        running = asyncio.create_task(world.ask("/slow"))
        await world.wait()
        world.send("drain")
        await world.wait()
        running.cancel()
        await world.wait()
        assert world.received() == ["idle"]

    play(scene, Server())


@pytest.mark.thorough
def test_the_server_ends_with_its_supervisor(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))

    async def scene(world: World) -> None:
        await world.begin()
        world.other.close()
        await world.wait()
        assert sent == [(os.getpid(), signal.SIGTERM)]

    play(scene, Server())


@pytest.mark.thorough
def test_it_serves_without_a_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEAGLE_SUPERVISOR_SOCKET", raising=False)
    monkeypatch.delenv(SPECULATION, raising=False)

    async def scene() -> None:
        world = World(Server(), socket.socket())
        await world.begin()
        assert await world.ask("/ping") == 200
        world.life.cancel()
        world.other.close()

    asyncio.run(scene())


def test_websockets_are_forwarded_unchanged(play: Play) -> None:
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.append(given)

    async def receive() -> Message:
        return {}

    async def send(message: Message) -> None:
        return None

    scope = {"type": "websocket", "path": "/v1/realtime"}
    middleware = LifecycleMiddleware(app)
    asyncio.run(middleware(scope, receive, send))

    assert seen == [(scope, receive, send)]
    close(middleware)
