"""The sandbox's HTTP server: how answers are sent, and when none can be given."""

import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from werkzeug.serving import ThreadedWSGIServer as Server

from peagle.engine.process import EngineProcess, start_time
from peagle.engine_log import log_fields, log_text
from peagle.sandbox import client, state
from peagle.sandbox.observability import stock_line
from peagle.sandbox.server import RequestHandler
from peagle_serve.logs import Log, Redactor

Application = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]


@contextmanager
def serving(application: Application) -> Iterator[Server]:
    server = Server("127.0.0.1", 0, application, RequestHandler)
    server.daemon_threads = False  # so that server_close waits for what is still being sent
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the server hands to the connection, call by call."""
    chunks: list[bytes] = []

    class Connection(socket.socket):
        def send(self, data: Any, flags: int = 0, /) -> int:
            count = super().send(data, flags)
            chunks.append(bytes(data[:count]))
            return count

    accept = Server.get_request

    def get_request(server: Server) -> tuple[socket.socket, Any]:
        accepted, address = accept(server)
        return Connection(fileno=accepted.detach()), address

    monkeypatch.setattr(Server, "get_request", get_request)
    return chunks


def _of(parts: Iterable[bytes], *headers: tuple[str, str]) -> Application:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", list(headers))
        return parts

    return application


def test_headers_and_body_are_sent_together(sent: list[bytes]) -> None:
    """terraform-provider-aws loses an answer whose body comes later, and creates twice."""
    body = b'{"EndpointArn": "arn"}'
    with serving(_of([body], ("Content-Length", str(len(body))))) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        client.request("POST", "/", b"{}")
        assert client.getresponse().read() == body
    assert len(sent) == 1
    assert sent[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert sent[0].endswith(b"\r\n\r\n" + body)


def test_each_chunk_of_a_stream_is_sent_when_it_is_there(sent: list[bytes]) -> None:
    read = threading.Event()

    def tokens() -> Iterator[bytes]:
        yield b"first"
        assert read.wait(20)
        yield b"second"

    with serving(_of(tokens())) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        client.request("POST", "/", b"{}")
        answer = client.getresponse()
        assert answer.read(5) == b"first"
        read.set()
        assert answer.read() == b"second"
    assert sent[0].endswith(b"\r\n\r\n5\r\nfirst\r\n")
    assert sent[1:] == [b"6\r\nsecond\r\n", b"0\r\n\r\n"]


def test_a_stream_ends_although_nothing_reads_the_request() -> None:
    with (
        serving(_of([b"first"])) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as client,
        client.makefile("rb") as stream,
    ):
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n")
        received = stream.read(10)
        client.sendall(b"{}")
        while not received.endswith(b"0\r\n\r\n"):
            received += stream.read(1)
    assert b"first" in received


@pytest.mark.parametrize("size", [0, 65_536, 1_000_003])
def test_a_large_body_arrives_whole(size: int, sent: list[bytes]) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    with serving(_of([body[:size]], ("Content-Length", str(size)))) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        client.request("GET", "/")
        assert client.getresponse().read() == body[:size]
    assert b"".join(sent).endswith(b"\r\n\r\n" + body[:size])


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    """botocore asks before it sends an object; without an answer it waits a second."""
    with (
        serving(_of([b"ok"], ("Content-Length", "2"))) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as client,
    ):
        client.sendall(
            b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert client.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{}")
        client.shutdown(socket.SHUT_WR)
        assert client.makefile("rb").read().endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("reset")])
def test_a_request_without_an_answer_ends_its_connection(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        raise error

    logged: list[str] = []
    monkeypatch.setattr("peagle.sandbox.server._log", logged.append)
    with serving(application) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        client.request("POST", "/", b"{}", {"X-Amz-Target": "SageMaker.CreateModel"})
        with pytest.raises(http.client.RemoteDisconnected):
            client.getresponse()
        client.close()
    assert logged == [f"SageMaker.CreateModel connection lost: {error}"]


# State files of the sandbox that are damaged: one is ignored, the others and the command go on.
DAMAGED = [
    b"", b"{", b"null", b"\xff\xfe", b"[" * 100_000,
    b'{"pid": "*", "started": " ", "port": 1, "log": ""}',
    b'{"pid": 1, "started": 1, "port": 1, "log": ""}',
    b'{"pid": 99999999999999999999, "started": 1, "port": 1, "log": ""}',
    b'{"pid": 7, "started": 1, "port": true, "log": ""}',
    b'{"pid": 7, "started": 1, "port": 1, "log": [], "container": {}}',
    b'{"of": "another version"}',
]  # fmt: skip


@pytest.fixture
def folder(own_home: Path) -> Path:
    folder = own_home / "sandbox"
    (folder / "engines").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: content[:40])
def test_a_damaged_record_stops_one_entry_and_not_the_command(folder: Path, content: bytes) -> None:
    started = start_time(os.getpid())
    assert started is not None
    living = EngineProcess(os.getpid(), started, 1, "")
    (folder / "engines" / f"{living.pid}.json").write_text(json.dumps(asdict(living)))
    others = (f"engines/{living.pid + 1}.json", f"engines/{living.pid + 2}.json")
    for name in ("daemon.json", *others):
        (folder / name).write_bytes(content)
    assert state.living_engines() == (living,)
    assert client.sandbox_status() == client.Status(False, leftover_engines=1)
    assert state.read_engine_kind() == "process"


# What the sandbox keeps of an engine's log, and the log of AWS's plain image.
def written_by_ours(line: str) -> str:
    """A line of the engine as the entrypoint writes it."""
    reading, writing = os.pipe()
    try:
        Log(Redactor({}), writing).engine(line)
        return os.read(reading, 65536).decode().rstrip("\n")
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("line", [
    "(APIServer pid=7) INFO 11-22 08:38:19 [metrics.py:120] SpecDecoding metrics: Mean ...",
    "Traceback (most recent call last):",
    "ValueError: the head does not belong to this target",
])  # fmt: skip
def test_lines_of_vllm_get_their_form_back(line: str) -> None:
    ours = written_by_ours(line)
    assert ours.startswith('{"time":')
    stock, _, rest = stock_line(ours).partition(" [metrics")
    expected, _, _ = line.partition(" [metrics")
    if rest:  # the time is that of the entrypoint
        stock, expected = stock[:22], expected[:22]
    assert stock == expected


def test_the_entrypoint_s_own_lines_are_left_out_or_notes() -> None:
    reading, writing = os.pipe()
    log = Log(Redactor({}), writing)
    log.info("starting vLLM", event="start", argv=["vllm"])
    log.error("the head is missing", "mount it", event="refused", cause="head", exit_code=2)
    os.close(writing)
    with os.fdopen(reading) as stream:
        started, refused = stream.read().splitlines()
    assert stock_line(started) == ""
    assert log_text(stock_line(refused)) == "sandbox: error: the head is missing (mount it)"
    assert log_fields(stock_line(refused))["cause"] == "head"
    assert stock_line("sandbox: a note") == "sandbox: a note"
