"""A stand-in for vLLM's server that fails and delays on request.

It is installed as vLLM, so ``peagle_serve`` is the real one.
``FAKE_ENGINE`` in the model's environment selects how it starts: ``crash``, ``never-healthy``.
The body of a request selects the answer: ``{"do": ...}``.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOW = os.environ.get("FAKE_ENGINE", "")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""

    def do_GET(self) -> None:
        self._answer(503 if HOW == "never-healthy" else 200, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        getattr(self, f"_{request.get('do', 'echo')}")(request, body)

    def _echo(self, request: dict[str, Any], body: bytes) -> None:
        """The request, and the engine's arguments and environment."""
        document = {
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": body.decode(),
            "argv": sys.argv[1:],
            "environment": sorted(os.environ),
        }
        self._answer(200, json.dumps(document).encode())

    def _status(self, request: dict[str, Any], body: bytes) -> None:
        self._answer(request["status"], request["text"].encode())

    def _stream(self, request: dict[str, Any], body: bytes) -> None:
        self._begin_stream()
        for text in request["chunks"]:
            self._chunk(text.encode())
            time.sleep(request.get("gap", 0))
        self._chunk(b"")

    def _break(self, request: dict[str, Any], body: bytes) -> None:
        """Half an answer, then a closed connection."""
        self._begin_stream()
        self._chunk(b"half")
        self.connection.shutdown(socket.SHUT_RDWR)

    def _slow(self, request: dict[str, Any], body: bytes) -> None:
        """Wait until the client disconnects, and log it."""
        if request.get("begin"):
            self._begin_stream()
            self._chunk(b"first")
        print("fake: busy", flush=True)
        select.select([self.connection], [], [], 30)
        print("fake: the client disconnected", flush=True)
        self.close_connection = True

    def _log(self, request: dict[str, Any], body: bytes) -> None:
        print("fake:", request["text"], flush=True)
        self._answer(200, b"{}")

    def _die(self, request: dict[str, Any], body: bytes) -> None:
        print("RuntimeError: the engine crashed", flush=True)
        os._exit(1)

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Amzn-SageMaker-New-Session-Id", "session-1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Does not print disconnected clients: its output is the engine's log."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    print("fake: INFO starting with", json.dumps(sys.argv[1:]), flush=True)
    if HOW == "crash":
        sys.exit("ValueError: the head does not belong to this target")
    port = int(sys.argv[sys.argv.index("--port") + 1])
    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
