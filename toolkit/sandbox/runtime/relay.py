"""One request to an engine on this machine, its answer handed on as it comes.

A socket of our own, and not ``http.client``: a client that goes away must end the request at the
engine at once, also while the engine is still silent, so both sockets are watched together.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator, Mapping

from toolkit.local.process import LOOPBACK
from toolkit.sandbox.runtime.body import BodyReader, BrokenAnswer, Head, split_head

_READ_BYTES = 64 * 1024


class EngineUnreachable(Exception):
    """The engine does not listen."""


class ClientGone(ConnectionAbortedError):
    """Whoever asked is no longer there. An HTTP server takes it as any lost connection."""


class TookTooLong(Exception):
    """The engine did not end its answer in time."""


class Exchange:
    """A request that was sent. ``head`` is there at once, the body comes with ``chunks``.

    Closing it early tells the engine to stop.
    """

    def __init__(
        self,
        port: int,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        seconds: float,
        client: socket.socket | None = None,
    ) -> None:
        """Send ``body`` with POST and wait for the answer's head.

        Raises EngineUnreachable, BrokenAnswer, ClientGone, TookTooLong.
        """
        self._until = time.monotonic() + seconds
        try:
            self._engine = socket.create_connection((LOOPBACK, port), timeout=seconds)
        except OSError as error:
            raise EngineUnreachable(str(error)) from error
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._engine, selectors.EVENT_READ)
        if client is not None:
            self._selector.register(client, selectors.EVENT_READ)
        try:
            self._engine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._send(_request(port, path, headers, body))
            self.head, self._received = self._read_head()
        except BaseException:
            self.close()
            raise

    def chunks(self) -> Iterator[bytes]:
        """The data of the body, each piece as soon as it is there.

        Raises BrokenAnswer, ClientGone, TookTooLong.
        """
        reader = BodyReader(self.head)
        yield from reader.feed(self._received)
        while not reader.complete:
            received = self._receive()
            if not received:
                reader.end()
                return
            yield from reader.feed(received)

    def close(self) -> None:
        """End the connection; may be repeated."""
        self._selector.close()
        self._engine.close()

    def _send(self, request: bytes) -> None:
        try:
            self._engine.sendall(request)
        except TimeoutError:
            raise TookTooLong from None
        except OSError as error:
            raise BrokenAnswer(str(error)) from error

    def _read_head(self) -> tuple[Head, bytes]:
        received = b""
        while (parts := split_head(received)) is None:
            more = self._receive()
            if not more:
                raise BrokenAnswer("the engine ended the connection without an answer")
            received += more
        return parts

    def _receive(self) -> bytes:
        """What the engine sends next; empty at the end of the connection."""
        while True:
            ready = self._selector.select(max(0.0, self._until - time.monotonic()))
            if not ready:
                raise TookTooLong
            sockets = [key.fileobj for key, _ in ready]
            if self._engine in sockets:
                try:
                    return self._engine.recv(_READ_BYTES)
                except ConnectionError as error:
                    raise BrokenAnswer(str(error)) from error
            self._look_at_client(sockets[0])

    def _look_at_client(self, client: object) -> None:
        """A client that has more to say is not listened to; one that is gone ends the request."""
        assert isinstance(client, socket.socket)
        try:
            gone = not client.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            gone = True
        if gone:
            raise ClientGone
        self._selector.unregister(client)


def _request(port: int, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = {
        "Host": f"{LOOPBACK}:{port}",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
