"""The requests of a load: prompts of a file, or random words of a named size."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peagle.bench.result import DEFAULT_MAX_TOKENS, BenchLoad, BenchWorkload
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
_LIMITS = Limits(size=LARGEST_LINE)
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
        body = {"max_tokens": self.max_tokens or max_tokens, "temperature": temperature}
        if self.text is None:
            return body | {"messages": list(self.messages)}
        if chat:
            return body | {"messages": [{"role": "user", "content": self.text}]}
        return body | {"prompt": self.text}


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
    def domains(self) -> dict[str, list[Prompt]]:
        """The prompts by domain, in the order in which the domains first occur."""
        domains: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            domains.setdefault(prompt.domain, []).append(prompt)
        return domains


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
        try:
            if len(prompts) == MOST_PROMPTS:
                raise _Unusable(f"more than {MOST_PROMPTS:,} prompts", "use fewer prompts")
            document = _read_line(line, number)
            prompts.append(_prompt(document, number))
        except _Unusable as error:
            raise wrong_line(file, (number,), error.why, error.fix) from error
        ignored |= dict.fromkeys(sanitize(key, 40) for key in document if key not in _KEYS)
    if not prompts:
        raise UserError(f"{file} has no prompts", _FORM, "prompts")
    result = PromptSet(file, hashlib.sha256(data).hexdigest(), tuple(prompts), tuple(ignored))
    if (count := len(result.domains)) > MOST_DOMAINS:
        message = f"{file} has {count:,} domains; at most {MOST_DOMAINS} are measured"
        raise UserError(message, "give prompts of the same kind the same domain", "prompts")
    return result


class _Unusable(Exception):
    """Why a line is no prompt, and what to write instead."""

    def __init__(self, why: str, fix: str = _FORM) -> None:
        super().__init__(why)
        self.why, self.fix = why, fix


def _read_line(line: bytes, number: int) -> dict[str, Any]:
    try:
        document = json_reader.read(line, "the line", limits=_LIMITS)
    except InvalidJson as error:
        column = f" at column {error.column}" if error.column else ""
        is_array = number == 1 and line.strip() in (b"[", b"[{", b"{")
        fix = f"the file is one JSON document, not JSON lines: {_FORM}" if is_array else _FORM
        raise _Unusable(f"{error.why}{column}", fix) from error
    if not isinstance(document, dict):
        raise _Unusable("is not a JSON object")
    return document


class _Message(BaseModel):
    """One message of a chat; the content of an assistant that calls a tool may be missing. The
    engine checks the rest."""

    role: str
    content: str | list[Any] | None = None


class _Line(BaseModel):
    """The keys of a line that have a meaning here."""

    model_config = ConfigDict(strict=True, str_strip_whitespace=True)

    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[_Message], Field(min_length=1)] | None = None
    domain: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None


def _prompt(document: dict[str, Any], number: int) -> Prompt:
    try:
        line = _Line.model_validate(document)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ".".join(map(str, detail["loc"]))
        raise _Unusable(f"{key}: {detail['msg'][:1].lower()}{detail['msg'][1:]}") from error
    if line.prompt and line.messages:
        raise _Unusable("has both prompt and messages", "keep one of them")
    if not line.prompt and not line.messages:
        near = [nearest(name, _KEYS[:2]) for name in document if name not in _KEYS]
        raise _Unusable("has neither prompt nor messages", next(filter(None, near), _FORM))
    if line.messages and not any(message.content for message in line.messages):
        raise _Unusable("has messages without content", "write the content as text")
    if line.domain and not line.domain.isprintable():
        raise _Unusable("domain has characters that cannot be printed", "such as code or chat")
    messages = tuple(document["messages"]) if line.messages else ()
    text = document["prompt"] if line.prompt else None
    return Prompt(number, line.domain or NO_DOMAIN, text, messages, line.max_tokens)


def wrong_line(file: str, lines: Sequence[int], why: str, fix: str) -> UserError:
    """The error that these lines of ``file`` cannot be used."""
    count = len(lines) - 1
    more = f" (and {count} more line{'s' if count > 1 else ''})" if count else ""
    return UserError(f"{file}, line {lines[0]}{more}: {why}", fix, "prompts")


LEAST_REQUESTS = 4
"""Of a repetition: fewer give no percentiles."""

_TEXT = (
    "time year people way day thing woman life child world school family student group country "
    "problem hand part place case week company system program question work number night point "
    "home water room area money story fact month lot right study book eye job word business side"
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
    """The workload called ``name``, or the prompts of that file; sizes replace its own. Answers to
    prompts of a file end by themselves, or after ``output_tokens`` (``DEFAULT_MAX_TOKENS``).

    Raises UserError for an unknown name, for a file without prompts or with messages of several
    turns, and for a prompt size of a file.
    """
    if preset := WORKLOADS.get(name):
        size = Workload(
            prompt_tokens or preset.prompt_tokens, output_tokens or preset.output_tokens
        )
        sizes = "" if size == preset else f"-{size.prompt_tokens}x{size.output_tokens}"
        return BenchWorkload(f"{name}{sizes}", size)
    file = Path(name).expanduser()
    if not file.exists():
        raise _unknown_workload(name)
    if prompt_tokens is not None:
        raise OptionsConflict(
            "prompts from a file have a size of their own", "leave out --prompt-tokens"
        )
    prompts = read_prompts(file)
    texts = tuple(_only_text(prompt, file) for prompt in prompts.prompts)
    size = Workload(0, output_tokens or DEFAULT_MAX_TOKENS)
    return BenchWorkload(file.stem, size, texts, fixed_length=False, digest=prompts.sha256)


def _unknown_workload(name: str) -> UserError:
    if preset := PRESETS.get(name):
        return UserError(
            f"{name} is a workload of peagle plan; bench sends every prompt once, uncached",
            f"use --prompt-tokens {preset.prompt_tokens} --output-tokens {preset.output_tokens}, "
            f"or --workload {'|'.join(WORKLOADS)}|FILE",
            "unknown-workload",
        )
    hint = nearest(name, WORKLOADS)
    choice = f"choose {', '.join(WORKLOADS)}, or a file of prompts"
    return UserError(
        f"there is no workload and no file {name}",
        f"{hint}; or {choice}" if hint else choice,
        "unknown-workload",
    )


def _only_text(prompt: Prompt, file: Path) -> str:
    content = prompt.text or prompt.messages[0].get("content")
    if len(prompt.messages) > 1 or not isinstance(content, str):
        why = "a load sends one text per request, not several messages"
        raise wrong_line(str(file), (prompt.line,), why, 'write {"prompt": "..."}')
    return content


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
    draw, workload = draw or random.Random(), load.workload
    phases = [load.concurrency] + [load.requests] * load.repetitions
    words = tokens.words(workload.size.prompt_tokens)
    prompts: Sequence[str] = workload.prompts
    prompts = prompts or [random_prompt(words, draw) for _ in range(sum(phases))]
    more = {"model": model} | ({"ignore_eos": True} if workload.fixed_length else {})
    most = workload.size.output_tokens
    bodies = (
        request_body(prompts[number % len(prompts)], chat=chat, max_tokens=most, stream=True) | more
        for number in range(sum(phases))
    )
    return [[next(bodies) for _ in range(count)] for count in phases]


def random_prompt(words: int, draw: random.Random) -> str:
    """A prompt of so many words, which begins with a number of its own."""
    number = str(draw.randrange(10**6))
    return " ".join((number, *draw.choices(_WORDS, k=max(words - 1, 0))))
