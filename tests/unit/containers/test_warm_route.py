"""Collected caches are fetched through ``/invocations``."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from peagle_serve.contract import (
    ATTRIBUTES_HEADER,
    CAPTURE_VARIABLE,
    LARGEST_PART,
    SUBJECT_VARIABLE,
    WARM_ATTRIBUTE,
)
from peagle_serve.counters import Message
from peagle_serve.lifecycle import STARTED_AFTER
from peagle_serve.warm import archive as packing
from peagle_serve.warm.cache_key import canonical, key_of
from peagle_serve.warm.manifest import manifest_of
from peagle_serve.warm.route import WarmMiddleware
from tests.unit.containers.artifacts import SUBJECT, filled

KEY = key_of(SUBJECT)
HEADER = ATTRIBUTES_HEADER.lower().encode()


class Client:
    """A client of the middleware."""

    def __init__(self) -> None:
        self.reached: list[Message] = []
        self.middleware = WarmMiddleware(self._vllm)

    async def _vllm(self, scope: Message, receive: Any, send: Any) -> None:
        self.reached.append(scope)

    async def answer(self, body: bytes, healthy: bool = True, **more: Any) -> tuple[int, bytes]:
        sent: list[Message] = []
        parts = [body[:3], body[3:]]

        async def receive() -> Message:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Message) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "path": "/invocations",
            "headers": [(HEADER, WARM_ATTRIBUTE.encode())],
            **({STARTED_AFTER: 47.26} if healthy else {}),
            **more,
        }
        await self.middleware(scope, receive, send)
        if not sent:
            return 0, b""
        start, content = sent
        assert dict(start["headers"])[b"content-length"] == b"%d" % len(content["body"])
        return start["status"], content["body"]

    def ask(self, body: Any = None, **more: Any) -> tuple[int, bytes]:
        text = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return asyncio.run(self.answer(text, **more))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caches and the environment of a collecting engine."""
    folder = filled(tmp_path / KEY)
    monkeypatch.setenv(SUBJECT_VARIABLE, canonical(SUBJECT).decode())
    monkeypatch.setenv(CAPTURE_VARIABLE, str(folder))
    return folder


def error_of(answer: tuple[int, bytes]) -> str:
    return str(json.loads(answer[1])["error"])


@pytest.mark.usefixtures("place")
def test_the_parts_add_up_to_the_archive() -> None:
    client = Client()

    async def fetched() -> tuple[dict[str, Any], bytes]:
        status, body = await client.answer(b"{}")
        assert status == 200
        manifest = json.loads(body)
        content = b""
        while len(content) < manifest["size"]:
            part = json.dumps({"offset": len(content), "length": 700}).encode()
            status, more = await client.answer(part)
            assert status == 200
            content += more
        status, end = await client.answer(part.replace(b"700", b"1"))
        assert (status, len(end)) == (200, 1)
        return manifest, content

    manifest, content = asyncio.run(fetched())

    read = manifest_of(manifest, f"{KEY}.json")
    assert read.subject == SUBJECT
    assert read.seconds_cold == 47.3
    assert len(content) == read.size
    assert hashlib.sha256(content).hexdigest() == read.sha256
    assert client.reached == []


@pytest.mark.usefixtures("place")
def test_concurrent_requests_get_one_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    real, packs = packing.pack, []

    def counted(*given: Any) -> Any:
        packs.append(1)
        return real(*given)

    monkeypatch.setattr(packing, "pack", counted)

    async def all_at_once() -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(client.answer(b"") for _ in range(5)))

    answers = asyncio.run(all_at_once())

    assert {status for status, _ in answers} == {200}
    assert len(set(answers)) == 1
    assert packs == [1]


def test_without_collecting_requests_are_refused() -> None:
    client = Client()

    answer = client.ask(healthy=False)

    assert answer[0] == 403
    assert "PEAGLE_WARM=collect" in error_of(answer)
    assert client.reached == []


@pytest.mark.usefixtures("place")
def test_requests_before_healthy_are_refused() -> None:
    answer = Client().ask(healthy=False)

    assert (answer[0], error_of(answer)) == (503, "the engine is not healthy yet")


def test_an_engine_that_compiled_nothing_is_an_error(place: Path) -> None:
    for file in [file for file in place.rglob("*") if file.is_file()]:
        file.unlink()
    client = Client()

    answer = client.ask()

    assert answer[0] == 409
    assert "compiled nothing" in error_of(answer)
    filled(place)
    assert client.ask()[0] == 200, "the folder is read again"


@pytest.mark.usefixtures("place")
def test_an_unwritable_archive_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packing, "pack", full)

    answer = Client().ask()

    assert (answer[0], error_of(answer)) == (
        500, "the archive cannot be written: No space left on device "
        "(free some space there, or set PEAGLE_CACHE to a folder of a larger disk)"
    )  # fmt: skip


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "body",
    [b"{", b"[" * 4000, b"[]", b"5", {"offset": 0}, {"offset": -1, "length": 5},
     {"offset": 0, "length": 0}, {"offset": 0, "length": LARGEST_PART + 1},
     {"offset": "0", "length": 5}, {"offset": True, "length": 5}, {"offset": 0.0, "length": 5},
     {"offset": 10**9, "length": 5}, {"offset": 0, "length": 5, "file": "/etc/passwd"},
     b"x" * 5000],
    ids=lambda body: str(body)[:40],
)  # fmt: skip
def test_another_body_is_refused(body: Any) -> None:
    client = Client()

    answer = client.ask(body)

    assert answer[0] == 400
    assert error_of(answer)
    assert client.reached == []


@pytest.mark.parametrize(
    "more",
    [{"headers": []}, {"headers": [(HEADER, b"peagle=counters")]}, {"path": "/v1/completions"},
     {"type": "websocket"}],
    ids=["no header", "another", "another path", "websocket"],
)  # fmt: skip
def test_any_other_request_is_forwarded(more: dict[str, Any]) -> None:
    client = Client()

    assert client.ask(**more) == (0, b"")
    assert len(client.reached) == 1
