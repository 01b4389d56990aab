"""Read an HTTP/1.1 answer as its bytes come in, without waiting for more than there is. Pure."""

from __future__ import annotations

import http.client
import io
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message

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
