"""Requests to an engine: how its response is passed on, and where it ends."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from peagle.engine.process import free_port
from peagle.sandbox import invocations
from peagle.sandbox.engines import Draining, EngineInstance
from peagle.sandbox.invocations import BROKEN, Answer, Invocation, payload_part, stream_error
from peagle.sandbox.launch import LaunchSpec
from peagle.sandbox.requests import Refused

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWER = HEAD + b"Content-Length: 2\r\n\r\nok"
CALL = Invocation("us-east-1", "e", None, {}, b"{}")


def instance() -> EngineInstance:
    return EngineInstance(LaunchSpec("us-east-1", "e", "v", {}, (), 1))


Ask = Callable[..., Answer]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """``ask(*pieces)`` sends a request to an engine that answers with these, then closes."""
    with ExitStack() as stack:

        def start(*pieces: bytes, seconds: float = 30.0, port: int = 0) -> Answer:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer() -> None:
                with suppress(OSError), listener.accept()[0] as connection:
                    while not connection.recv(65_536).endswith(b"{}"):
                        pass
                    for piece in pieces:
                        connection.sendall(piece)
                        time.sleep(0.01 if seconds > 1 else 3 * seconds)

            engine = instance()
            port = port or int(listener.getsockname()[1])
            engine.process = SimpleNamespace(port=port)  # type: ignore[assignment]
            monkeypatch.setattr(engine, "end_reason", lambda: "killed")
            monkeypatch.setattr(invocations, "choose", lambda _: engine)
            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            return Answer(CALL, "/invocations", "*/*", seconds)

        yield start


@pytest.mark.parametrize(
    ("pieces", "data"),
    [
        ([CHUNKED + b"3;a=1\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"], [b"one", b"two"]),
        ([CHUNKED + b"6\r\none", b"two\r\n0\r\n\r\n"], [b"one", b"two"]),
        ([ANSWER[:-1], b"k"], [b"o", b"k"]),
        ([HEAD + b"\r\n", b"one", b"two"], [b"one", b"two"]),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", ANSWER], [b"ok"]),
    ],
    ids=["chunks stay separate", "a half chunk", "a length", "until the end", "after an interim"],
)
def test_data_is_passed_on_as_it_arrives(ask: Ask, pieces: list[bytes], data: list[bytes]) -> None:
    answer = ask(*pieces)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "a/b")
    assert list(answer.chunks()) == data


@pytest.mark.parametrize(
    "response", [CHUNKED + b"3\r\non", CHUNKED + b"xyz\r\n", CHUNKED + b"3\r\none\r\n", ANSWER[:-1]]
)
def test_what_is_not_a_whole_response_is_broken(ask: Ask, response: bytes) -> None:
    with pytest.raises(BROKEN):
        list(ask(response).chunks())
    with pytest.raises(Refused) as refused:
        ask(response).whole()
    assert (refused.value.code, refused.value.more["OriginalStatusCode"]) == ("ModelError", 500)


@pytest.mark.parametrize("response", [b"SSH-2.0-OpenSSH\r\n\r\n", b"x" * 70_000, b""])
def test_an_engine_without_a_response_is_a_model_error(ask: Ask, response: bytes) -> None:
    for port in (0, free_port()):
        with pytest.raises(Refused, match="the engine exited: killed") as refused:
            ask(response, port=port)
        assert refused.value.more["OriginalStatusCode"] == 503


def test_an_engine_that_takes_too_long(ask: Ask) -> None:
    with pytest.raises(Refused, match="timed out"):
        ask(b"HTTP/1.1 100 Continue\r\n\r\n", seconds=0.1)
    with pytest.raises(TimeoutError):
        list(ask(CHUNKED + b"3\r\none\r\n", b"", seconds=0.1).chunks())


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.text(max_size=50))
def test_frames_round_trip(parts: list[bytes], message: str) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(b"".join(payload_part(part) for part in parts))
    buffer.add_data(stream_error(message, "StreamBroken"))
    *events, error = list(buffer)
    assert [event.payload for event in events] == parts
    assert {event.headers[":event-type"] for event in events} == {"PayloadPart"}
    assert error.headers[":message-type"] == "exception"
    assert error.headers[":exception-type"] == "ModelStreamError"
    assert json.loads(error.payload) == {"Message": message, "ErrorCode": "StreamBroken"}


def admits(engine: EngineInstance) -> bool:
    try:
        with engine.invocation():
            return True
    except Draining:
        return False


def test_an_engine_that_drains_answers_what_it_has_and_admits_nothing_more() -> None:
    engine = instance()
    draining = threading.Thread(target=engine.drain)
    with engine.invocation():
        draining.start()
        while admits(engine):
            pass  # until the thread waits
        assert draining.is_alive()
    draining.join(5)
    assert not draining.is_alive()
    assert engine.in_progress == 0


def test_a_request_chosen_for_an_engine_that_drains_goes_to_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = instance(), instance()
    old.drain()
    chosen: Iterator[Any] = iter([old, old, new])
    monkeypatch.setattr(invocations, "choose", lambda *_: next(chosen))
    with ExitStack() as stack:
        assert invocations._admit(CALL, stack) is new
        assert new.in_progress == 1
    assert new.in_progress == 0


def test_a_response_beyond_the_limit_is_a_model_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answer, "__init__", lambda *_: None)
    endless: Any = Answer(CALL, "/", "", 1)
    endless.invocation = CALL
    endless.chunks = lambda: iter(lambda: bytes(1 << 20), None)
    with pytest.raises(Refused, match="more than 33554432 bytes") as raised:
        endless.whole()
    assert raised.value.code == "ModelError"
