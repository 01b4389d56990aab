"""Requests to an engine: which one, how its response is passed on, and where it ends."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from peagle.engine.process import free_port
from peagle.sandbox import invocations
from peagle.sandbox.engines import Draining, EngineInstance
from peagle.sandbox.invocations import (
    BrokenResponse,
    ClientDisconnected,
    EngineRequest,
    EngineUnreachable,
    ErrorResponse,
    HttpExchange,
    Invocation,
    ResponseHead,
    ResponseTimeout,
    payload_part,
    stream_error,
)
from peagle.sandbox.launch import LaunchSpec
from peagle.sandbox.observability import MetricSource, RequestMetrics

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class Engine:
    """The other end of the connection: takes the request, sends ``pieces``, then closes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.request = b""
        self.left = [piece for piece in pieces if piece]

    def take(self, request: bytes) -> None:
        self.request += request

    def send(self) -> bytes:
        return self.left.pop(0) if self.left else b""


def begin(pieces: list[bytes]) -> tuple[ResponseHead, Iterator[bytes], Engine]:
    engine = Engine(pieces)
    exchange = HttpExchange(engine.take, engine.send)
    return (
        exchange.post("127.0.0.1:1", "/path", {"Accept": "ü"}, b"body"),
        exchange.chunks(),
        engine,
    )


def read(pieces: list[bytes]) -> list[bytes]:
    """The data of the body, chunk by chunk."""
    return list(begin(pieces)[1])


def cut(data: bytes, positions: list[int]) -> list[bytes]:
    """``data`` divided at ``positions``."""
    edges = [0, *sorted(position % (len(data) + 1) for position in positions), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def chunked(chunks: list[bytes]) -> bytes:
    body = b"".join(b"%x;note=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return CHUNKED + body + b"0\r\n\r\n"


def test_the_request_is_sent_with_its_headers_and_body() -> None:
    head, _, engine = begin([chunked([])])
    assert engine.request == (
        b"POST /path HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 4\r\nConnection: close\r\n"
        b"Accept: \xfc\r\n\r\nbody"
    )
    assert (head.status, head.headers["content-type"]) == (200, "a/b")


@pytest.mark.thorough
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.lists(st.integers(0, 400)))
def test_a_chunked_body_is_the_same_for_every_division(chunks: list[bytes], at: list[int]) -> None:
    assert b"".join(read(cut(chunked(chunks), at))) == b"".join(chunks)


@given(st.binary(max_size=60), st.lists(st.integers(0, 200)))
def test_a_body_with_a_length_is_the_same_for_every_division(body: bytes, at: list[int]) -> None:
    response = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    assert b"".join(read(cut(response, at))) == body


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    assert read([HEAD + b"\r\n", b"one", b"two"]) == [b"one", b"two"]


def test_an_interim_response_is_skipped() -> None:
    assert read([b"HTTP/1.1 100 Continue\r\n\r\n", chunked([b"one"])]) == [b"one"]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
def test_chunks_that_arrive_together_stay_separate(chunks: list[bytes]) -> None:
    assert read([chunked(chunks)]) == chunks


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.lists(st.integers(0, 400)))
def test_all_data_is_passed_on_before_more_is_awaited(chunks: list[bytes], at: list[int]) -> None:
    """A piece that waited for the bytes after it would delay every token of a stream."""
    response, pieces = chunked(chunks), cut(chunked(chunks), at)
    sent, passed_on = 0, b""

    def send() -> bytes:
        nonlocal sent
        assert passed_on == payload(response[:sent], chunks)
        sent += len(pieces[0])
        return pieces.pop(0)

    pieces = [piece for piece in pieces if piece]
    exchange = HttpExchange(lambda request: None, send)
    exchange.post("127.0.0.1:1", "/path", {}, b"")
    for data in exchange.chunks():
        passed_on += data
    assert passed_on == b"".join(chunks)


def payload(received: bytes, chunks: list[bytes]) -> bytes:
    """The data in the first bytes of a response with these chunks."""
    data, position = b"", len(CHUNKED)
    for chunk in chunks:
        start = position + len(b"%x;note=1\r\n" % len(chunk))
        data += received[start : start + len(chunk)]
        position = start + len(chunk) + len(b"\r\n")
    return data


def test_data_of_an_incomplete_chunk_is_passed_on() -> None:
    _, data, engine = begin([CHUNKED + b"a\r\n12345"])
    assert (next(data), engine.left) == (b"12345", [])
    with pytest.raises(BrokenResponse):
        next(data)


@given(st.integers(0, len(chunked([b"one", b"two"])) - len(CHUNKED) - 3))
def test_a_chunked_body_that_ends_early_is_broken(kept: int) -> None:
    with pytest.raises(BrokenResponse):
        read([chunked([b"one", b"two"])[: len(CHUNKED) + kept]])


def test_a_body_shorter_than_its_length_is_broken() -> None:
    with pytest.raises(BrokenResponse):
        read([HEAD + b"Content-Length: 9\r\n\r\n12345"])


@pytest.mark.parametrize("size", [b"xyz", b"", b"-", b"1 2"])
def test_an_invalid_chunk_size_is_broken(size: bytes) -> None:
    with pytest.raises(BrokenResponse):
        read([CHUNKED + size + b"\r\n"])


@pytest.mark.parametrize("response", [b"SSH-2.0-OpenSSH\r\n\r\n", b"x" * 70_000])
def test_a_response_that_is_not_http_is_broken(response: bytes) -> None:
    with pytest.raises(BrokenResponse):
        begin([response])


@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 200 OK\r\n"])
def test_a_connection_that_closes_before_the_head_is_complete_is_broken(response: bytes) -> None:
    with pytest.raises(BrokenResponse):
        begin([response])


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
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

    assert request.head.status == 200
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


CALL = Invocation("e", "invocations", "us-east-1", {}, b"{}", None)


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


class Endless:
    """A response of an engine that never ends."""

    head = ResponseHead(200, {})

    def chunks(self) -> Iterator[bytes]:
        while True:
            yield bytes(1 << 20)


def test_a_response_beyond_the_limit_is_a_model_error() -> None:
    endless: Any = Endless()
    metrics = RequestMetrics(MetricSource("us-east-1", "e", "AllTraffic"), 0)
    relayed = invocations._Relayed(CALL, instance(), endless, metrics, ExitStack())
    with pytest.raises(ErrorResponse) as raised:
        relayed.whole()
    (body,) = raised.value.response.body
    assert b"more than 33554432 bytes" in body
