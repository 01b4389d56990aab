"""Readiness, draining, counters and compile caches in vLLM's server."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.protocol import parse_counters
from peagle_serve import warm
from peagle_serve.contract import (
    ATTRIBUTES_HEADER,
    COLLECT_FOLDER_VARIABLE,
    COUNTERS_ATTRIBUTE,
    FAILED,
    HEALTHY,
    LARGEST_PART,
    SUBJECT_VARIABLE,
    WARM_ATTRIBUTE,
)
from peagle_serve.middleware import Message, Middleware, always_drafts, call, sum_counters
from peagle_serve.warm import canonical, compute_key, parse_manifest
from tests.unit.containers.artifacts import SUBJECT, filled

SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"
CONFIG = '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 5}'
HEADER = ATTRIBUTES_HEADER.lower().encode()
COUNTERS, WARM = COUNTERS_ATTRIBUTE.encode(), WARM_ATTRIBUTE.encode()
PAGE = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a \\"b\\" {c}"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a"} 2.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="a"} 1.79e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="a"} 1.2e+02
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="position=\\"9\\""} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="10"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="2"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="a",position="2"} 2.0
vllm:num_requests_running{engine="0"} 3.0
"""


class Server:
    """A fake of vLLM's application that counts ``drafts`` for each generating request."""

    def __init__(self, drafts: int = 1, status: int = 200, metrics: int = 200) -> None:
        self.drafts, self.status, self.metrics = drafts, status, metrics
        self.counted = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.calls: list[tuple[Message, Any, Any]] = []

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await asyncio.Event().wait()
        self.calls.append((scope, receive, send))
        status, body = 200, b""
        if scope["path"] == "/invocations":
            status = self.status
            assert json.loads((await receive())["body"])["max_tokens"] > 5
            self.counted += self.drafts
        if scope["path"] == "/metrics":
            status, body = self.metrics, b"vllm:spec_decode_num_drafts_total %d\n" % self.counted
        if scope["path"] == "/slow":
            await self.answers.wait()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body[:5]})
        await send({"type": "http.response.body", "body": body[5:]})


class World:
    """The middleware around a server, with a supervisor at the other end of the socket."""

    def __init__(self, server: Any, other: socket.socket) -> None:
        self.server, self.other = server, other
        self.middleware = Middleware(server)

    async def begin(self) -> list[str]:
        """The server starts up; what the supervisor then hears."""

        async def receive() -> Message:
            return {"type": "lifespan.startup"}

        async def send(message: Message) -> None:
            assert message["type"] == "lifespan.startup.complete"

        self.life = asyncio.create_task(self.middleware({"type": "lifespan"}, receive, send))
        heard: list[str] = []
        for _ in range(20):
            await asyncio.sleep(0.005)
            heard += self.received()
            if heard and heard[-1].startswith((HEALTHY, FAILED)):
                break
        return heard

    async def ask(self, path: str) -> int:
        status, _ = await call(self.middleware, {"type": "http"}, "GET", path)
        return status

    async def answer(self, attribute: bytes, body: bytes = b"", **more: Any) -> tuple[int, bytes]:
        """Status and body for a request with this attribute; status 0: there was no response."""
        sent: list[Message] = []
        parts = [body[:3], body[3:]]

        async def receive() -> Message:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json"), (HEADER, attribute)]
        scope = {"type": "http", "path": "/invocations", "headers": headers, **more}
        await self.middleware(scope, receive, send)
        start, *content = sent
        content_length = dict(start["headers"]).get(b"content-length")
        assert content_length in (None, b"%d" % len(content[0]["body"]))
        return start["status"], content[0]["body"]

    def received(self) -> list[str]:
        try:
            return self.other.recv(1000).decode().splitlines()
        except BlockingIOError:
            return []

    async def drain(self) -> None:
        self.other.send(b"drain\n")
        await asyncio.sleep(0.01)


