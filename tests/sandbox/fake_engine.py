"""A stand-in for vLLM's server that does on demand what the real one cannot be made to do.

It is put where ``peagle_serve`` looks for vLLM, so everything before it is the real thing.
``FAKE_ENGINE`` in the model's environment says how it starts: ``crash``, ``never-healthy``.
The body of a request says how it answers: ``{"do": ...}``.
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
        """Quiet."""

    def do_GET(self) -> None:
        self._answer(503 if HOW == "never-healthy" else 200, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body)
        getattr(self, f"_{asked.get('do', 'echo')}")(asked, body)

    def _echo(self, asked: dict[str, Any], body: bytes) -> None:
        """What was asked, how, and of which engine."""
        told = {
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": body.decode(),
            "argv": sys.argv[1:],
            "environment": sorted(os.environ),
        }
        self._answer(200, json.dumps(told).encode())

    def _status(self, asked: dict[str, Any], body: bytes) -> None:
        self._answer(asked["status"], asked["text"].encode())

    def _stream(self, asked: dict[str, Any], body: bytes) -> None:
        self._begin_stream()
        for text in asked["chunks"]:
            self._chunk(text.encode())
            time.sleep(asked.get("gap", 0))
        self._chunk(b"")

    def _break(self, asked: dict[str, Any], body: bytes) -> None:
        """Half an answer, then the connection is gone."""
        self._begin_stream()
        self._chunk(b"half")
        self.connection.shutdown(socket.SHUT_RDWR)

    def _slow(self, asked: dict[str, Any], body: bytes) -> None:
        """Says nothing until the other side is gone, then says so in the log."""
        if asked.get("begin"):
            self._begin_stream()
            self._chunk(b"first")
        print("fake: busy", flush=True)
        select.select([self.connection], [], [], 30)
        print("fake: the client is gone", flush=True)
        self.close_connection = True

    def _say(self, asked: dict[str, Any], body: bytes) -> None:
        print("fake:", asked["text"], flush=True)
        self._answer(200, b"{}")

    def _die(self, asked: dict[str, Any], body: bytes) -> None:
        print("RuntimeError: the engine has had enough", flush=True)
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
    """Says nothing of clients that hang up: its output is the engine's log."""

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
