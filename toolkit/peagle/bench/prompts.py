"""Read a file of prompts: JSON lines with ``prompt`` or ``messages``, ``domain``, ``max_tokens``.

    {"domain": "code", "prompt": "Write a function that ...", "max_tokens": 512}
    {"domain": "chat", "messages": [{"role": "user", "content": "..."}]}

Other keys are ignored and reported. Whether a prompt fits the context, only the engine knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.errors import UserError, nearest
from peagle.text import sanitize
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, Limits, read_regular

LARGEST_FILE = 64 << 20
LARGEST_LINE = 6 << 20
"""Bytes; InvokeEndpoint takes a body of this size."""
MOST_PROMPTS = 100_000
MOST_TOKENS = 10_000_000
"""Of one answer: no model has a longer context."""
MOST_DOMAINS = 100

NO_DOMAIN = "all"
"""The domain of prompts that name none."""

_KEYS = ("prompt", "messages", "domain", "max_tokens")
_LONGEST_DOMAIN = 60
_LIMITS = Limits(size=LARGEST_LINE, depth=32, values=50_000)
_FORM = 'write lines such as {"domain": "code", "prompt": "..."}'


@dataclass(frozen=True)
class Prompt:
    """One line of the file, whose number is ``line``. Exactly one of ``text`` and ``messages`` is
    given. ``max_tokens`` limits the answer, ``None`` where the line says nothing."""

    line: int
    domain: str = NO_DOMAIN
    text: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    max_tokens: int | None = None

    def body(self, *, chat: bool, max_tokens: int, temperature: float = 0.0) -> dict[str, Any]:
        """The request body; with ``chat`` a ``prompt`` becomes the user's message. ``max_tokens``
        applies where the line says nothing."""
        body: dict[str, Any] = {
            "max_tokens": self.max_tokens or max_tokens,
            "temperature": temperature,
        }
        if self.text is None:
            body["messages"] = list(self.messages)
        elif chat:
            body["messages"] = [{"role": "user", "content": self.text}]
        else:
            body["prompt"] = self.text
        return body


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a file, in its order.

    ``sha256`` is of the file's bytes. ``ignored`` are the names of keys without a meaning here.
    """

    file: str
    sha256: str
    prompts: tuple[Prompt, ...]
    ignored: tuple[str, ...] = ()

    @property
    def domains(self) -> dict[str, tuple[Prompt, ...]]:
        """The prompts by domain, in the order in which the domains first occur."""
        found: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            found.setdefault(prompt.domain, []).append(prompt)
        return {domain: tuple(prompts) for domain, prompts in found.items()}


def read_prompts(file: Path) -> PromptSet:
    """The prompts in ``file``.

    Raises UserError, which names the line, for a file that is missing, empty, not UTF-8, or not
    JSON lines, and for a line without a prompt or with a value of another type.
    """
    try:
        data = read_regular(file, LARGEST_FILE)
    except OSError as error:
        raise UserError(
            f"{file} cannot be read: {error.strerror}", "name a file of JSON lines", "prompts"
        ) from error
    return parse_prompts(data, str(file))


def parse_prompts(data: bytes, file: str) -> PromptSet:
    """The prompts in the content of ``file``. Raises UserError as ``read_prompts`` does."""
    prompts: list[Prompt] = []
    ignored: dict[str, None] = {}
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        if len(prompts) == MOST_PROMPTS:
            raise _wrong(file, number, f"more than {MOST_PROMPTS:,} prompts", "use fewer prompts")
        document = _object(line, file, number)
        ignored |= dict.fromkeys(sanitize(key, 40) for key in document if key not in _KEYS)
        prompts.append(_prompt(document, file, number))
    if not prompts:
        raise UserError(f"{file} has no prompts", _FORM, "prompts")
    found = PromptSet(file, hashlib.sha256(data).hexdigest(), tuple(prompts), tuple(ignored))
    if len(found.domains) > MOST_DOMAINS:
        message = f"{file} has {len(found.domains):,} domains; at most {MOST_DOMAINS} are measured"
        raise UserError(message, "give prompts of the same kind the same domain", "prompts")
    return found


def _object(line: bytes, file: str, number: int) -> dict[str, Any]:
    try:
        document = json_reader.read(line, "the line", limits=_LIMITS)
    except InvalidJson as error:
        column = f" at column {error.column}" if error.column else ""
        fix = _FORM
        if number == 1 and line.strip() in (b"[", b"[{", b"{"):
            fix = f"the file is one JSON document, not JSON lines: {_FORM}"
        raise _wrong(file, number, f"{error.why}{column}", fix) from None
    if not isinstance(document, dict):
        raise _wrong(file, number, "is not a JSON object", _FORM)
    return document


def _prompt(document: Mapping[str, Any], file: str, number: int) -> Prompt:
    text, messages = document.get("prompt"), document.get("messages")
    if (text is None) == (messages is None):
        if text is not None:
            raise _wrong(file, number, "has both prompt and messages", "keep one of them")
        near = [nearest(name, _KEYS[:2]) for name in document if name not in _KEYS]
        hint = next(filter(None, near), _FORM)
        raise _wrong(file, number, "has neither prompt nor messages", hint)
    if text is not None and not (isinstance(text, str) and text.strip()):
        why = "has an empty prompt" if isinstance(text, str) else "prompt is not text"
        raise _wrong(file, number, why, "write the prompt as text")
    domain = document.get("domain")
    if domain is not None and not _is_domain(domain):
        why = f"domain is not a text of 1 to {_LONGEST_DOMAIN} printable characters"
        raise _wrong(file, number, why, "such as code or chat")
    tokens = document.get("max_tokens")
    if tokens is not None and not (type(tokens) is int and 1 <= tokens <= MOST_TOKENS):
        why = f"max_tokens is not a whole number from 1 to {MOST_TOKENS:,}"
        raise _wrong(file, number, why, "such as 256")
    return Prompt(
        number,
        domain.strip() if domain else NO_DOMAIN,
        text,
        _messages(messages, file, number) if messages is not None else (),
        tokens,
    )


def _messages(messages: Any, file: str, number: int) -> tuple[dict[str, Any], ...]:
    """Objects with a role and content; the content of an assistant that calls a tool may be
    missing. The engine checks the rest."""
    if not isinstance(messages, list) or not messages:
        why = "messages is not a list of messages" if messages else "has empty messages"
        raise _wrong(file, number, why, 'write [{"role": "user", "content": "..."}]')
    for place, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            why = f"message {place} is not an object with a role"
            raise _wrong(file, number, why, 'write {"role": "user", "content": "..."}')
        if not isinstance(message.get("content"), (str, list, type(None))):
            why = f"the content of message {place} is not text"
            raise _wrong(file, number, why, "write the content as text")
    if not any(message.get("content") for message in messages):
        raise _wrong(file, number, "has messages without content", "write the content as text")
    return tuple(messages)


def _is_domain(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value.strip()) <= _LONGEST_DOMAIN
        and value.strip().isprintable()
    )


def wrong_line(file: str, lines: Sequence[int], why: str, fix: str) -> UserError:
    """The error that these lines of ``file`` cannot be used."""
    first = f"{file}, line {lines[0]}"
    count = len(lines) - 1
    more = f" (and {count} more line{'s' if count > 1 else ''})" if count else ""
    return UserError(f"{first}{more}: {why}", fix, "prompts")


def _wrong(file: str, number: int, why: str, fix: str) -> UserError:
    return wrong_line(file, (number,), why, fix)
