"""A web server on loopback that counts bytes and sends any reply, even a broken one."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MEGABYTE = 1_000_000
_PIECE = 64 * 1024


@dataclass(frozen=True)
class WebRequest:
    """A request: its path with the query, and its headers."""

    path: str
    headers: Mapping[str, str]

    def range_of(self, size: int) -> tuple[int, int]:
        """First and last byte that are requested, of a file of ``size`` bytes."""
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        return int(first), min(int(last or size), size - 1)


@dataclass(frozen=True)
class Reply:
    """A response. A body may come in pieces; then ``length`` is its Content-Length."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None


class Web:
    """The server at ``url``, with the requests it received and the body bytes that it sent."""

    def __init__(self) -> None:
        self.url = ""
        self.sent = 0
        self.requests: list[WebRequest] = []
        self.closed = threading.Event()
        self.answer: Callable[[WebRequest], Reply] = lambda request: Reply(404)

    def forget(self) -> None:
        """End trickling replies and reset the counts."""
        self.closed.set()
        self.closed = threading.Event()
        self.sent = 0
        self.requests = []

    def trickle(self, piece: bytes = b"x") -> Iterator[bytes]:
        """An endless body, a byte at a time: each arrives before a socket timeout."""
        closed = self.closed
        while not closed.wait(0.05):
            yield piece


def zeros(size: int) -> Iterator[bytes]:
    """``size`` zero bytes, in pieces."""
    for start in range(0, size, _PIECE):
        yield bytes(min(_PIECE, size - start))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, as many tests do."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve(web: Web) -> Iterator[Web]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            request = WebRequest(self.path, dict(self.headers))
            web.requests.append(request)
            with suppress(ConnectionError):
                self._send(web.answer(request))

        def _send(self, reply: Reply) -> None:
            pieces = [reply.body] if isinstance(reply.body, bytes) else reply.body
            length = len(reply.body) if isinstance(reply.body, bytes) else reply.length
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            sent = 0
            for piece in pieces:
                self.wfile.write(piece)
                sent += len(piece)
                web.sent += len(piece)
            self.close_connection = sent != length

        def log_message(self, *_: Any) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    web.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield web
    finally:
        web.closed.set()
        server.shutdown()
        thread.join()
        server.server_close()
