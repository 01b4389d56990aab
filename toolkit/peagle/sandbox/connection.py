"""A client's connection to the sandbox, which is kept for its next requests.

werkzeug closes every connection after one answer, so that each call of a client costs a connection
and a thread: a fifth of the time of a call. A connection is kept here after a request whose
whole body was read, and whose answer has all been sent.
"""

from __future__ import annotations

import io
import selectors
import traceback
from collections.abc import Iterable, Sequence
from typing import Any
from wsgiref.types import WSGIEnvironment

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.exceptions import InternalServerError

IDLE_SECONDS = 60.0
"""How long a connection is kept without a request."""

_LARGEST_REST = 10 << 30
_READ_BYTES = 10 << 20
_BUFFER_BYTES = 64 << 10
_LATE_SECONDS = 0.01
_LONGEST_NUMBER = 15
_UNFRAMED = (204, 304)
"""Statuses of answers without a body, beside those below 200."""


def body_length(declared: Sequence[str]) -> int | None:
    """The bytes of a request's body, of its headers Content-Length; ``None`` for no such number."""
    if not declared:
        return 0
    (text, *others) = declared
    is_number = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
    return int(text) if is_number and not others else None


class _Body(io.RawIOBase):
    """The body of a request: ``left`` more bytes of the connection."""

    def __init__(self, stream: io.BufferedIOBase, length: int) -> None:
        self._stream = stream
        self.left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; less only at the end of the body or of the connection."""
        with memoryview(buffer) as view:
            read = self._stream.readinto(view[: self.left])
        self.left -= read
        return read


class _Answer:
    """The answer of an application, as its parts arrive: head and first part are sent together."""

    def __init__(self, handler: ConnectionHandler) -> None:
        self._handler = handler
        self._head: tuple[str, list[tuple[str, str]]] | None = None
        self._in_chunks = False
        self._has_body = True
        self._left: int | None = None
        self.has_begun = False

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        """What an application calls first; a later head replaces one that was not sent."""
        if exc_info and self.has_begun:
            raise exc_info[1].with_traceback(exc_info[2])
        self._head = (status, headers)
        return self.write

    def write(self, data: bytes) -> None:
        """Send a part."""
        head = b"" if self.has_begun else self._begin()
        if self._in_chunks and data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif self._left is not None:
            self._left -= len(data)
        if sent := head + data if self._has_body else head:
            self._handler.wfile.write(sent)

    def end(self) -> None:
        """Send what follows the last part; the client waits no longer for more of the body."""
        if not self.has_begun:
            self.write(b"")
        if self._in_chunks:
            self._handler.wfile.write(b"0\r\n\r\n")
        if self._left:
            self._handler.close_connection = True

    def _begin(self) -> bytes:
        """The head."""
        assert self._head is not None, "a part before start_response"
        handler, (status, headers) = self._handler, self._head
        code = int(status.partition(" ")[0])
        handler.log_request(code)
        self.has_begun = True
        names = {name.lower(): value for name, value in headers}
        self._has_body = code >= 200 and code not in _UNFRAMED and handler.command != "HEAD"
        more = [("Server", handler.version_string()), ("Date", handler.date_time_string())]
        if self._has_body and "content-length" not in names:
            self._in_chunks = True
            more.append(("Transfer-Encoding", "chunked"))
        elif self._has_body:
            self._left = int(names["content-length"])
        if not handler.may_be_kept():
            handler.close_connection = True
            more.append(("Connection", "close"))
        lines = (f"{name}: {value}\r\n" for name, value in (*more, *headers))
        return f"{handler.protocol_version} {status}\r\n{''.join(lines)}\r\n".encode("latin-1")


class ConnectionHandler(MotoRequestHandler):
    """Answers the requests of one connection in turn."""

    _body: _Body
    _length: int | None
    _is_kept = False

    def handle_one_request(self) -> None:
        """Wait for the next request of a connection that is kept, for as long as that may take."""
        if self._is_kept:
            self.connection.settimeout(IDLE_SECONDS)
            try:
                has_more = bool(self.rfile.peek(1))  # type: ignore[attr-defined]
            except OSError:
                has_more = False
            if not has_more:
                self.close_connection = True
                return
            self.connection.settimeout(self.timeout)
        super().handle_one_request()
        self._is_kept = True

    def make_environ(self) -> dict[str, Any]:
        """The request, with its body alone to read."""
        environ = super().make_environ()
        self._length = body_length(self.headers.get_all("Content-Length", []))
        self._body = _Body(self.rfile, self._length or 0)
        if not environ.get("wsgi.input_terminated"):
            environ["wsgi.input"] = io.BufferedReader(self._body, _BUFFER_BYTES)
        return environ

    def may_be_kept(self) -> bool:
        """Whether another request may follow: not where it is uncertain where this one ends."""
        return (
            not self.close_connection
            and not self._body.left
            and self._length is not None
            and "Transfer-Encoding" not in self.headers
        )

    def run_wsgi(self) -> None:
        """Answer the request; where no answer could begin, or could end, the connection ends."""
        if self.headers.get("Expect", "").lower().strip() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.environ = environ = self.make_environ()
        answer = _Answer(self)
        try:
            self._answer(environ, answer)
        except (ConnectionError, TimeoutError) as error:
            self.close_connection = True
            self.connection_dropped(error, environ)
        except Exception:
            self.close_connection = True
            traceback.print_exc()
            if not answer.has_begun:
                for part in InternalServerError()(environ, answer.start_response):
                    answer.write(part)

    def _answer(self, environ: WSGIEnvironment, answer: _Answer) -> None:
        parts: Iterable[bytes] = self.server.app(environ, answer.start_response)
        try:
            for part in parts:
                answer.write(part)
            answer.end()
        finally:
            if self.close_connection:
                self._read_rest()
            if hasattr(parts, "close"):
                parts.close()

    def _read_rest(self) -> None:
        """Read what the client still sends, so that it reads the answer instead of meeting a reset
        connection."""
        total = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            while total < _LARGEST_REST and selector.select(_LATE_SECONDS):
                data = self.rfile.read1(_READ_BYTES)
                if not data:
                    return
                total += len(data)
