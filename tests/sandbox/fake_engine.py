"""A stand-in for vLLM's server that fails and delays on request.

It is installed as vLLM, so ``peagle_serve`` is the real one.
``VLLM_FAKE_ENGINE`` in the model's environment selects how it starts: ``crash``,
``never-healthy``, ``out-of-memory``: what vLLM logs then, with some seconds before its end.
The body of a request selects the answer: ``{"do": ...}``. A prompt is answered, and counted in
vLLM's lines of statistics. Files beside this one change the counts: ``acceptance`` has the
acceptance length, and the one engine that takes ``silent`` away drafts nothing.
"""

import json
import os
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_ANSWER_EVENT = 'data: {"choices": [{"delta": {"content": "an answer"}}]}\n\n'
_USAGE_EVENT = 'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 8}}\n\n'
HOW = os.environ.get("VLLM_FAKE_ENGINE", "")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""

    def do_GET(self) -> None:
        self._answer(503 if HOW == "never-healthy" else 200, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        asked = "messages" in request or "prompt" in request
        getattr(self, f"_{request.get('do', 'complete' if asked else 'echo')}")(request, body)

    def _complete(self, request: dict[str, Any], body: bytes) -> None:
        STATISTICS.count(int(request.get("max_tokens", 16)))
        if request.get("stream"):
            usage = [_USAGE_EVENT] if request.get("stream_options") else []
            self._stream({"chunks": [_ANSWER_EVENT, *usage, "data: [DONE]\n\n"]}, body)
            return
        choice = {"text": "an answer", "message": {"content": "an answer"}}
        self._answer(200, json.dumps({"choices": [choice]}).encode())

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


class Statistics:
    """Writes vLLM's lines of statistics; every second token of an answer is a draft."""

    def __init__(self) -> None:
        config = "--speculative-config"
        document = sys.argv[sys.argv.index(config) + 1] if config in sys.argv else "{}"
        self._positions = int(json.loads(document).get("num_speculative_tokens", 0))
        with suppress(OSError):  # it is not there, or nothing can be taken away
            Path(__file__).with_name("silent").unlink()
            self._positions = 0
        self._lock = threading.Lock()
        self._tokens = 0

    def count(self, tokens: int) -> None:
        with self._lock:
            self._tokens += tokens

    def run(self) -> None:
        while True:
            time.sleep(min(0.2, float(os.environ.get("VLLM_LOG_STATS_INTERVAL", "10"))))
            with self._lock:
                tokens, self._tokens = self._tokens, 0
            if tokens:
                self._write(tokens)

    def _write(self, tokens: int) -> None:
        head = f"(APIServer pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')}"
        print(
            f"{head} [loggers.py:271] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
            f"Avg generation throughput: {tokens:.1f} tokens/s, Running: 0 reqs, Waiting: 0 reqs",
            flush=True,
        )
        if not self._positions:
            return
        length = 2.5
        with suppress(FileNotFoundError):
            length = float(Path(__file__).with_name("acceptance").read_text())
        drafts = tokens // 2
        drafted, accepted = drafts * self._positions, round((length - 1) * drafts)
        rates = ", ".join([f"{accepted / drafted:.3f}"] * self._positions)
        print(
            f"{head} [metrics.py:101] SpecDecoding metrics: "
            f"Mean acceptance length: {1 + accepted / drafts:.2f}, "
            f"Accepted throughput: 1.00 tokens/s, Drafted throughput: 2.00 tokens/s, "
            f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
            f"Per-position acceptance rate: {rates}, "
            f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%",
            flush=True,
        )


STATISTICS = Statistics()
OUT_OF_MEMORY = """\
(APIServer pid=1) INFO 11-22 09:00:00 [api_utils.py:272] non-default args: {'model': 'a'}
(Worker pid=3) INFO 11-22 09:00:01 [gpu_model_runner.py:2] Starting to load model a...
(EngineCore pid=2) ERROR 11-22 09:00:02 [core.py:9] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-22 09:00:02 [core.py:9] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-22 09:00:02 [core.py:9] torch.OutOfMemoryError: CUDA out of memory.
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""
SECONDS_BEFORE_END = 2.0


class Server(ThreadingHTTPServer):
    """Does not print disconnected clients: its output is the engine's log."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    print("fake: INFO starting with", json.dumps(sys.argv[1:]), flush=True)
    if HOW == "crash":
        sys.exit("ValueError: the head does not belong to this target")
    if HOW == "out-of-memory":
        print(OUT_OF_MEMORY, flush=True)
        time.sleep(SECONDS_BEFORE_END)
        sys.exit(1)
    threading.Thread(target=STATISTICS.run, daemon=True).start()
    host = _given("--host") or "127.0.0.1"
    Server((host, int(_given("--port"))), Handler).serve_forever()


def _given(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


if __name__ == "__main__":
    main()
