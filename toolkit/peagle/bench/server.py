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
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any
from urllib.parse import urlsplit

from peagle.bench.result import BenchWorkload
from peagle.bench.workloads import Prompt, random_prompt
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
        """The answer to a chat or a completion. Raises PromptRefused where this request is
        rejected, UserError where any would be, and EngineError without an answer of the
        protocol."""
        return parse_response(self.post(body)[1])

    def post(self, body: dict[str, Any]) -> tuple[str, bytes]:
        """Content type and content of the answer to a chat or a completion. Raises as ``ask``."""
        route = "chat/completions" if "messages" in body else "completions"
        content = json.dumps({"model": self.model, **body}).encode()
        status, kind, answer = self.exchange("POST", route, content)
        if status != http.HTTPStatus.OK:
            raise self.refusal(route, status, answer)
        return kind, answer

    def refusal(self, route: str, status: int, content: bytes) -> PeagleError:
        """The error that a request to ``route`` was answered with, as ``ask`` raises it."""
        text = content[: 1 << 16].decode("utf-8", errors="replace")
        message = sanitize(engine_message(text).strip() or f"HTTP {status}", 300)
        if status in (400, 413, 422):
            why = message.partition(" Please reduce ")[0].rstrip(".")
            return PromptRefused(why, "shorten the prompt or lower max_tokens")
        if status in (401, 403):
            return UserError(f"{self.base_url} rejects the key ({status}): {message}",
                             f"set {KEY_VARIABLE}", "unauthorized")  # fmt: skip
        if status == http.HTTPStatus.NOT_FOUND:
            return UserError(f"{self.base_url}/{route} does not exist: {message}",
                             "give the URL up to /v1 and the name of a served model",
                             "no-such-route")  # fmt: skip
        return EngineFailed(f"{self.base_url} failed ({status}): {message}", self.fix)

    @property
    def fix(self) -> Fix:
        """Where to look when the server fails."""
        return Fix("read its log" if self.log else "look at the server's log", self.log)

    def exchange(
        self, method: str, route: str, body: bytes | None = None
    ) -> tuple[int, str, bytes]:
        """Status, content type and content of the answer, by the path from the server's root, or by
        the route below the base URL. Raises EngineError without an answer, or for one that is cut
        off."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            parts = urlsplit(self.base_url)
            path = route if route.startswith("/") else f"{parts.path.rstrip('/')}/{route}"
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
    Raises what ``ask`` raises, except PromptRefused, and EngineError without an answer in time."""

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


_FEW_WORDS, _MANY_WORDS = 8, 100
_OWN_FORMAT = ("gpt-oss",)
"""In names of models whose chats have a format of their own in vLLM (Harmony), which forbids tokens
after the end: ``ignore_eos`` would be accepted, and the stream end with an error."""
_WAITING = "vllm:num_requests_waiting"


class NoStreaming(UserError, code="no-streaming"):
    """The server sends whole answers, or no token counts: latencies cannot be measured."""


@dataclass(frozen=True)
class Probe:
    """What a server does: the tokens that it counts for its template (``overhead``) and for a word,
    whether it accepts ``ignore_eos``, and the tokens of its context, if it says them."""

    overhead: float
    per_word: float
    fixed_length: bool
    context: int | None = None

    def words(self, tokens: int) -> int:
        """The number of words of a prompt of so many tokens; at least 1."""
        return max(1, round((tokens - self.overhead) / self.per_word))

    def require_room(self, workload: BenchWorkload) -> None:
        """Raise UserError for a workload whose requests exceed the context."""
        prompt = workload.size.prompt_tokens
        if workload.prompts:
            # Words of real prompts have at least about the tokens of the short ones counted.
            words = max(len(text.split()) for text in workload.prompts)
            prompt = round(self.overhead + words * self.per_word)
        answer = workload.size.output_tokens
        if self.context is not None and prompt + answer > self.context:
            raise UserError(
                f"{workload.name}: about {prompt:,} tokens of prompt and {answer:,} of answer "
                f"exceed the server's context of {self.context:,}",
                "use shorter prompts or --output-tokens, or a server with a larger --max-model-len",
                "context-too-small",
            )


def probe(server: OpenAiServer) -> Probe:
    """Send two short requests. Raises NoStreaming, and what ``OpenAiServer.ask`` raises."""
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
    context = None
    with suppress(PeagleError):
        context = served_models(server).get(server.model)
    return Probe(max(few - per_word * _FEW_WORDS, 0.0), per_word, fixed_length, context)


def _prompt_tokens(server: OpenAiServer, prompt: str, fixed_length: bool) -> int:
    """The tokens of the prompt as the server counts them in a stream. Raises as ``probe`` does."""
    body = request_body(prompt, chat=server.chat, max_tokens=8, stream=True)
    kind, content = server.post(body | ({"ignore_eos": True} if fixed_length else {}))
    tokens = None
    if kind.startswith("text/event-stream"):
        for event in EventSplitter().feed(content):
            if event == "[DONE]":
                break
            with parsing("the engine's response", EngineError):
                if usage := parse_response(event).get("usage"):
                    tokens = count_of(usage["prompt_tokens"])
    if tokens is None:
        raise NoStreaming(
            f"{server.base_url} sends no streams with token counts",
            "use a server that supports stream and stream_options.include_usage",
        )
    return tokens


def served_models(server: OpenAiServer) -> dict[str, int | None]:
    """The models that the server lists, and the tokens of their context, as vLLM says it; ``None``
    if unknown. Raises UserError and EngineError."""
    status, _, content = server.exchange("GET", "models")
    if status != http.HTTPStatus.OK:
        raise server.refusal("models", status, content)
    document = parse_response(content)
    with parsing("the list of models", EngineError):
        lengths = {str(model["id"]): model.get("max_model_len") for model in document["data"]}
    return {name: n if type(n) is int and n > 0 else None for name, n in lengths.items()}


def counters_of(server: OpenAiServer) -> Counters | None:
    """The speculation counters in the server's ``/metrics``; ``None`` where vLLM's are not."""
    page = _metrics(server)
    return parse_counters(sum_counters(page)) if page else None


def waiting_of(server: OpenAiServer) -> float | None:
    """The requests that wait in the engine's queue, by its ``/metrics``; ``None`` if unknown."""
    values = [
        line.rpartition(" ")[2]
        for line in _metrics(server).splitlines()
        if line.startswith((f"{_WAITING}{{", f"{_WAITING} "))
    ]
    with suppress(ValueError):
        return sum(map(float, values)) if values else None
    return None


def _metrics(server: OpenAiServer) -> str:
    """The page of the server's metrics; empty where it has none of vLLM."""
    with suppress(EngineError):
        status, _, content = server.exchange("GET", "/metrics")
        page = content.decode("utf-8", "replace")
        return page if status == http.HTTPStatus.OK and "vllm:" in page else ""
    return ""
