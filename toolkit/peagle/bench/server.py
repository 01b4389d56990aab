"""A server with OpenAI's protocol: ask it, and what it is before a load.

The load of ``peagle bench`` comes from aiperf; this is for prompts whose answers are read, and for
what must be known first: whether it streams and counts tokens, and how many a word costs.
"""

from __future__ import annotations

import http
import http.client
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any
from urllib.parse import urlsplit

from peagle.bench.result import BenchWorkload
from peagle.bench.workloads import Prompt, Tokens, random_prompt
from peagle.errors import EngineError, EngineFailed, Fix, PeagleError, UserError, count_of, parsing
from peagle.parallel import run_parallel
from peagle.protocol import (
    Counters,
    EventSplitter,
    engine_message,
    parse_counters,
    parse_response,
    request_body,
)
from peagle.text import sanitize
from peagle_serve.middleware import sum_counters

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends one request body and returns the whole answer."""

ANSWER_SECONDS = 600
"""How long one answer may take."""

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable: the key for a URL."""

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
        status, _, content = self.post(route, body)
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

    def post(self, route: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
        """Status, content type and content of the answer to a request to a route below the base
        URL. Raises EngineError without an answer, or for one that is cut off."""
        content = json.dumps({"model": self.model, **body}).encode()
        return self._exchange("POST", self._path(route), content)

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and content of a page, by its path from the server's root, or by its route below
        the base URL. Raises EngineError without an answer."""
        status, _, content = self._exchange("GET", self._path(path), None)
        return status, content

    def _path(self, route: str) -> str:
        below = urlsplit(self.base_url).path.rstrip("/")
        return route if route.startswith("/") else f"{below}/{route}"

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, str, bytes]:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            parts = urlsplit(self.base_url)
            secure = parts.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            connection = kind(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
            with closing(connection):
                connection.request(method, path, body, headers)
                reply = connection.getresponse()
                return reply.status, reply.getheader("Content-Type") or "", reply.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = sanitize(error) or type(error).__name__
            raise EngineError(
                f"{self.base_url} does not respond: {why}", self.fix, "no-answer"
            ) from error


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
        answers = run_parallel(calls, time.monotonic() + seconds, concurrency)
    except TimeoutError:
        raise EngineError(
            f"an answer takes longer than {ANSWER_SECONDS} s", "lower --max-tokens", "no-answer"
        ) from None
    refused = [answer for answer in answers if isinstance(answer, RefusedPrompt)]
    return [answer for answer in answers if not isinstance(answer, RefusedPrompt)], refused


_TOKENS = 8
_FEW_WORDS, _MANY_WORDS = 8, 100
_OWN_FORMAT = ("gpt-oss",)
"""In names of models whose chats have a format of their own in vLLM (Harmony), which forbids tokens
after the end: ``ignore_eos`` would be accepted, and the stream end with an error."""
_WAITING = "vllm:num_requests_waiting"


class NoStreaming(UserError, code="no-streaming"):
    """The server sends whole answers, or no token counts: latencies cannot be measured."""


@dataclass(frozen=True)
class Probe:
    """What a server does: how it counts words, whether it accepts ``ignore_eos``, and the tokens of
    its context; ``None`` if it does not say."""

    tokens: Tokens
    fixed_length: bool
    context: int | None = None

    def require_room(self, workload: BenchWorkload) -> None:
        """Raise UserError for a workload whose requests exceed the context."""
        if self.context is None:
            return
        size = workload.size
        words = max((len(prompt.split()) for prompt in workload.prompts), default=0)
        # Words of real prompts have at least about the tokens of the short ones that were counted.
        counted = round(self.tokens.overhead + words * self.tokens.per_word)
        prompt = counted if workload.prompts else size.prompt_tokens
        if prompt + size.output_tokens > self.context:
            about = "about " if workload.prompts else ""
            shorter = "shorter prompts" if workload.prompts else "a smaller --prompt-tokens"
            raise UserError(
                f"{workload.name}: {about}{prompt:,} tokens of prompt and "
                f"{size.output_tokens:,} of answer exceed the server's context of {self.context:,}",
                f"use {shorter} or --output-tokens, or a server with a larger --max-model-len",
                "context-too-small",
            )


def probe(server: OpenAiServer) -> Probe:
    """Send two short requests.

    Raises NoStreaming, UserError for a rejected request, key, model or address, and EngineError
    when the server fails or does not answer.
    """
    draw = random.Random()
    fixed_length = not (server.chat and any(name in server.model.lower() for name in _OWN_FORMAT))
    try:
        few = _prompt_tokens(server, random_prompt(_FEW_WORDS, draw), fixed_length)
    except PromptRefused:
        if not fixed_length:
            raise
        fixed_length = False
        few = _prompt_tokens(server, random_prompt(_FEW_WORDS, draw), fixed_length)
    many = _prompt_tokens(server, random_prompt(_MANY_WORDS, draw), fixed_length)
    per_word = max((many - few) / (_MANY_WORDS - _FEW_WORDS), 0.1)
    return Probe(
        Tokens(max(few - per_word * _FEW_WORDS, 0.0), per_word), fixed_length, context_of(server)
    )


def _prompt_tokens(server: OpenAiServer, prompt: str, fixed_length: bool) -> int:
    """The tokens of the prompt as the server counts them. Raises as ``probe`` does."""
    body = request_body(prompt, chat=server.chat, max_tokens=_TOKENS, stream=True)
    body |= {"ignore_eos": True} if fixed_length else {}
    route = "chat/completions" if server.chat else "completions"
    status, kind, content = server.post(route, body)
    if status != http.HTTPStatus.OK:
        raise server.refusal(route, status, content)
    if not kind.startswith("text/event-stream"):
        raise NoStreaming(
            f"{server.base_url} does not stream: it answers with {sanitize(kind, 60) or 'no type'}",
            "use a server that supports stream: true",
        )
    return usage_in(EventSplitter().feed(content), server.base_url)


def usage_in(events: Iterable[str], name: str) -> int:
    """The number of prompt tokens in a stream of a chat or completion.

    Raises EngineError for an invalid stream and NoStreaming for one without token counts.
    """
    tokens = None
    for event in events:
        if event == "[DONE]":
            break
        document = parse_response(event)
        with parsing("the engine's response", EngineError):
            if usage := document.get("usage"):
                tokens = count_of(usage["prompt_tokens"])
    if tokens is None:
        raise NoStreaming(
            f"{name} sends no token counts in its streams",
            "use a server that supports stream_options.include_usage",
            "no-usage",
        )
    return tokens


def served_models(server: OpenAiServer) -> dict[str, int | None]:
    """The models that the server lists, and the tokens of their context, as vLLM says it; ``None``
    if unknown. Raises UserError and EngineError."""
    status, content = server.get("models")
    if status != http.HTTPStatus.OK:
        raise server.refusal("models", status, content)
    return models_in(content)


def models_in(content: bytes) -> dict[str, int | None]:
    """The models in such a list. Raises EngineError for another document."""
    document = parse_response(content)
    with parsing("the list of models", EngineError):
        lengths = {str(model["id"]): model.get("max_model_len") for model in document["data"]}
    return {name: n if type(n) is int and n > 0 else None for name, n in lengths.items()}


def context_of(server: OpenAiServer) -> int | None:
    """The tokens of the model's context; ``None`` if the server does not say."""
    with suppress(PeagleError):
        return served_models(server).get(server.model)
    return None


def counters_of(server: OpenAiServer) -> Counters | None:
    """The speculation counters in the server's ``/metrics``; ``None`` where vLLM's are not."""
    page = _metrics(server)
    return parse_counters(sum_counters(page)) if page else None


def waiting_of(server: OpenAiServer) -> float | None:
    """The requests that wait in the engine's queue, by its ``/metrics``; ``None`` if unknown."""
    return waiting_in(_metrics(server))


def waiting_in(page: str) -> float | None:
    """The sum of vLLM's gauge of waiting requests; ``None`` for a page without it."""
    values = [
        line.rpartition(" ")[2]
        for line in page.splitlines()
        if line.startswith((f"{_WAITING}{{", f"{_WAITING} "))
    ]
    with suppress(ValueError):
        return sum(map(float, values)) if values else None
    return None


def _metrics(server: OpenAiServer) -> str:
    """The page of the server's metrics; empty where it has none of vLLM."""
    try:
        status, content = server.get("/metrics")
    except EngineError:
        return ""
    page = content.decode("utf-8", "replace")
    return page if status == http.HTTPStatus.OK and "vllm:" in page else ""
