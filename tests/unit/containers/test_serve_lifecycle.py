"""In vLLM's server: ready when it has drafted, draining when told, and nothing is cut off."""

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
    """vLLM's application: it answers, and counts ``drafts`` for each request it generates for."""

    def __init__(self, drafts: int = 1, status: int = 200) -> None:
        self.drafts, self.status = drafts, status
        self.counted = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked: list[str] = []
        self.scopes: list[Message] = []

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await asyncio.Event().wait()
        self.asked.append(scope["path"])
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
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0.01)

    async def ask(self, path: str) -> int:
        status, _ = await call(self.middleware, {"type": "http"}, "GET", path)
        return status

    def heard(self) -> list[str]:
        try:
            return self.other.recv(1000).decode().splitlines()
        except BlockingIOError:
            return []

    def say(self, word: str) -> None:
        self.other.send(word.encode() + b"\n")


def close(middleware: LifecycleMiddleware) -> None:
    """Let go of the socket, which a server keeps to its end."""
    its_end = middleware._supervisor._socket
    assert its_end is not None
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop().remove_reader(its_end)
    its_end.close()


Play = Callable[[Callable[[World], Awaitable[None]], Server], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Play a scene in a world of its own."""
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    monkeypatch.setenv("PEAGLE_SUPERVISOR_SOCKET", str(theirs.detach()))
    monkeypatch.setenv(SPECULATION, CONFIG)

    def run(scene: Callable[[World], Awaitable[None]], server: Server) -> None:
        async def whole() -> None:
            world = World(server, mine)
            try:
                await scene(world)
            finally:
                world.life.cancel()
                close(world.middleware)

        asyncio.run(whole())

    yield run
    mine.close()


def test_it_is_ready_when_a_draft_was_counted(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        assert world.heard() == ["hello", "healthy"]
        assert await world.ask("/ping") == 200

    play(scene, Server())


def test_without_a_draft_it_is_not_ready_and_says_why(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle_serve.lifecycle._COUNTING_SECONDS", 0.02)

    async def scene(world: World) -> None:
        await world.begin()
        _hello, failed = world.heard()
        assert failed.startswith(
            "failed speculation is configured, and 16 tokens were generated without"
        )
        assert await world.ask("/ping") == 503
        assert await world.ask("/health") == 503

    play(scene, Server(drafts=0))


def test_an_engine_that_cannot_answer_its_first_request_is_not_ready(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        assert "failed the engine answered its first request with 500" in world.heard()[1]
        assert await world.ask("/ping") == 503

    play(scene, Server(status=500))


def test_a_model_that_takes_no_prompt_is_left_to_vllms_own_word(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        assert await world.ask("/ping") == 200

    play(scene, Server(drafts=0, status=400))


def test_without_speculation_nothing_is_asked(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPECULATION)

    async def scene(world: World) -> None:
        await world.begin()
        assert world.heard() == ["hello", "healthy"]
        assert world.server.asked == []
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
def test_drafts_are_awaited_where_they_must_come(
    environment: dict[str, str], expected: bool
) -> None:
    assert always_drafts(environment) is expected


@pytest.mark.parametrize("drafts", [0, 1])
def test_a_healthy_engine_tells_other_middleware_how_long_it_took(
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


def test_draining_ends_what_runs_and_refuses_what_is_new(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.heard()
        world.server.answers.clear()
        running = asyncio.create_task(world.ask("/slow"))
        await world.settle()

        world.say("drain")
        await world.settle()

        assert await world.ask("/invocations") == 503
        assert await world.ask("/ping") == 503
        assert await world.ask("/metrics") == 200
        assert world.heard() == [], "something still runs"
        world.server.answers.set()
        assert await running == 200
        assert world.heard() == ["idle"]

    play(scene, Server())


def test_where_nothing_runs_it_is_idle_at_once(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.heard()
        world.say("drain")
        await world.settle()
        assert world.heard() == ["idle"]

    play(scene, Server())


def test_a_client_that_goes_away_is_no_longer_waited_for(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.heard()
        world.server.answers.clear()
        running = asyncio.create_task(world.ask("/slow"))
        await world.settle()
        world.say("drain")
        await world.settle()
        running.cancel()
        await world.settle()
        assert world.heard() == ["idle"]

    play(scene, Server())


def test_when_the_supervisor_has_gone_the_server_ends_too(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))

    async def scene(world: World) -> None:
        await world.begin()
        world.other.close()
        await world.settle()
        assert sent == [(os.getpid(), signal.SIGTERM)]

    play(scene, Server())


def test_without_a_supervisor_it_serves_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEAGLE_SUPERVISOR_SOCKET", raising=False)
    monkeypatch.delenv(SPECULATION, raising=False)

    async def scene() -> None:
        world = World(Server(), socket.socket())
        await world.begin()
        assert await world.ask("/ping") == 200
        world.life.cancel()
        world.other.close()

    asyncio.run(scene())


def test_websockets_go_on_untouched(play: Play) -> None:
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
