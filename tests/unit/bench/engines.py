"""Servers with OpenAI's protocol and vLLM's counters, on loopback in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class StubEngine:
    """An engine that accepts ``accepted`` of the drafts of each request: 40 drafts, of 3 tokens.

    ``drafts`` 0: it does not speculate. ``metrics`` false: it has no such page. ``refuses``: it
    rejects every prompt.
    """

    models: tuple[str, ...] = ("peagle/tiny",)
    accepted: int = 60
    drafts: int = 40
    metrics: bool = True
    refuses: bool = False
    text: str = "an answer"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)

    def page(self) -> str:
        if not self.metrics:
            return "python_info 1"
        lines = ["vllm:num_requests_waiting 0.0"]
        if self.drafts:
            rounds = 1 + len(self.bodies)  # some were counted before
            counts = {"drafts": self.drafts, "draft_tokens": 3 * self.drafts,
                      "accepted_tokens": self.accepted}  # fmt: skip
            lines += [
                f'vllm:spec_decode_num_{name}_total{{model_name="m"}} {count * rounds}.0'
                for name, count in counts.items()
            ]
        return "\n".join(lines)

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        if path == "/metrics":
            return 200, self.page().encode()
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": name} for name in self.models]}).encode()
        if self.refuses:
            return 400, b'{"error": {"message": "the prompt is too long"}}'
        self.bodies.append(body or {})
        choice = {"text": self.text, "message": {"content": self.text}}
        return 200, json.dumps({"choices": [choice]}).encode()


@contextmanager
def serving(engine: StubEngine, host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """The port at which the engine answers."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Do not log requests."""

        def do_GET(self) -> None:
            self._send(*engine.answer(self.path, None))

        def do_POST(self) -> None:
            engine.keys.add(self.headers["Authorization"])
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(*engine.answer(self.path, body))

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer((host, port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
