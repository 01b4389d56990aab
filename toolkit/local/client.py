"""Ask an engine of this machine."""

from __future__ import annotations

import http.client
import json
from typing import Any

from toolkit.errors import EngineError
from toolkit.local.process import LOOPBACK
from toolkit.warm import Answer, Ask, Interrupted
from toolkit.wire import (
    COUNTERS_ATTRIBUTE,
    COUNTERS_HEADER,
    WARM_ATTRIBUTE,
    Counters,
    counters_of,
)

_SECONDS = 600.0


def ask(port: int, body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer to one request body for ``/invocations``. Raises EngineError."""
    return _post(port, json.dumps(body).encode(), {"Content-Type": "application/json"})


def counters(port: int) -> Counters:
    """The engine's speculation counters. Raises EngineError."""
    return counters_of(_post(port, b"", {COUNTERS_HEADER: COUNTERS_ATTRIBUTE}))


def asking_warm(port: int) -> Ask:
    """Questions to the engine's container about what was compiled, for ``toolkit.warm``."""

    def ask(body: dict[str, Any]) -> Answer:
        headers = {"Content-Type": "application/json", COUNTERS_HEADER: WARM_ATTRIBUTE}
        try:
            return Answer(*_exchange(port, json.dumps(body).encode(), headers))
        except EngineError as error:
            raise Interrupted(error) from error

    return ask


def _post(port: int, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    status, text = _exchange(port, body, headers)
    if status != http.HTTPStatus.OK:
        said = text[:300].decode("utf-8", errors="replace")
        raise EngineError(f"the engine refused a request ({status}): {said}", "see its log")
    document: dict[str, Any] = json.loads(text)
    return document


def _exchange(port: int, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body of the answer. Raises EngineError when none comes."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_SECONDS)
    try:
        connection.request("POST", "/invocations", body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(
            f"the engine on port {port} does not answer: {error}", "see its log"
        ) from error
    finally:
        connection.close()
