"""Requests to an engine: how its response is passed on, and where it ends."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from peagle.engine.process import free_port
from peagle.sandbox import invocations
from peagle.sandbox.engines import Draining, EngineInstance
from peagle.sandbox.invocations import (
    Answer,
    BrokenResponse,
    ClientDisconnected,
    EngineRequest,
    EngineUnreachable,
    Invocation,
    ResponseTimeout,
    payload_part,
    stream_error,
)
from peagle.sandbox.launch import LaunchSpec
from peagle.sandbox.requests import Refused

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWER = HEAD + b"Content-Length: 2\r\n\r\nok"
MORE_THAN_FITS = bytes(64_000_000)
"""More than the buffers of a connection hold."""

Serve = Callable[[Callable[[socket.socket], object]], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(act)`` starts an engine that acts on its first connection, which then stays open."""
    with ExitStack() as held:

        def start(act: Callable[[socket.socket], object]) -> int:
            listener = held.enter_context(socket.create_server(("127.0.0.1", 0)))

            def accept() -> None:
                connection, _ = listener.accept()
                held.enter_context(connection)
                act(connection)

            thread = threading.Thread(target=accept)
            thread.start()
            held.callback(thread.join)
            return int(listener.getsockname()[1])

        yield start


@pytest.fixture
def client() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a client's connection: its own, and the sandbox's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as own,
        listener.accept()[0] as accepted,
    ):
        yield own, accepted


def _reset(connection: socket.socket) -> None:
    """Close so that the other end gets an error instead of the end of the data."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _silent(connection: socket.socket) -> None:
    """Receive nothing and send nothing."""


def _ask(port: int, body: bytes = b"{}", seconds: float = 30.0,
         client: socket.socket | None = None) -> EngineRequest:  # fmt: skip
    return EngineRequest(port, "/invocations", {}, body, seconds=seconds, client=client)


def sends(*pieces: bytes) -> Callable[[socket.socket], None]:
    """An engine that takes the request, sends these pieces, then closes."""

    def act(connection: socket.socket) -> None:
        while not connection.recv(65_536).endswith(b"{}"):
            pass
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.01)
        connection.close()

    return act


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
def test_data_is_passed_on_as_it_arrives(
    serve: Serve, pieces: list[bytes], data: list[bytes]
) -> None:
    request = _ask(serve(sends(*pieces)))
    assert (request.status, request.headers["content-type"]) == (200, "a/b")
    assert list(request.chunks()) == data
    request.close()


@pytest.mark.parametrize(
    "response",
    [CHUNKED + b"3\r\non", CHUNKED + b"xyz\r\n", CHUNKED + b"3\r\none\r\n", ANSWER[:-1],
     b"SSH-2.0-OpenSSH\r\n\r\n", b"x" * 70_000, b""],
)  # fmt: skip
def test_what_is_not_a_whole_response_is_broken(serve: Serve, response: bytes) -> None:
    port = serve(sends(response))
    with pytest.raises(BrokenResponse):
        list(_ask(port).chunks())


@pytest.mark.thorough
@pytest.mark.parametrize("body", [b"{}", MORE_THAN_FITS], ids=["small", "large"])
def test_an_engine_that_takes_too_long(serve: Serve, body: bytes) -> None:
    with pytest.raises(ResponseTimeout):
        _ask(serve(_silent), body, seconds=0.2)


@pytest.mark.parametrize("body", [b"{}", MORE_THAN_FITS], ids=["small", "large"])
def test_an_engine_that_dies_during_the_request(serve: Serve, body: bytes) -> None:
    def die(connection: socket.socket) -> None:
        connection.recv(1)
        _reset(connection)

    with pytest.raises(BrokenResponse):
        _ask(serve(die), body)


def test_an_engine_that_no_longer_listens() -> None:
    with pytest.raises(EngineUnreachable):
        _ask(free_port())


@pytest.mark.parametrize("leave", [socket.socket.close, _reset])
def test_a_client_that_disconnects_ends_the_request(
    serve: Serve,
    client: tuple[socket.socket, socket.socket],
    leave: Callable[[socket.socket], None],
) -> None:
    own, accepted = client

    def wait(engine: socket.socket) -> None:
        engine.recv(65_536)
        leave(own)

    with pytest.raises(ClientDisconnected):
        _ask(serve(wait), client=accepted)


@pytest.mark.thorough
def test_what_a_client_sends_meanwhile_is_ignored(
    serve: Serve, client: tuple[socket.socket, socket.socket]
) -> None:
    own, accepted = client

    def answer(engine: socket.socket) -> None:
        engine.recv(65_536)
        own.sendall(b"GET /next HTTP/1.1\r\n")
        time.sleep(0.1)  # the sandbox sees this first
        engine.sendall(ANSWER)

    request = _ask(serve(answer), client=accepted)

    assert request.status == 200
    assert b"".join(request.chunks()) == b"ok"
    assert accepted.recv(100) == b"GET /next HTTP/1.1\r\n", "the next request is still there"
    request.close()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_payload_parts_round_trip(parts: list[bytes]) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(b"".join(payload_part(part) for part in parts))
    events = list(buffer)
    assert [event.payload for event in events] == parts
    assert {event.headers[":event-type"] for event in events} == {"PayloadPart"}


@given(st.text(max_size=50))
def test_an_error_round_trips(message: str) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(stream_error(message, "StreamBroken"))
    (event,) = buffer
    assert event.headers[":message-type"] == "exception"
    assert event.headers[":exception-type"] == "ModelStreamError"
    assert json.loads(event.payload) == {"Message": message, "ErrorCode": "StreamBroken"}


CALL = Invocation("us-east-1", "e", None, {}, b"{}")


def instance() -> EngineInstance:
    return EngineInstance(LaunchSpec("us-east-1", "e", "v", {}, (), 1))


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
    chosen: Iterator[Any] = iter([(None, old), (None, old), (None, new)])
    monkeypatch.setattr(invocations, "_choose", lambda *_: next(chosen))
    with ExitStack() as stack:
        assert invocations._admit(CALL, stack)[1] is new
        assert new.in_progress == 1
    assert new.in_progress == 0


def test_a_response_beyond_the_limit_is_a_model_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answer, "__init__", lambda *given: None)
    endless: Any = Answer(CALL, "/", "", 1)
    endless.invocation = CALL
    endless.chunks = lambda: iter(lambda: bytes(1 << 20), None)
    with pytest.raises(Refused, match="more than 33554432 bytes") as raised:
        endless.whole()
    assert raised.value.code == "ModelError"
