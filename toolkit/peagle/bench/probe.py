"""Ask a server once before a load: does it answer, stream and count tokens; what do words cost."""

from __future__ import annotations

import http.client
import json
import random
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from peagle.bench.sender import LoadServer
from peagle.bench.workloads import Tokens, random_prompt
from peagle.errors import EngineError, Fix, UserError, count_of, parsing
from peagle.protocol import (
    Counters,
    EventSplitter,
    engine_message,
    parse_counters,
    parse_response,
    request_body,
)
from peagle.text import sanitize
from peagle_serve.counters import sum_counters

PROBE_SECONDS = 300.0
"""How long an answer of a few tokens may take; an engine may compile first."""

_LARGEST = 16 << 20
_SHOWN = 300
_TOKENS = 8
_FEW_WORDS, _MANY_WORDS = 8, 40


class NoStreaming(UserError, code="no-streaming"):
    """The server sends whole answers, or no token counts: latencies cannot be measured."""


@dataclass(frozen=True)
class Probe:
    """What a server does: how it counts words, and whether it accepts ``ignore_eos``."""

    tokens: Tokens
    fixed_length: bool


def probe(server: LoadServer) -> Probe:
    """Send two short requests.

    Raises NoStreaming, UserError for a rejected key, model or address, and EngineError when the
    server fails or does not answer.
    """
    draw = random.Random()
    fixed_length = True
    try:
        few = _prompt_tokens(server, random_prompt(_FEW_WORDS, draw), fixed_length)
    except _Rejected:
        fixed_length = False
        few = _prompt_tokens(server, random_prompt(_FEW_WORDS, draw), fixed_length)
    many = _prompt_tokens(server, random_prompt(_MANY_WORDS, draw), fixed_length)
    per_word = max((many - few) / (_MANY_WORDS - _FEW_WORDS), 0.1)
    return Probe(Tokens(max(few - per_word * _FEW_WORDS, 0.0), per_word), fixed_length)


class _Rejected(UserError, code="request-refused"):
    """The server rejects the body of a request."""


def _prompt_tokens(server: LoadServer, prompt: str, fixed_length: bool) -> int:
    """The tokens of the prompt as the server counts them. Raises as ``probe`` does."""
    body = request_body(prompt, chat=server.chat, max_tokens=_TOKENS, stream=True)
    body |= {"model": server.model} | ({"ignore_eos": True} if fixed_length else {})
    route = "chat/completions" if server.chat else "completions"
    with _reply(server, "POST", f"/{route}", body) as reply:
        if reply.status != http.HTTPStatus.OK:
            raise _refused(server, reply.status, reply.read(1 << 16))
        kind = reply.getheader("Content-Type") or "no type"
        if not kind.startswith("text/event-stream"):
            raise NoStreaming(
                f"{server.base_url} does not stream: it answers with {sanitize(kind, 60)}",
                "use a server that supports stream: true",
            )
        return usage_in(_events(reply), server.base_url)


def usage_in(events: Iterator[str], name: str) -> int:
    """The number of prompt tokens in a stream of a chat or completion.

    Raises EngineError for an invalid stream and NoStreaming for one without token counts.
    """
    found = None
    for event in events:
        if event == "[DONE]":
            break
        document = parse_response(event)
        with parsing("the engine's response", EngineError):
            if usage := document.get("usage"):
                found = count_of(usage["prompt_tokens"])
    if found is None:
        raise NoStreaming(
            f"{name} sends no token counts in its streams",
            "use a server that supports stream_options.include_usage",
            "no-usage",
        )
    return found


def served_models(server: LoadServer) -> tuple[str, ...]:
    """The names of the models that the server lists. Raises UserError and EngineError."""
    with _reply(server, "GET", "/models") as reply:
        content = reply.read(_LARGEST)
        if reply.status != http.HTTPStatus.OK:
            raise _refused(server, reply.status, content[: 1 << 16])
    document = parse_response(content)
    with parsing("the list of models", EngineError):
        return tuple(str(one["id"]) for one in document["data"])


def metrics_page(server: LoadServer) -> str | None:
    """The server's ``/metrics`` in Prometheus text; ``None`` where it has none."""
    root = LoadServer(server.base_url.removesuffix("/v1"), server.model, key=server.key)
    try:
        with _reply(root, "GET", "/metrics") as reply:
            content = reply.read(_LARGEST)
    except (EngineError, UserError):
        return None
    return content.decode("utf-8", "replace") if reply.status == http.HTTPStatus.OK else None


def counters_of(server: LoadServer) -> Counters | None:
    """The speculation counters in the server's ``/metrics``; ``None`` where it has none."""
    page = metrics_page(server)
    if page is None or "vllm:" not in page:
        return None
    return parse_counters(sum_counters(page))


def _events(reply: http.client.HTTPResponse) -> Iterator[str]:
    splitter, size = EventSplitter(), 0
    while chunk := reply.read1(65_536):
        size += len(chunk)
        if size > _LARGEST:
            raise EngineError("the answer to a short request has no end", code="invalid-response")
        yield from splitter.feed(chunk)


def _refused(server: LoadServer, status: int, content: bytes) -> UserError | EngineError:
    text = engine_message(content.decode("utf-8", errors="replace")).strip()
    message = sanitize(text or f"HTTP {status}", _SHOWN)
    if status in (401, 403):
        return UserError(
            f"{server.base_url} rejects the key ({status}): {message}",
            "set OPENAI_API_KEY",
            "unauthorized",
        )
    if status == http.HTTPStatus.NOT_FOUND:
        return UserError(
            f"{server.base_url} has no such route or model ({status}): {message}",
            "give the URL up to /v1, and the model with --model",
            "no-such-route",
        )
    if 400 <= status < 500 and status != http.HTTPStatus.TOO_MANY_REQUESTS:
        return _Rejected(f"{server.base_url} rejects the request ({status}): {message}")
    return EngineError(
        f"{server.base_url} failed ({status}): {message}", "look at the server's log"
    )


@contextmanager
def _reply(
    server: LoadServer, method: str, route: str, body: dict[str, Any] | None = None
) -> Iterator[http.client.HTTPResponse]:
    """The open response. Raises EngineError when there is none, or when it is cut off."""
    headers = {"Content-Type": "application/json"}
    if server.key:
        headers["Authorization"] = f"Bearer {server.key}"
    connection = None
    try:
        parts = urlsplit(server.base_url)
        connection = _connection(parts.scheme, parts.hostname or "", parts.port)
        data = json.dumps(body).encode() if body is not None else None
        connection.request(method, parts.path.rstrip("/") + route, data, headers)
        with connection.getresponse() as reply:
            yield reply
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = sanitize(error) or type(error).__name__
        fix = Fix("start the server, or correct the URL")
        message = f"{server.base_url} does not answer: {why}"
        raise EngineError(message, fix, "no-answer") from error
    finally:
        if connection:
            connection.close()


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=PROBE_SECONDS, context=context)
    return http.client.HTTPConnection(host, port, timeout=PROBE_SECONDS)
