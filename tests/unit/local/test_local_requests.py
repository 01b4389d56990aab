"""Errors of an engine of this machine become errors that name its log."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from peagle.engine import local
from peagle.engine import state as records
from peagle.engine.process import EngineProcess, free_port
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError
from tests.support import raises_code

Answers = Callable[[str, str], int]
BODY = {"prompt": "Hi", "stream": True}
PIECE = 'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\n'


@pytest.fixture
def answers() -> Iterator[Answers]:
    """``answers("200 OK", text)`` starts an engine that answers so, and returns its port."""
    with closing(_Engines()) as engines:
        yield engines.start


class _Engines:
    def __init__(self) -> None:
        self._servers: list[socketserver.TCPServer] = []

    def start(self, status: str, body: str) -> int:
        reply = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline().strip():
                    pass
                self.wfile.write(reply)

        server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self._servers.append(server)
        return int(server.server_address[1])

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


def _recorded(name: str, port: int, started_at: float) -> None:
    process = EngineProcess(2**22 + 1, 1, port, "log")
    records.write(LocalEngine(name, "a+b", "a", "0.28.0", {}, (), process, started_at))


def test_a_rejected_request_names_the_log_of_the_engine_on_that_port(
    own_home: Path, answers: Answers
) -> None:
    port = answers("400 Bad Request", '{"error": "too long"}')
    for name, on, started_at in (("old", port, 1.0), ("new", port, 2.0), ("other", 1, 3.0)):
        _recorded(name, on, started_at)

    for ask in (local.ask, lambda *given: list(local.stream(*given))):
        with pytest.raises(EngineError) as refused:
            ask(port, BODY)

        assert refused.value.message.endswith('rejected a request (400): {"error": "too long"}')
        assert refused.value.command == ("peagle", "local", "logs", "new")


@pytest.mark.parametrize(
    "error", ['{"error": {"message": "engine died"}}', '{"object": "error", "m": "engine died"}']
)
def test_an_error_within_a_stream_comes_after_what_was_streamed(
    own_home: Path, answers: Answers, error: str
) -> None:
    port = answers("200 OK", f"{PIECE}data: {error}\n\ndata: [DONE]\n\n")
    pieces = local.stream(port, BODY)

    assert next(pieces).text == "Hello"
    with pytest.raises(EngineError) as failed:
        next(pieces)
    assert "engine died" in failed.value.message


def test_an_engine_that_is_cut_off_does_not_end_its_answer(
    own_home: Path, answers: Answers
) -> None:
    pieces = local.stream(answers("200 OK", PIECE), BODY)

    assert next(pieces).text == "Hello"
    with raises_code("incomplete-response", EngineError):
        next(pieces)


def test_an_engine_that_does_not_listen(own_home: Path) -> None:
    port = free_port()

    with raises_code("no-answer", EngineError) as silent:
        local.counters(port)

    assert str(port) in silent.value.message
    assert silent.value.fix == ""
    assert silent.value.command == ()
