"""What engines send and receive: request bodies, server-sent events, counters, log lines.

Pure functions, shared by the clients of AWS, the sandbox and local engines.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from peagle.errors import fix_text
from peagle_serve.logs import restored_text

STAND_IN_TAG = "peagle:stand-in"
"""Set by the sandbox on an endpoint that serves something smaller than the target."""

ENGINE_TAG = "peagle:engine"
"""Set by the sandbox to ``vllm <version>`` when it runs a different version from the image's."""


def request_body(
    prompt: str,
    *,
    chat: bool,
    max_tokens: int,
    temperature: float = 0.0,
    stream: bool = False,
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


class EventSplitter:
    """Splits a byte stream into server-sent events.

    Chunk boundaries are arbitrary (SageMaker's PayloadParts), so bytes are kept until a blank line
    ends an event.
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
    """One event of a streamed response: new text, and the token count once the engine sends it.

    ``reasoning`` is what the model thinks before its answer, where the engine tells them apart.
    """

    text: str
    output_tokens: int | None = None
    reasoning: str = ""

    @property
    def written(self) -> str:
        """All that the model wrote, with an empty line between reasoning and answer."""
        gap = "\n\n" if self.reasoning and self.text else ""
        return f"{self.reasoning}{gap}{self.text}"


def piece_of(document: dict[str, Any]) -> Piece:
    """Text, reasoning and token count of a complete or streamed chat or completion response."""
    text = reasoning = ""
    for choice in document.get("choices") or []:
        message = choice.get("delta") or choice.get("message") or {}
        text += choice.get("text") or message.get("content") or ""
        reasoning += message.get("reasoning") or ""
    usage = document.get("usage") or {}
    return Piece(text, usage.get("completion_tokens"), reasoning)


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

    def __add__(self, other: Counters) -> Counters:
        """The counts of two periods, or of two engines, together."""
        positions = zip_longest(
            self.accepted_per_position, other.accepted_per_position, fillvalue=0
        )
        return Counters(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(one + another for one, another in positions),
        )

    def since(self, earlier: Counters) -> Counters:
        """The counts after ``earlier``; all of them if the engine has restarted in between."""
        if self.drafts < earlier.drafts:
            return self
        before = earlier.accepted_per_position or (0,) * len(self.accepted_per_position)
        return Counters(
            self.drafts - earlier.drafts,
            self.draft_tokens - earlier.draft_tokens,
            self.accepted_tokens - earlier.accepted_tokens,
            tuple(
                now - then for now, then in zip(self.accepted_per_position, before, strict=False)
            ),
        )


def parse_counters(document: dict[str, Any]) -> Counters:
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


_LENGTH = re.compile(r"Mean acceptance length: (\d+(?:\.\d+)?)")
_ACCEPTED = re.compile(r"\bAccepted: (\d+) tokens")
_DRAFTED = re.compile(r"\bDrafted: (\d+) tokens")
_RATES = re.compile(r"Per-position acceptance rate: (\d[\d.]*(?:, \d[\d.]*)*)")
_ROUNDED = 0.0051
"""Half of the last digit that vLLM prints of a mean length, and a little for the arithmetic."""

_GENERATION = re.compile(r"Avg generation throughput: (\d+(?:\.\d+)?) tokens/s")


def counters_in_log(line: str) -> Counters | None:
    """What an engine counted since its previous line of that kind; ``None`` for other lines.

    vLLM writes ``SpecDecoding metrics: ...`` (v1/spec_decode/metrics.py) every
    ``VLLM_LOG_STATS_INTERVAL`` seconds in which it has drafted; ``peagle_serve`` passes it on as
    the message of a JSON line. The line lacks the number of drafts. Drafts of all K positions give
    it exactly; n-gram drafts are shorter, and then the mean length gives it to within its rounding.
    """
    if "SpecDecoding metrics:" not in line:
        return None
    found = [pattern.search(line) for pattern in (_LENGTH, _ACCEPTED, _DRAFTED)]
    if not all(found):
        return None
    length, accepted, drafted = (float(one[1]) for one in found if one)
    rates = _RATES.search(line)
    shares = [float(share) for share in rates[1].split(", ")] if rates else []
    drafts = _drafts(length, accepted, drafted, len(shares))
    return Counters(
        drafts, int(drafted), int(accepted), tuple(round(share * drafts) for share in shares)
    )


def _drafts(length: float, accepted: float, drafted: float, positions: int) -> int:
    """The number of drafts that explains a mean of ``length``, which is rounded to 0.01."""
    full = drafted / positions if positions else 0.0
    if full.is_integer() and full and abs(1 + accepted / full - length) <= _ROUNDED:
        return int(full)
    if length > 1:
        return round(accepted / (length - 1))
    return math.ceil(full)


def generated_in_log(line: str) -> float | None:
    """Tokens per second that the engine generated since its previous report; ``None`` for other
    lines. An engine that drafts writes its counters directly after it."""
    found = _GENERATION.search(line)
    return float(found[1]) if found else None


def log_fields(line: str) -> dict[str, Any]:
    """The fields of a line that ``peagle_serve`` wrote (its ``logs`` module lists them).

    Empty for lines of other programs. The engine's own lines have ``from`` and no ``event``.
    """
    if not line.startswith('{"time":'):
        return {}
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if "event" in fields or "from" in fields else {}


def log_text(line: str) -> str:
    """A line of a container's log, formatted for people; lines of other programs are unchanged."""
    fields = log_fields(line)
    if not fields:
        return line
    message = str(fields.get("message", ""))
    if fields.get("from") == "engine":
        process = f"({fields['process']}) " if "process" in fields else ""
        place = f"{fields['level']} [{fields['place']}] " if "place" in fields else ""
        return f"{process}{place}{message}"
    who = "serve: error:" if fields.get("event") == "refused" else "serve:"
    fix = fix_text(str(fields.get("fix", "")), fields.get("command"))
    fix = f" ({fix})" if fix else ""
    argv = f": {json.dumps(fields['argv'], ensure_ascii=False)}" if "argv" in fields else ""
    return f"{who} {message}{fix}{argv}"


@dataclass(frozen=True)
class WarmStart:
    """How a container started: with the artifact ``key``, or cold (``None``). ``detail`` is what
    was restored and how fast, or why nothing was; ``differences`` are those of the most similar
    artifact."""

    key: str | None
    detail: str
    differences: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{'Warm' if self.key else 'No warm'} start: {self.detail}"

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "restored": self.key is not None,
            "key": self.key,
            "detail": self.detail,
            "differences": list(self.differences),
        }


def warm_start_in(log: Iterable[str]) -> WarmStart | None:
    """The warm start that a container's log reports last; ``None`` where nothing could have been
    restored. ``log`` has its lines as they were written."""
    last = None
    for fields in map(log_fields, log):
        if fields.get("event") == "warm-start":
            last = _warm_start(fields)
    return last


def _warm_start(fields: dict[str, Any]) -> WarmStart:
    if not fields["restored"]:
        differences = tuple(map(str, fields.get("differences") or ()))
        return WarmStart(None, str(fields["reason"]), differences)
    return WarmStart(str(fields["key"]), restored_text(fields))


def digest_in(image: str) -> str | None:
    """``sha256:...`` of an image that is named with its digest; else ``None``."""
    name, _, digest = image.partition("@")
    return digest if name and digest.startswith("sha256:") else None
