"""A request to an engine that is slow, breaks off, or whose client goes away."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from peagle.engine.process import free_port
from peagle.sandbox.relay import (
    BrokenResponse,
    ClientDisconnected,
    EngineRequest,
    EngineUnreachable,
    ResponseTimeout,
)

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
