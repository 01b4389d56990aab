"""An engine of this machine that answers with something else than vLLM: errors with a fix."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from peagle.engine import local
from peagle.engine import state as records
from peagle.engine.process import EngineProcess, free_port, start_time
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError, UserError
from peagle.protocol import LARGEST_EVENT, request_body
from tests.support import raises_code
from tests.unit.answers import INVALID

BODY = request_body("Hello", chat=True, max_tokens=5)
STREAM = request_body("Hello", chat=True, max_tokens=5, stream=True)
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that answers every request with these bytes, and closes the connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, connection.makefile("rb") as request:
                    # Closing a connection with unread bytes resets it.
                    lines = [line.lower() for line in iter(request.readline, b"\r\n")]
                    length = next(line for line in lines if line.startswith(b"content-length:"))
                    request.read(int(length.partition(b":")[2]))
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_answer_is_an_error(name: str) -> None:
    with answering(OK + b"\r\n" + INVALID[name]) as port:
        with raises_code("invalid-response", EngineError):
            local.ask(port, BODY)
        with raises_code("invalid-response", EngineError):
            local.counters(port)


STREAMS = {
    "no JSON": (OK + b"\r\ndata: busy\n\n", "invalid-response"),
    "an endless event": (OK + b"\r\ndata: " + b"x" * (LARGEST_EVENT + 1), "invalid-response"),
    "nothing": (OK + b"\r\n", "incomplete-response"),
    "an error of text": (OK + b'\r\ndata: {"error": "died"}\n\n', "engine-failed"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_an_invalid_stream_is_an_error(name: str) -> None:
    answer, code = STREAMS[name]
    with answering(answer) as port, raises_code(code, EngineError):
        list(local.stream(port, STREAM))


@pytest.mark.parametrize(("status", "code"), [(400, "engine-rejected"), (500, "engine-failed")])
def test_an_error_of_the_engine_is_told_from_a_rejected_request(status: int, code: str) -> None:
    answer = f"HTTP/1.1 {status} No\r\n\r\ndied".encode()
    with answering(answer) as port, raises_code(code, EngineError):
        local.ask(port, {})


HTTP = {
    "no HTTP": b"\x00\xff\xfe",
    "endless headers": OK + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    "a chunk cut short": CHUNKED + b"ffff\r\ndata: ",
    "a negative chunk": CHUNKED + b"-5\r\ndata: \n\n",
    "a longer length": OK + b"Content-Length: 100\r\n\r\n{",
    "a refusal that is not UTF-8": b"HTTP/1.1 400 Bad\r\n\r\n\xff\xfe",
}


@pytest.mark.parametrize("name", HTTP)
def test_invalid_http_is_an_error(name: str) -> None:
    with answering(HTTP[name]) as port:
        with pytest.raises(EngineError) as whole:
            local.ask(port, BODY)
        with pytest.raises(EngineError) as streamed:
            list(local.stream(port, STREAM))
    for raised in (whole, streamed):
        assert "\n" not in str(raised.value)
        assert len(raised.value.message) < 600


def test_a_rejected_request_names_the_log_of_the_engine_on_that_port(own_home: Path) -> None:
    answer = b'HTTP/1.1 400 Bad Request\r\n\r\n{"error": "too long"}'
    with answering(answer) as port:
        for name, on, started_at in (("old", port, 1.0), ("new", port, 2.0), ("other", 1, 3.0)):
            process = EngineProcess(2**22 + 1, 1, on, "log")
            records.write(LocalEngine(name, "a+b", "a", "0.28.0", {}, (), process, started_at))
        for ask in (local.ask, lambda *arguments: list(local.stream(*arguments))):
            with pytest.raises(EngineError) as refused:
                ask(port, BODY)
            assert refused.value.message.endswith('rejected a request (400): {"error": "too long"}')
            assert refused.value.command == ("peagle", "local", "logs", "new")
    with raises_code("no-answer", EngineError):
        local.counters(free_port())


def test_only_engines_that_run_are_offered_as_local(own_home: Path) -> None:
    here = EngineProcess(os.getpid(), start_time(os.getpid()) or 0, 1, "log")
    gone = EngineProcess(2**22 + 1, 1, 1, "log")
    for name, process in (("a", here), ("b", here), ("dead", gone)):
        records.write(LocalEngine(name, "x+y", "x", "0.28.0", {}, (), process, 1.0, ready=True))
    with raises_code("several-engines", UserError) as raised:
        records.ready_engine("local")
    assert raised.value.message.endswith("running: a, b")


def test_an_error_within_a_stream_comes_after_what_was_streamed() -> None:
    piece = b'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\n'
    error = b'data: {"object": "error", "m": "engine died"}\n\ndata: [DONE]\n\n'
    with answering(OK + b"\r\n" + piece + error) as port:
        pieces = local.stream(port, STREAM)
        assert next(pieces).text == "Hello"
        with pytest.raises(EngineError, match="engine died"):
            next(pieces)
