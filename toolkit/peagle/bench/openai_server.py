"""Send complete requests, one or several at a time, to a server with OpenAI's protocol.

The load of ``peagle bench`` comes from its sender; this is for prompts whose answers are read.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any
from urllib.parse import urlsplit

from peagle.bench.prompts import Prompt
from peagle.errors import EngineError, EngineFailed, Fix, PeagleError, UserError
from peagle.parallel import run_parallel
from peagle.protocol import engine_message, parse_response
from peagle.text import sanitize

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends one request body and returns the whole answer."""

ANSWER_SECONDS = 600
"""How long one answer may take."""

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable: the key for a URL."""

_LARGEST_ANSWER = 64 << 20
_SHOWN = 300
_REFUSALS = (400, 413, 422)
_BUSY = (429, 503)


class PromptRefused(UserError, code="prompt-refused"):
    """The engine rejects this request: too long for the context, or an invalid field."""


@dataclass(frozen=True)
class RefusedPrompt:
    """The engine rejected the prompt of this line of the file."""

    line: int
    message: str


@dataclass(frozen=True)
class OpenAiServer:
    """A server at ``base_url``, which ends in ``/v1``, that serves ``model``. ``log`` is the
    command that prints its log, where one is known. ``key`` is a bearer token. ``chat``: prompts
    are sent as chats, else as completions."""

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)
    log: tuple[str, ...] = ()
    chat: bool = True

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a chat or a completion.

        Raises PromptRefused where this request is rejected, UserError where any would be, and
        EngineError without an answer, or for one that is not of the protocol.
        """
        route = "chat/completions" if "messages" in body else "completions"
        status, content = self._post(route, json.dumps({"model": self.model, **body}).encode())
        if status == http.HTTPStatus.OK:
            return parse_response(content)
        raise self.refusal(route, status, content)

    def refusal(self, route: str, status: int, content: bytes) -> PeagleError:
        """The error that a request to ``route`` was answered with: PromptRefused where this request
        is rejected, UserError where any would be, EngineError where the server fails."""
        text = content[: 1 << 16].decode("utf-8", errors="replace")
        message = sanitize(engine_message(text).strip() or f"HTTP {status}", _SHOWN)
        if status in _REFUSALS:
            why = message.partition(" Please reduce ")[0].rstrip(".")
            return PromptRefused(why, "shorten the prompt or lower max_tokens")
        if status in (401, 403):
            return UserError(f"{self.base_url} rejects the key ({status}): {message}",
                             f"set {KEY_VARIABLE}", "unauthorized")  # fmt: skip
        if status == http.HTTPStatus.NOT_FOUND:
            return UserError(f"{self.base_url}/{route} does not exist: {message}",
                             "give the URL up to /v1 and the name of a served model",
                             "no-such-route")  # fmt: skip
        what = "is overloaded" if status in _BUSY else "failed"
        return EngineFailed(f"{self.base_url} {what} ({status}): {message}", self.fix)

    @property
    def fix(self) -> Fix:
        """Where to look when the server fails."""
        return Fix("read its log" if self.log else "look at the server's log", self.log)

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and content of a page, by its path from the server's root.

        Raises EngineError without an answer.
        """
        with self._exchange("GET", path, None) as reply:
            return reply.status, self._content(reply)

    def path(self, route: str) -> str:
        """The path from the server's root of a route below the base URL."""
        return f"{urlsplit(self.base_url).path.rstrip('/')}/{route}"

    def _post(self, route: str, body: bytes) -> tuple[int, bytes]:
        with self.reply(route, body) as reply:
            return reply.status, self._content(reply)

    def _content(self, reply: http.client.HTTPResponse) -> bytes:
        content = reply.read(_LARGEST_ANSWER + 1)
        if len(content) > _LARGEST_ANSWER:
            message = f"an answer of {self.base_url} has more than {_LARGEST_ANSWER:,} bytes"
            raise EngineError(message, "ask for fewer tokens", "invalid-response")
        return content

    def reply(self, route: str, body: bytes) -> AbstractContextManager[http.client.HTTPResponse]:
        """The open response to a request. Raises EngineError when there is none, or when it is cut
        off."""
        return self._exchange("POST", self.path(route), body)

    @contextmanager
    def _exchange(
        self, method: str, path: str, body: bytes | None
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        connection: http.client.HTTPConnection | None = None
        try:
            parts = urlsplit(self.base_url)
            connection = _connection(parts.scheme, parts.hostname or "", parts.port)
            connection.request(method, path, body, headers)
            with connection.getresponse() as reply:
                yield reply
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = sanitize(error) or type(error).__name__
            raise EngineError(
                f"{self.base_url} does not respond: {why}", self.fix, "no-answer"
            ) from error
        finally:
            if connection:
                connection.close()


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)
    return http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)


def ask_together(
    ask: Ask, asked: Sequence[tuple[Prompt, dict[str, Any]]], concurrency: int
) -> tuple[list[dict[str, Any]], list[RefusedPrompt]]:
    """The answers to requests, of which ``concurrency`` are sent at a time, and those refused.

    Raises what ``ask`` raises, except PromptRefused, and EngineError without an answer in time.
    """

    def send(prompt: Prompt, body: dict[str, Any]) -> dict[str, Any] | RefusedPrompt:
        try:
            return ask(body)
        except PromptRefused as error:
            return RefusedPrompt(prompt.line, error.message)

    calls = [partial(send, prompt, body) for prompt, body in asked]
    try:
        seconds = ANSWER_SECONDS * ceil(len(calls) / concurrency)
        found = run_parallel(calls, time.monotonic() + seconds, concurrency)
    except TimeoutError:
        raise EngineError(
            f"an answer takes longer than {ANSWER_SECONDS} s", "lower --max-tokens", "no-answer"
        ) from None
    refused = [one for one in found if isinstance(one, RefusedPrompt)]
    return [one for one in found if not isinstance(one, RefusedPrompt)], refused