Play = Callable[[Callable[[World], Awaitable[None]], Any], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Run a scene in a new world."""
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    monkeypatch.setenv("PEAGLE_SUPERVISOR_SOCKET", str(theirs.detach()))
    monkeypatch.setenv(SPECULATION, CONFIG)
    monkeypatch.setattr("peagle_serve.middleware._COUNTING_SECONDS", 0.02)

    def run(scene: Callable[[World], Awaitable[None]], server: Any) -> None:
        async def run_scene() -> None:
            world = World(server, mine)
            try:
                await scene(world)
            finally:
                world.life.cancel()
                engine_end = world.middleware._supervisor
                assert engine_end is not None
                with contextlib.suppress(RuntimeError):
                    asyncio.get_running_loop().remove_reader(engine_end)
                engine_end.close()

        asyncio.run(run_scene())

    yield run
    mine.close()


@pytest.mark.parametrize(("config", "server", "sent", "ping"), [
    (CONFIG, {}, "healthy", 200),
    (CONFIG, {"drafts": 0}, "failed speculation is configured, and 16 tokens were", 503),
    (CONFIG, {"status": 500}, "failed the engine responded to its first request with 500", 503),
    (CONFIG, {"drafts": 0, "status": 400}, "healthy", 200),  # it accepts no prompt
    (CONFIG, {"drafts": 0, "metrics": 404}, "healthy", 200),
    ("", {"drafts": 0}, "healthy", 200),
], ids=["drafts", "no drafts", "fails", "no prompts", "no metrics", "no speculation"])  # fmt: skip
def test_it_is_ready_when_a_drafter_has_drafted(
    play: Play, monkeypatch: pytest.MonkeyPatch, config: str, server: dict[str, int],
    sent: str, ping: int,
) -> None:  # fmt: skip
    if not config:
        monkeypatch.delenv(SPECULATION)

    async def scene(world: World) -> None:
        hello, state = await world.begin()
        assert (hello, state[: len(sent)]) == ("hello", sent)
        assert bool(world.server.calls) is bool(config), "only a drafter is asked"
        assert await world.ask("/ping") == await world.ask("/health") == ping

    play(scene, Server(**server))


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, False),
    ({SPECULATION: "{"}, False),
    ({SPECULATION: CONFIG}, True),
    ({SPECULATION.lower().replace("sm_vllm_", "SM_VLLM_"): CONFIG}, True),
    ({SPECULATION: '{"model": "a/b", "num_speculative_tokens": 1}'}, True),
    ({SPECULATION: '{"method": "mtp"}'}, True),
    ({SPECULATION: '{"method": "ngram", "num_speculative_tokens": 5}'}, False),
    ({SPECULATION: '{"method": "suffix"}'}, False),
    ({SPECULATION: '{"model": "a/b", "num_speculative_tokens_per_batch_size": []}'}, False),
])  # fmt: skip
def test_only_methods_that_always_draft_are_proved(
    environment: dict[str, str], expected: bool
) -> None:
    assert always_drafts(environment) is expected


def test_draining_finishes_requests_and_refuses_new_ones(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        world.server.answers.clear()
        running = asyncio.create_task(world.ask("/slow"))
        gone = asyncio.create_task(world.ask("/slow"))
        await asyncio.sleep(0.02)
        await world.drain()
        assert await world.ask("/invocations") == await world.ask("/ping") == 503
        assert await world.ask("/metrics") == 200
        gone.cancel()  # a disconnected client does not delay the end
        await asyncio.sleep(0.02)
        assert world.received() == [], "something still runs"
        world.server.answers.set()
        assert await running == 200
        assert world.received() == ["idle"]

    play(scene, Server())


def test_the_server_ends_with_its_supervisor(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))

    async def scene(world: World) -> None:
        await world.begin()
        world.other.close()
        await asyncio.sleep(0.02)
        assert sent == [(os.getpid(), signal.SIGTERM)]

    play(scene, Server())


@pytest.mark.parametrize("scope", [
    {"type": "http", "path": "/invocations", "headers": [(HEADER, b"other")]},
    {"type": "http", "path": "/invocations", "headers": []},
    {"type": "http", "path": "/v1/completions", "headers": [(HEADER, WARM)]},
    {"type": "http", "path": "/metrics", "headers": [(HEADER, COUNTERS)]},
    {"type": "websocket", "path": "/invocations", "headers": [(HEADER, COUNTERS)]},
])  # fmt: skip
def test_any_other_request_is_forwarded_unchanged(scope: Message) -> None:
    seen: list[Any] = []

    async def server(*call: Any) -> None:
        seen.append(call)

    async def receive() -> Message:
        return {}

    async def send(message: Message) -> None:
        return None

    asyncio.run(Middleware(server)(scope, receive, send))
    assert len(seen) == 1
    assert all(got is sent for got, sent in zip(seen[0], (scope, receive, send), strict=True))


def test_the_counters_of_all_engines_are_summed() -> None:
    cached = 'vllm:prefix_cache_hits_total{engine="0"} 5\nvllm:prefix_cache_hits_total NaN\n'
    assert sum_counters(PAGE + cached) == {
        "cache_hits": 5,
        "speculation": True,
        "drafts": 12,
        "draft_tokens": 120,
        "accepted_tokens": 30,
        "accepted_per_position": [7, 1],
    }
    without = sum_counters("vllm:num_requests_running 3.0\n")
    assert without["speculation"] is False
    assert parse_counters(without).accepted_per_position == ()


@pytest.mark.parametrize(("metrics", "status"), [(200, 200), (500, 502)])
def test_a_request_for_the_counters_is_answered(play: Play, metrics: int, status: int) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        answer = await world.answer(COUNTERS)
        assert answer[0] == status
        assert json.loads(answer[1]).get("drafts", 1) == 1
        assert ("error" in json.loads(answer[1])) is (status != 200)

    play(scene, Server(metrics=metrics))


KEY = compute_key(SUBJECT)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caches and the environment of a collecting engine."""
    folder = filled(tmp_path / KEY)
    monkeypatch.setenv(SUBJECT_VARIABLE, canonical(SUBJECT).decode())
    monkeypatch.setenv(COLLECT_FOLDER_VARIABLE, str(folder))
    monkeypatch.setenv("PEAGLE_ENGINE_STARTED", str(time.monotonic() - 47))
    return folder


def part(offset: Any, length: Any, **more: Any) -> bytes:
    return json.dumps({"offset": offset, "length": length, **more}).encode()


@pytest.mark.usefixtures("place")
def test_the_parts_add_up_to_one_archive(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    packs: list[int] = []
    pack = warm.pack

    def counted(*arguments: Any) -> Any:
        packs.append(1)
        return pack(*arguments)

    monkeypatch.setattr(warm, "pack", counted)

    async def scene(world: World) -> None:
        await world.begin()
        answers = await asyncio.gather(*(world.answer(WARM, body) for body in (b"", b"{}", b"{}")))
        assert answers.count(answers[0]) == 3
        manifest = parse_manifest(json.loads(answers[0][1]), f"{KEY}.json")
        assert manifest.subject == SUBJECT
        assert 47 <= manifest.seconds_cold < 57
        content = b""
        while len(content) < manifest.size:
            status, more = await world.answer(WARM, part(len(content), 700))
            assert status == 200
            content += more
        assert await world.answer(WARM, part(len(content), 1)) == (200, b"")
        assert hashlib.sha256(content).hexdigest() == manifest.sha256
        assert packs == [1]

    play(scene, Server())


def test_archives_are_refused_before_healthy_and_without_collecting(
    play: Play, request: pytest.FixtureRequest
) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        status, body = await world.answer(WARM)
        assert status == 403
        assert b"PEAGLE_WARM=collect" in body
        request.getfixturevalue("place")
        assert (await world.answer(WARM))[0] == 503

    play(scene, Server(drafts=0))


def test_an_archive_that_cannot_be_made_is_an_error(
    play: Play, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        await world.begin()
        for file in [file for file in place.rglob("*") if file.is_file()]:
            file.unlink()
        status, body = await world.answer(WARM)
        assert (status, b"compiled nothing" in body) == (409, True)
        filled(place)

        def full(*arguments: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(warm, "pack", full)
            status, body = await world.answer(WARM)
        assert (status, b"No space left on device (set PEAGLE_CACHE" in body) == (500, True)
        assert (await world.answer(WARM))[0] == 200, "the folder is read again"

    play(scene, Server())


@pytest.mark.usefixtures("place")
def test_another_body_is_refused(play: Play) -> None:
    bodies = [
        b"{", b"[" * 4000, b"[]", b"5", b'{"offset": 0}', b"x" * 5000,
        part(-1, 5), part(0, 0), part(0, LARGEST_PART + 1), part("0", 5), part(True, 5),
        part(0.0, 5), part(10**9, 5), part(0, 5, file="/etc/passwd"),
    ]  # fmt: skip

    async def scene(world: World) -> None:
        await world.begin()
        for body in bodies:
            status, answer = await world.answer(WARM, body)
            assert (status, list(json.loads(answer))) == (400, ["error"]), body[:40]

    play(scene, Server())
