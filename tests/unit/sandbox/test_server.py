"""The sandbox's HTTP server when no answer can be given."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from peagle.sandbox.server import RequestHandler, Server


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("reset")])
def test_a_request_without_an_answer_ends_its_connection(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        raise error

    server = Server("127.0.0.1", 0, application, RequestHandler)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        client.request("POST", "/", b"{}", {"X-Amz-Target": "SageMaker.CreateModel"})
        with pytest.raises(http.client.RemoteDisconnected):
            client.getresponse()
        client.close()
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    line = rf"\S+ SageMaker\.CreateModel connection lost after \d+ ms: {error}\n"
    assert re.fullmatch(line, capsys.readouterr().out)
