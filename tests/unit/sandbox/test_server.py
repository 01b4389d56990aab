"""The sandbox's HTTP server: which connections it keeps, and when no answer can be given."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from peagle.sandbox.server import RequestHandler, Server

Application = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]


@contextmanager
def serving(application: Application) -> Iterator[http.client.HTTPConnection]:
    """A client of a server with this application."""
    server = Server("127.0.0.1", 0, application, RequestHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        yield client
    finally:
        client.close()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("reset")])
def test_a_request_without_an_answer_ends_its_connection(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        raise error

    with serving(application) as client:
        client.request("POST", "/", b"{}", {"X-Amz-Target": "SageMaker.CreateModel"})
        with pytest.raises(http.client.RemoteDisconnected):
            client.getresponse()
    line = rf"\S+ SageMaker\.CreateModel connection lost after \d+ ms: {error}\n"
    assert re.fullmatch(line, capsys.readouterr().out)


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answers with the body, or as the path says."""
    path = environ["PATH_INFO"]
    if path == "/bug":
        raise ValueError("a bug")
    body = b"" if path == "/unread" else environ["wsgi.input"].read()
    headers = {"/chunks": [], "/short": [("Content-Length", str(len(body) + 1))]}
    start_response("200 OK", headers.get(path, [("Content-Length", str(len(body)))]))
    return [body[:2], body[2:]]


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [("POST", "/", b"four"), ("POST", "/chunks", b"four"), ("HEAD", "/", b"")],
)
def test_a_connection_is_kept_for_the_next_request(method: str, path: str, answer: bytes) -> None:
    with serving(application) as client:
        for _ in range(2):
            client.request(method, path, b"four")
            assert client.getresponse().read() == answer
            assert client.sock is not None, "kept"


@pytest.mark.parametrize("headers", [{"Connection": "close"}, {"Transfer-Encoding": "chunked"}])
def test_a_connection_ends_where_its_client_says_so_or_it_is_uncertain_where_a_request_ends(
    headers: dict[str, str],
) -> None:
    with serving(application) as client:
        chunked = "Transfer-Encoding" in headers
        body = iter([b"four"]) if chunked else b"four"
        client.request("POST", "/", body, headers, encode_chunked=chunked)
        assert client.getresponse().getheader("Connection") == "close"


def test_a_body_that_was_not_read_ends_the_connection_after_the_answer() -> None:
    with serving(application) as client:
        client.request("POST", "/unread", bytes(1 << 20))
        answer = client.getresponse()
        assert (answer.status, answer.getheader("Connection")) == (200, "close")


def test_an_answer_shorter_than_it_says_ends_the_connection() -> None:
    with serving(application) as client:
        client.request("POST", "/short", b"four")
        with pytest.raises(http.client.IncompleteRead):
            client.getresponse().read()


def test_a_bug_is_an_answer_and_ends_the_connection(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(application) as client:
        client.request("GET", "/bug")
        answer = client.getresponse()
        assert (answer.status, answer.getheader("Connection")) == (500, "close")
    assert "ValueError: a bug" in capsys.readouterr().err


def test_many_open_connections_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.sandbox.server.KEPT_CONNECTIONS", 0)
    with serving(application) as client:
        client.request("POST", "/", b"four")
        assert client.getresponse().getheader("Connection") == "close"


@pytest.mark.thorough
def test_an_idle_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.sandbox.connection.IDLE_SECONDS", 0.05)
    with serving(application) as client:
        client.request("POST", "/", b"four")
        assert client.getresponse().read() == b"four"
        assert client.sock.recv(1) == b""
