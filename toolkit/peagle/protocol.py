"""What travels to and from an engine: bodies, server-sent events, counters, lines of its log.

All pure, so that AWS, the sandbox and a local process are spoken to in the same words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


def request_body(
    prompt: str,
    *,
    chat: bool,
    max_tokens: int,
    temperature: float = 0.0,
    stream: bool = False,
) -> dict[str, Any]:
    """The body for ``/invocations``: vLLM tells chat from completion by its keys."""
    body: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return body


class EventSplitter:
    """Cuts a byte stream into server-sent events.

    Chunk boundaries are arbitrary (SageMaker's PayloadParts are), so bytes are kept until a blank
    line ends an event.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The ``data`` of every event that ``chunk`` completes."""
        self._rest = (self._rest + chunk).replace(b"\r\n", b"\n")
        *events, self._rest = self._rest.split(b"\n\n")
        for event in events:
            lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(line[5:].removeprefix(b" ") for line in lines).decode()


@dataclass(frozen=True)
class Piece:
    """One event of a streamed answer: new text, and the token count once the engine sends it."""

    text: str
    output_tokens: int | None = None


def piece_of(document: dict[str, Any]) -> Piece:
    """The text and token count of a whole or streamed chat or completion answer."""
    text = ""
    for choice in document.get("choices") or []:
        message = choice.get("delta") or choice.get("message") or {}
        text += choice.get("text") or message.get("content") or ""
    usage = document.get("usage") or {}
    return Piece(text, usage.get("completion_tokens"))


def pieces(events: Iterator[str]) -> Iterator[Piece]:
    """The pieces of a stream of events, up to ``[DONE]``."""
    for event in events:
        if event == "[DONE]":
            return
        yield piece_of(json.loads(event))


@dataclass(frozen=True)
class Counters:
    """vLLM's ``spec_decode`` counters since the engine started."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...] = ()

    def since(self, earlier: Counters) -> Counters:
        """What was counted after ``earlier``."""
        before = earlier.accepted_per_position or (0,) * len(self.accepted_per_position)
        return Counters(
            self.drafts - earlier.drafts,
            self.draft_tokens - earlier.draft_tokens,
            self.accepted_tokens - earlier.accepted_tokens,
            tuple(
                now - then for now, then in zip(self.accepted_per_position, before, strict=False)
            ),
        )


def counters_of(document: dict[str, Any]) -> Counters:
    """Counters as ``peagle_serve`` sends them."""
    return Counters(
        drafts=int(document["drafts"]),
        draft_tokens=int(document["draft_tokens"]),
        accepted_tokens=int(document["accepted_tokens"]),
        accepted_per_position=tuple(int(n) for n in document.get("accepted_per_position", ())),
    )


def acceptance_length(counters: Counters) -> float | None:
    """Mean tokens per verification step: 1 + accepted / drafts, as vLLM defines it.

    ``None`` when nothing was drafted.
    """
    return 1 + counters.accepted_tokens / counters.drafts if counters.drafts else None


def log_text(line: str) -> str:
    """A line of a container's log as people read it.

    ``peagle_serve`` writes one JSON document a line (its ``logs`` module says which); lines of
    other containers, and of other programs, come back as they are.
    """
    if not line.startswith('{"time":'):
        return line
    try:
        told = json.loads(line)
    except ValueError:
        return line
    message = str(told.get("message", ""))
    if told.get("from") == "engine":
        process = f"({told['process']}) " if "process" in told else ""
        place = f"{told['level']} [{told['place']}] " if "place" in told else ""
        return f"{process}{place}{message}"
    checking = told.get("stage") == "checking" and "fix" in told
    who = "serve: error:" if checking or told.get("cause") == "environment" else "serve:"
    fix = f" ({told['fix']})" if told.get("fix") else ""
    argv = f": {json.dumps(told['argv'], ensure_ascii=False)}" if "argv" in told else ""
    return f"{who} {message}{fix}{argv}"


_RESTORED = re.compile(r"serve: warm start: (.*\(key ([0-9a-f]{32})\b.*\))")
_NOT_RESTORED = re.compile(r"serve: no warm start(?:, [^:]*)?: (.*)")


@dataclass(frozen=True)
class WarmStart:
    """How a container started: with the artifact ``key``, or cold (``None``). ``detail`` is what
    was restored and how fast, or why nothing was."""

    key: str | None
    detail: str

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{'Warm' if self.key else 'No warm'} start: {self.detail}"

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {"restored": self.key is not None, "key": self.key, "detail": self.detail}


def warm_start_in(log: Iterable[str]) -> WarmStart | None:
    """The warm start that a container's log reports last; ``None`` where nothing could have been
    restored."""
    last = None
    for line in map(log_text, log):
        if found := _RESTORED.match(line):
            last = WarmStart(found[2], found[1])
        elif found := _NOT_RESTORED.match(line):
            last = WarmStart(None, found[1])
    return last


def digest_in(image: str) -> str | None:
    """``sha256:...`` of an image that is named with its digest; else ``None``."""
    name, _, digest = image.partition("@")
    return digest if name and digest.startswith("sha256:") else None
