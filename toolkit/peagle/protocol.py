"""What engines send and receive: request bodies, server-sent events, counters.

Pure functions, shared by the clients of AWS, the sandbox and local engines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from operator import sub
from typing import Any

from peagle.errors import EngineError, EngineFailed, InvalidResponse, parsing, to_count
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson

STAND_IN_TAG = "peagle:stand-in"
"""Set by the sandbox on an endpoint that serves something smaller than the target."""

ENGINE_TAG = "peagle:engine"
"""Set by the sandbox to ``vllm <version>`` when it runs a different version from the image's."""


def log_group(endpoint: str, copies: bool = False) -> str:
    """The CloudWatch log group of an endpoint, in which each instance has a stream, or of the
    inference component of that name, in which each of the ``copies`` has one."""
    if copies:
        return f"/aws/sagemaker/InferenceComponents/{endpoint}"
    return f"/aws/sagemaker/Endpoints/{endpoint}"


TRAINING_LOG_GROUP = "/aws/sagemaker/TrainingJobs"
"""The log group of all training jobs, in which the streams of a job begin with its name."""


def request_body(
    prompt: str, *, chat: bool, max_tokens: int, temperature: float = 0.0, stream: bool = False
) -> dict[str, Any]:
    """The body for ``/invocations``; its keys tell vLLM whether it is a chat or a completion."""
    body: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return body


def follow_up_body(body: Mapping[str, Any], answer: str, prompt: str) -> dict[str, Any]:
    """The next turn of the conversation that ``body`` began, with ``answer`` to it: the history
    again, then ``prompt``."""
    if "messages" not in body:
        return {**body, "prompt": f"{body['prompt']}{answer}\n\n{prompt}"}
    answered = {"role": "assistant", "content": answer or "-"}  # templates reject an empty one
    asked = {"role": "user", "content": prompt}
    return {**body, "messages": [*body["messages"], answered, asked]}


LARGEST_EVENT = 4 << 20
"""Bytes of a server-sent event; one of vLLM has a few hundred."""


class EventSplitter:
    """Splits a byte stream into server-sent events. Chunk boundaries are arbitrary (SageMaker's
    PayloadParts), so bytes are kept until a blank line ends an event. Each byte is looked at once,
    however small the chunks are."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The ``data`` of every event that ``chunk`` completes. Raises EngineError for an event
        that is not UTF-8 or larger than ``LARGEST_EVENT``."""
        for number, part in enumerate(chunk.split(b"\n")):
            if number:  # a line ends before each part but the first
                line = bytes(self._line).removesuffix(b"\r")
                self._line.clear()
                if line.startswith(b"data:"):
                    self._data.append(line[5:].removeprefix(b" "))
                elif not line:  # an event without data is a comment
                    data, self._data, self._size = self._data, [], 0
                    try:
                        event = b"\n".join(data).decode()
                    except UnicodeDecodeError as error:
                        raise _invalid("an event is not UTF-8") from error
                    if data:
                        yield event
            self._line += part
            self._size += len(part) + 1
            if self._size > LARGEST_EVENT:
                raise _invalid(f"an event has more than {LARGEST_EVENT:,} bytes")


def _invalid(why: str) -> InvalidResponse:
    return InvalidResponse(f"the engine's response is not valid: {why}")


@dataclass(frozen=True)
class Piece:
    """One event of a streamed response: new text, and the token count once the engine sends it.
    ``reasoning`` is what the model thinks before its answer, where the engine tells them apart."""

    text: str
    output_tokens: int | None = None
    reasoning: str = ""

    @property
    def written(self) -> str:
        """All that the model wrote, with an empty line between reasoning and answer."""
        gap = "\n\n" if self.reasoning and self.text else ""
        return f"{self.reasoning}{gap}{self.text}"


_LONGEST_ERROR = 1_500
"""Characters that are shown of an engine's error."""


def parse_response(data: bytes | str) -> dict[str, Any]:
    """The JSON object that an engine answered, also as an event of a stream. Raises EngineError for
    anything else, and for vLLM's report of an error, which after the first byte of a stream is an
    ordinary document."""
    try:
        document = json_reader.read(data, "the document")
    except InvalidJson as error:
        start = f"; it begins with {data[:60]!r}" if data else ""
        raise _invalid(f"{error}{start}") from error
    if not isinstance(document, dict):
        raise _invalid(f"it is not an object: {data[:60]!r}")
    if "error" in document or document.get("object") == "error":
        raise EngineFailed(f"the engine failed: {_error_message(document)}")
    return document


