"""One request to an engine on this machine; its response is passed on as it arrives.

h11 parses the HTTP. The sockets are read here and not by an HTTP client, because the connection of
the sandbox's own client is watched at the same time: a client that disconnects ends the request at
the engine at once, even while the engine is still silent.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import h11

from peagle.engine.process import LOOPBACK

_HEAD_LIMIT = 64 * 1024
_READ_BYTES = 64 * 1024


class EngineUnreachable(Exception):
    """The engine does not accept connections."""


class BrokenResponse(Exception):
    """The response is not valid HTTP, or the connection ended before it was complete."""


class ResponseTimeout(Exception):
    """The engine did not complete its response in time."""


class ClientDisconnected(ConnectionAbortedError):
    """The sandbox's client closed its connection. An HTTP server expects this error class."""


@dataclass(frozen=True)
class ResponseHead:
    """Status and headers of a response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]


class HttpExchange:
    """One POST request and its response over a connection that ``send`` and ``receive`` use.

    ``receive`` returns the next bytes from the server, ``b""`` at the end of the connection. It is
    called only when everything received so far has been passed on.
    """

    def __init__(self, send: Callable[[bytes], object], receive: Callable[[], bytes]) -> None:
        self._send = send
        self._receive = receive
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)

    def post(self, host: str, path: str, headers: Mapping[str, str], body: bytes) -> ResponseHead:
        """Send the request and return the head of its response.

        Raises BrokenResponse, h11.LocalProtocolError for headers that HTTP does not allow, and
        whatever ``send`` and ``receive`` raise.
        """
        lines = {"Host": host, "Content-Length": str(len(body)), "Connection": "close", **headers}
        request = h11.Request(
            method="POST",
            target=path,
            headers=[(name.encode(), value.encode("latin-1")) for name, value in lines.items()],
        )
        parts = (request, h11.Data(data=body), h11.EndOfMessage())
        self._send(b"".join(self._http.send(part) or b"" for part in parts))
        while not isinstance(event := self._next_event(), h11.Response):
            pass  # 100 Continue and other interim responses
        received = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        return ResponseHead(event.status_code, received)

    def chunks(self) -> Iterator[bytes]:
        """The data of the response body, as it arrives.

        Chunks of a chunked body that arrive together stay separate; data of an incomplete chunk is
        returned without waiting for the rest. Raises BrokenResponse, and what ``receive`` raises.
        """
        while isinstance(event := self._next_event(), h11.Data):
            yield bytes(event.data)

    def _next_event(self) -> Any:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(self._receive())
        except h11.RemoteProtocolError as error:
            _, ended = self._http.trailing_data
            why = "the engine closed the connection early" if ended else "invalid HTTP"
            raise BrokenResponse(f"{why}: {error}") from error
        return event


class EngineRequest:
    """A request that was sent to an engine: ``head`` is complete, ``chunks`` gives the body.

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
        """Send ``body`` with POST and wait for the head of the response.

        ``seconds`` limits the request as a whole. Raises EngineUnreachable, BrokenResponse,
        ClientDisconnected, ResponseTimeout, h11.LocalProtocolError.
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
        exchange = HttpExchange(self._send, self._receive)
        self.chunks = exchange.chunks
        try:
            self._engine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.head = exchange.post(f"{LOOPBACK}:{port}", path, headers, body)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection; may be repeated."""
        self._selector.close()
        self._engine.close()

    def _send(self, request: bytes) -> None:
        try:
            self._engine.sendall(request)
        except TimeoutError:
            raise ResponseTimeout from None
        except OSError as error:
            raise BrokenResponse(str(error)) from error

    def _receive(self) -> bytes:
        """The next bytes from the engine; empty at the end of the connection."""
        while True:
            ready = self._selector.select(max(0.0, self._until - time.monotonic()))
            if not ready:
                raise ResponseTimeout
            sockets = [key.fileobj for key, _ in ready]
            if self._engine in sockets:
                try:
                    return self._engine.recv(_READ_BYTES)
                except ConnectionError as error:
                    raise BrokenResponse(str(error)) from error
            self._check_client(sockets[0])

    def _check_client(self, client: object) -> None:
        """A disconnected client ends the request; further data from it is ignored."""
        assert isinstance(client, socket.socket)
        try:
            disconnected = not client.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            disconnected = True
        if disconnected:
            raise ClientDisconnected
        self._selector.unregister(client)
