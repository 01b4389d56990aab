"""Ask a server before a load: does it answer, stream and count tokens; what do words cost."""

from __future__ import annotations

import http
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse

from peagle.bench.models import BenchWorkload
from peagle.bench.openai_server import OpenAiServer, PromptRefused
from peagle.bench.workloads import Tokens, random_prompt
from peagle.errors import EngineError, PeagleError, UserError, count_of, parsing
from peagle.protocol import Counters, EventSplitter, parse_counters, parse_response, request_body
from peagle.text import sanitize
from peagle_serve.counters import sum_counters

_LARGEST = 16 << 20
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
    body |= {"model": server.model} | ({"ignore_eos": True} if fixed_length else {})
    route = "chat/completions" if server.chat else "completions"
    with server.reply(route, json.dumps(body).encode()) as reply:
        if reply.status != http.HTTPStatus.OK:
            raise server.refusal(route, reply.status, reply.read(1 << 16))
        kind = reply.getheader("Content-Type") or "no type"
        if not kind.startswith("text/event-stream"):
            raise NoStreaming(
                f"{server.base_url} does not stream: it answers with {sanitize(kind, 60)}",
                "use a server that supports stream: true",
            )
        return usage_in(_events(reply), server.base_url)


def usage_in(events: Iterable[str], name: str) -> int:
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


def _events(reply: HTTPResponse) -> Iterator[str]:
    splitter, size = EventSplitter(), 0
    while chunk := reply.read1(65_536):
        size += len(chunk)
        if size > _LARGEST:
            raise EngineError("the answer to a short request has no end", code="invalid-response")
        yield from splitter.feed(chunk)


def served_models(server: OpenAiServer) -> tuple[str, ...]:
    """The names of the models that the server lists. Raises UserError and EngineError."""
    status, content = server.get(server.path("models"))
    if status != http.HTTPStatus.OK:
        raise server.refusal("models", status, content)
    return models_in(content)


def models_in(content: bytes) -> tuple[str, ...]:
    """The names in a list of models. Raises EngineError for another document."""
    document = parse_response(content)
    with parsing("the list of models", EngineError):
        return tuple(str(one["id"]) for one in document["data"])


def context_of(server: OpenAiServer) -> int | None:
    """``max_model_len`` of the model in the server's list, as vLLM says it; ``None`` if unknown."""
    try:
        status, content = server.get(server.path("models"))
        models = parse_response(content)["data"] if status == http.HTTPStatus.OK else []
        found = {str(one["id"]): one.get("max_model_len") for one in models}
    except (PeagleError, AttributeError, KeyError, TypeError):
        return None
    context = found.get(server.model)
    return context if isinstance(context, int) and context > 0 else None


def counters_of(server: OpenAiServer) -> Counters | None:
    """The speculation counters in the server's ``/metrics``; ``None`` where vLLM's are not."""
    page = _metrics(server)
    return parse_counters(sum_counters(page)) if page else None


def waiting_of(server: OpenAiServer) -> float | None:
    """The requests that wait in the engine's queue, by its ``/metrics``; ``None`` if unknown."""
    page = _metrics(server)
    return waiting_in(page) if page else None


def waiting_in(page: str) -> float | None:
    """The sum of vLLM's gauge of waiting requests; ``None`` for a page without it."""
    values = []
    for line in page.splitlines():
        if line.startswith((f"{_WAITING}{{", f"{_WAITING} ")):
            try:
                values.append(float(line.rpartition(" ")[2]))
            except ValueError:
                return None
    return sum(values) if values else None


def _metrics(server: OpenAiServer) -> str | None:
    try:
        status, content = server.get("/metrics")
    except EngineError:
        return None
    page = content.decode("utf-8", "replace")
    return page if status == http.HTTPStatus.OK and "vllm:" in page else None