def engine_message(text: str) -> str:
    """The message in an engine's JSON error, or the text as it is."""
    try:
        document = json_reader.read(text, "the error")
    except InvalidJson:
        document = None
    return _error_message(document) if isinstance(document, dict) else text[:_LONGEST_ERROR]


def _error_message(document: dict[str, Any]) -> str:
    error = document.get("error", document)
    message = error.get("message", error) if isinstance(error, dict) else error
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return text[:_LONGEST_ERROR]


def parse_piece(document: dict[str, Any]) -> Piece:
    """Text, reasoning and token count of a complete or streamed chat or completion response. Raises
    EngineError for a document without vLLM's format."""
    with parsing("the engine's response", EngineError):
        text = reasoning = ""
        for choice in document.get("choices") or []:
            message = choice.get("delta") or choice.get("message") or {}
            text += choice.get("text") or message.get("content") or ""
            reasoning += message.get("reasoning") or ""
        tokens = (document.get("usage") or {}).get("completion_tokens")
        return Piece(text, None if tokens is None else to_count(tokens), reasoning)


def pieces(events: Iterable[str]) -> Iterator[Piece]:
    """The pieces of a stream of events, up to ``[DONE]``. Raises EngineError when the stream
    contains an error, or ends before ``[DONE]``."""
    for event in events:
        if event == "[DONE]":
            return
        yield parse_piece(parse_response(event))
    raise EngineError("the response ended before it was complete", code="incomplete-response")


def pieces_in(chunks: Iterable[bytes]) -> Iterator[Piece]:
    """The pieces of a stream of server-sent events. Raises as ``pieces`` and ``EventSplitter``."""
    splitter = EventSplitter()
    return pieces(event for chunk in chunks for event in splitter.feed(chunk))


@dataclass(frozen=True)
class Counters:
    """vLLM's ``spec_decode`` counters since the engine started, and ``cache_queries`` and
    ``cache_hits``: tokens of prompts that were looked up in the prefix cache, and found there;
    ``None`` where they are unknown."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    cache_queries: int | None = None
    cache_hits: int | None = None

    @property
    def cached_share(self) -> float | None:
        """The share of the prompts' tokens that came from the prefix cache; ``None`` if unknown."""
        if self.cache_hits is None or not self.cache_queries:
            return None
        return self.cache_hits / self.cache_queries

    def __add__(self, other: Counters) -> Counters:
        """The counts of two periods, or of two engines, together; the sum of what is known."""

        def total(count: int | None, more: int | None) -> int | None:
            return more if count is None else count + (more or 0)

        positions = zip_longest(
            self.accepted_per_position, other.accepted_per_position, fillvalue=0
        )
        return Counters(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(map(sum, positions)),
            total(self.cache_queries, other.cache_queries),
            total(self.cache_hits, other.cache_hits),
        )

    def since(self, earlier: Counters) -> Counters:
        """The counts after ``earlier``; all of them if the engine has restarted in between."""

        def more(now: int | None, then: int | None) -> int | None:
            return None if now is None or then is None else now - then

        if self.drafts < earlier.drafts:
            return self
        before = earlier.accepted_per_position or (0,) * len(self.accepted_per_position)
        return Counters(
            self.drafts - earlier.drafts,
            self.draft_tokens - earlier.draft_tokens,
            self.accepted_tokens - earlier.accepted_tokens,
            tuple(map(sub, self.accepted_per_position, before)),
            more(self.cache_queries, earlier.cache_queries),
            more(self.cache_hits, earlier.cache_hits),
        )


def parse_counters(document: dict[str, Any]) -> Counters:
    """Counters as ``peagle_serve`` sends them. Raises EngineError for another document."""
    with parsing("the engine's answer about its counters", EngineError):
        queries, hits = (
            None if value is None else to_count(value)
            for value in (document.get("cache_queries"), document.get("cache_hits"))
        )
        return Counters(
            drafts=to_count(document["drafts"]),
            draft_tokens=to_count(document["draft_tokens"]),
            accepted_tokens=to_count(document["accepted_tokens"]),
            accepted_per_position=tuple(map(to_count, document.get("accepted_per_position", ()))),
            cache_queries=queries,
            cache_hits=hits,
        )


def acceptance_length(counters: Counters) -> float | None:
    """Mean tokens per verification step: 1 + accepted / drafts, as vLLM defines it. ``None`` when
    nothing was drafted."""
    return 1 + counters.accepted_tokens / counters.drafts if counters.drafts else None
