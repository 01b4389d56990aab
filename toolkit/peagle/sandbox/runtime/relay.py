"""Read an HTTP/1.1 answer as its bytes come in, without waiting for more than there is. Pure.

One request to an engine on this machine, its answer handed on as it comes.

A socket of our own, and not ``http.client``: a client that goes away must end the request at the
engine at once, also while the engine is still silent, so both sockets are watched together.
"""

from __future__ import annotations

import http.client
import io
import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message

from peagle.engine.process import LOOPBACK

_HEAD_LIMIT = 64 * 1024


class BrokenAnswer(Exception):
    """The answer is not HTTP, or ended too early."""


@dataclass(frozen=True)
class Head:
    """Status and headers of an answer."""

    status: int
    headers: Message


def split_head(received: bytes) -> tuple[Head, bytes] | None:
    """The head and the bytes after it; ``None`` while the head is not complete.

    Raises BrokenAnswer.
    """
    head, end, rest = received.partition(b"\r\n\r\n")
    if not end:
        if len(received) > _HEAD_LIMIT:
            raise BrokenAnswer("the head of the answer does not end")
        return None
    stream = io.BytesIO(head + end)
    status_line = stream.readline().split(None, 2)
    if len(status_line) < 2 or not status_line[0].startswith(b"HTTP/1."):
        raise BrokenAnswer("the answer is not HTTP")
    return Head(int(status_line[1]), http.client.parse_headers(stream)), rest


class BodyReader:
    """Takes the bytes of a body as they come and gives its data at once.

    Chunks of a chunked body stay apart, also where several arrived together: what the engine sent
    as a piece of its own is passed on as one. ``complete`` turns true with the last byte. A body
    without a length ends with the connection.
    """

    def __init__(self, head: Head) -> None:
        encoding = head.headers.get("Transfer-Encoding", "").lower()
        length = head.headers.get("Content-Length")
        self._chunked = "chunked" in encoding
        self._left = None if self._chunked or length is None else int(length)
        self._rest = b""
        self.complete = self._left == 0

    def feed(self, received: bytes) -> tuple[bytes, ...]:
        """The pieces of data in ``received``, none of them empty. Raises BrokenAnswer."""
        if self._chunked:
            return tuple(piece for piece in self._feed_chunked(received) if piece)
        data = received if self._left is None else received[: self._left]
        if self._left is not None:
            self._left -= len(data)
            self.complete = self._left == 0
        return (data,) if data else ()

    def end(self) -> None:
        """The connection has ended. Raises BrokenAnswer if the body had not."""
        has_an_end = self._chunked or self._left is not None
        if has_an_end and not self.complete:
            raise BrokenAnswer("the answer ended in the middle")
        self.complete = True

    def _feed_chunked(self, received: bytes) -> Iterator[bytes]:
        """RFC 9112, section 7.1: size in hex, CRLF, data, CRLF; size 0 is the end.

        ``_left`` is what is missing of the chunk that is being read, with its CRLF.
        """
        self._rest += received
        while self._rest and not self.complete:
            if self._left is None:
                line, end, self._rest = self._rest.partition(b"\r\n")
                if not end:
                    self._rest = line
                    break
                self._begin_chunk(line)
            else:
                yield self._take()

    def _begin_chunk(self, line: bytes) -> None:
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise BrokenAnswer(f"not the size of a chunk: {line[:20]!r}") from None
        self.complete = size == 0
        self._left = size + 2

    def _take(self) -> bytes:
        assert self._left is not None
        taken, self._rest = self._rest[: self._left], self._rest[self._left :]
        of_data = max(0, self._left - 2)
        self._left = (self._left - len(taken)) or None
        return taken[:of_data]


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
