"""The requests of a load: prompts of a file, or random words of a named size."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.bench.models import DEFAULT_MAX_TOKENS, BenchLoad, BenchWorkload
from peagle.errors import OptionsConflict, UserError, nearest
from peagle.protocol import request_body
from peagle.speed.models import PRESETS, WORKLOADS, Workload
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


LEAST_REQUESTS = 4
"""Of a repetition: fewer give no percentiles."""

_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member law "
    "car city community name president team minute idea kid body information back parent face "
    "level office door health person art war history party result change morning reason research "
    "girl guy moment air teacher force education"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True)
class Tokens:
    """How many tokens the server counts for a prompt of these words: ``overhead`` for its template,
    and ``per_word``."""

    overhead: float
    per_word: float

    def words(self, tokens: int) -> int:
        """The number of words of a prompt of so many tokens; at least 1."""
        return max(1, round((tokens - self.overhead) / self.per_word))


def find_workload(
    name: str, prompt_tokens: int | None = None, output_tokens: int | None = None
) -> BenchWorkload:
    """The workload called ``name``, or the prompts of that file; sizes replace its own.

    Raises UserError for an unknown name, for a file without prompts, and for a prompt size of a
    file.
    """
    if name in WORKLOADS:
        size = WORKLOADS[name]
        found = Workload(prompt_tokens or size.prompt_tokens, output_tokens or size.output_tokens)
        return BenchWorkload(name if found == size else f"{name}-{sizes_text(found)}", found)
    file = Path(name).expanduser()
    if not file.exists():
        if name in PRESETS:
            size = PRESETS[name]
            raise UserError(
                f"{name} is a workload of peagle plan; bench sends every prompt once, uncached",
                f"use --prompt-tokens {size.prompt_tokens} --output-tokens {size.output_tokens}, "
                f"or --workload {'|'.join(WORKLOADS)}|FILE",
                "unknown-workload",
            )
        hint = nearest(name, WORKLOADS)
        known = f"choose {', '.join(WORKLOADS)}, or a file of prompts"
        raise UserError(
            f"there is no workload and no file {name}",
            f"{hint}; or {known}" if hint else known,
            "unknown-workload",
        )
    if prompt_tokens is not None:
        raise OptionsConflict(
            "prompts from a file have a size of their own", "leave out --prompt-tokens"
        )
    return workload_of_file(file, output_tokens)


def workload_of_file(file: Path, output_tokens: int | None = None) -> BenchWorkload:
    """The prompts of a file of JSON lines; answers end by themselves, or after ``output_tokens``
    (default ``DEFAULT_MAX_TOKENS``). Raises UserError, also for messages of several turns."""
    prompts = read_prompts(file)
    texts = tuple(_text(prompt, file) for prompt in prompts.prompts)
    size = Workload(0, output_tokens or DEFAULT_MAX_TOKENS)
    return BenchWorkload(file.stem, size, texts, fixed_length=False, digest=prompts.sha256)


def _text(prompt: Prompt, file: Path) -> str:
    if prompt.text is not None:
        return prompt.text
    content = prompt.messages[0].get("content")
    if len(prompt.messages) == 1 and isinstance(content, str):
        return content
    raise UserError(
        f"{file}, line {prompt.line}: a load sends one text per request, not several messages",
        'write {"prompt": "..."}',
        "prompts",
    )


def sizes_text(size: Workload) -> str:
    """``128x400``: tokens of prompt and answer."""
    return f"{size.prompt_tokens}x{size.output_tokens}"


def make_load(
    workload: BenchWorkload, concurrency: int, repetitions: int = 3, requests: int | None = None
) -> BenchLoad:
    """The load; each repetition sends ``requests``, by default twice the concurrency."""
    count = requests or max(2 * concurrency, LEAST_REQUESTS)
    return BenchLoad(workload, concurrency, max(count, concurrency), repetitions)


def request_bodies(
    load: BenchLoad,
    *,
    model: str,
    chat: bool,
    tokens: Tokens,
    draw: random.Random | None = None,
) -> list[list[dict[str, Any]]]:
    """The bodies of the warm-up and of each repetition; no two random prompts are the same, so no
    cache of prefixes has them."""
    draw = draw or random.Random()
    phases = [load.concurrency] + [load.requests] * load.repetitions
    prompts = _prompts(load.workload, sum(phases), tokens, draw)
    bodies = iter(_body(prompt, load.workload, model, chat) for prompt in prompts)
    return [[next(bodies) for _ in range(count)] for count in phases]


def random_prompt(words: int, draw: random.Random) -> str:
    """A prompt of so many words, which begins with a number of its own."""
    number = str(draw.randrange(10**6))
    return " ".join((number, *draw.choices(_WORDS, k=max(words - 1, 0))))


def _prompts(
    workload: BenchWorkload, count: int, tokens: Tokens, draw: random.Random
) -> Sequence[str]:
    if workload.prompts:
        return [workload.prompts[number % len(workload.prompts)] for number in range(count)]
    words = tokens.words(workload.size.prompt_tokens)
    return [random_prompt(words, draw) for _ in range(count)]


def _body(prompt: str, workload: BenchWorkload, model: str, chat: bool) -> dict[str, Any]:
    body = request_body(prompt, chat=chat, max_tokens=workload.size.output_tokens, stream=True)
    body["model"] = model
    return body | ({"ignore_eos": True} if workload.fixed_length else {})
