"""A server of known timings with OpenAI's streams: the first output after a fixed time, then
outputs at a fixed interval."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class SimulatedTiming:
    """Seconds to the first output and between outputs, of two tokens each.

    ``fails_after``: from this request on, the server answers with an error (``fails_with``), or
    closes the connection in the middle of the answer (0). ``streams``: else one whole answer.
    ``accepts_ignore_eos``: else such a request is rejected. ``metrics`` is its ``/metrics`` page.
    """

    ttft: float = 0.2
    itl: float = 0.02
    fails_after: int | None = None
    fails_with: int = 500
    streams: bool = True
    accepts_ignore_eos: bool = True
    metrics: str = ""


@dataclass
class SimulatedServer:
    """A running server. ``keys`` are the headers of authorization that it has seen."""

    timing: SimulatedTiming
    base_url: str = ""
    requests: int = 0
    keys: set[str] = field(default_factory=set)


@contextmanager
def simulated_server(timing: SimulatedTiming) -> Iterator[SimulatedServer]:
    """Run the server on a free port of this machine, in threads."""
    server = SimulatedServer(timing)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log requests."""

        def do_GET(self) -> None:
            if self.path.endswith("/models"):
                self._whole(200, {"object": "list", "data": [{"id": "simulated"}]})
            elif timing.metrics:
                self._whole(200, timing.metrics)
            else:
                self._whole(404, {"error": {"message": f"no {self.path}", "code": 404}})

        def do_POST(self) -> None:
            began = time.perf_counter()
            server.keys |= {key} if (key := self.headers["Authorization"]) else set()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not timing.accepts_ignore_eos and "ignore_eos" in body:
                self._whole(400, {"error": {"message": "ignore_eos is unknown"}})
                return
            server.requests += 1
            fails = timing.fails_after is not None and server.requests > timing.fails_after
            if fails and timing.fails_with:
                self._whole(timing.fails_with, {"error": {"message": "EngineCore died"}})
            elif not timing.streams:
                self._whole(200, {"choices": [{"message": {"content": "word"}, "text": "word"}]})
            else:
                self._stream(body, began, fails)

        def _stream(self, body: dict[str, Any], began: float, is_cut_off: bool) -> None:
            """Stream one answer; the words of a prompt count as its tokens, the template as 4."""
            texts = [
                body.get("prompt", ""),
                *(message["content"] for message in body.get("messages", ())),
            ]
            tokens = body["max_tokens"]
            outputs = -(-tokens // 2)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(outputs):
                time.sleep(
                    max(0.0, began + timing.ttft + number * timing.itl - time.perf_counter())
                )
                if is_cut_off and number == outputs // 2:
                    self.close_connection = True
                    return
                self._event({"choices": [{"delta": {"content": "word "}, "text": "word "}]})
            prompt_tokens = len(" ".join(texts).split()) + 4
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
            self._event({"choices": [], "usage": usage})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _event(self, document: dict[str, Any]) -> None:
            self._chunk(f"data: {json.dumps(document)}\n\n".encode())

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def _whole(self, status: int, content: dict[str, Any] | str) -> None:
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    with serving(Handler) as port:
        server.base_url = f"http://127.0.0.1:{port}/v1"
        yield server


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1", port: int = 0
) -> Iterator[int]:
    """The port, a free one by default, at which the handler answers in threads."""
    running = ThreadingHTTPServer((host, port), handler)
    running.daemon_threads = True
    running.block_on_close = False
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield running.server_address[1]
    finally:
        running.shutdown()
        running.server_close()


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
def engine_serving(engine: StubEngine, host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
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

    with serving(Handler, host, port) as at:
        yield at
