"""Send requests to an engine of this machine."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peagle.engine.process import LOOPBACK
from peagle.engine.state import local_engines
from peagle.errors import EngineError, Fix
from peagle.protocol import Counters, EventSplitter, Piece, parse_counters, piece_of
from peagle_serve.contract import ATTRIBUTES_HEADER, COUNTERS_ATTRIBUTE

_SECONDS = 600.0
_CHUNK_BYTES = 65_536
_JSON = {"Content-Type": "application/json"}


def ask(port: int, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request body for ``/invocations``. Raises EngineError."""
    return _post(port, json.dumps(body).encode(), _JSON)


def stream(port: int, body: dict[str, Any]) -> Iterator[Piece]:
    """The answer in pieces as they arrive. ``body`` must request streaming.

    Raises EngineError when the stream contains an error or ends early.
    """
    splitter = EventSplitter()
    with _reply(port, json.dumps(body).encode(), _JSON) as reply:
        if reply.status != http.HTTPStatus.OK:
            raise _refused(port, reply.status, reply.read())
        while chunk := reply.read1(_CHUNK_BYTES):
            for data in splitter.feed(chunk):
                if data == "[DONE]":
                    return
                document = json.loads(data)
                if "error" in document or document.get("object") == "error":
                    raise EngineError(
                        f"the engine ended the stream: {data[:300]}", _read_the_log(port)
                    )
                yield piece_of(document)
    raise EngineError(
        "the stream ended before the answer was complete",
        _read_the_log(port),
        "incomplete-response",
    )


def counters(port: int) -> Counters:
    """The engine's speculation counters. Raises EngineError."""
    return parse_counters(_post(port, b"", {ATTRIBUTES_HEADER: COUNTERS_ATTRIBUTE}))


def _post(port: int, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    status, text = exchange(port, body, headers)
    if status != http.HTTPStatus.OK:
        raise _refused(port, status, text)
    document: dict[str, Any] = json.loads(text)
    return document


def _refused(port: int, status: int, text: bytes) -> EngineError:
    answer = text[:300].decode("utf-8", errors="replace")
    return EngineError(f"the engine rejected a request ({status}): {answer}", _read_the_log(port))


def _read_the_log(port: int) -> Fix:
    """The command that prints the log of the engine on ``port``; empty if none is recorded."""
    recorded = [engine for engine in local_engines() if engine.process.port == port]
    if not recorded:
        return Fix("")
    newest = max(recorded, key=lambda engine: engine.started_at)
    return Fix("read the log", ("peagle", "local", "logs", newest.name))


def exchange(port: int, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body of the answer. Raises EngineError without an answer."""
    with _reply(port, body, headers) as reply:
        return reply.status, reply.read()


@contextmanager
def _reply(port: int, body: bytes, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
    """The open response. Raises EngineError when there is none, or when it is cut off."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_SECONDS)
    try:
        connection.request("POST", "/invocations", body, headers)
        with connection.getresponse() as reply:
            yield reply
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(
            f"the engine on port {port} does not respond: {error}", _read_the_log(port)
        ) from error
    finally:
        connection.close()
