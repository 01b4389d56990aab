"""The requests of a load: prompts of a file, or random words of a named size."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from peagle.bench.result import DEFAULT_MAX_TOKENS, BenchLoad, BenchWorkload
from peagle.errors import OptionsConflict, UserError, nearest
from peagle.protocol import request_body
from peagle.speed.models import PRESETS, WORKLOADS, Workload
from peagle.text import sanitize
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, Limits, read_regular

LARGEST_FILE = 64 << 20
MOST_PROMPTS = 100_000
MOST_TOKENS = 10_000_000
"""Of one answer: no model has a longer context."""
MOST_DOMAINS = 100

NO_DOMAIN = "all"
"""The domain of prompts that name none."""

_LIMITS = Limits(size=6 << 20)
"""Of one line; InvokeEndpoint takes a body of this size."""

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
    for number, content in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not content.strip():
            continue
        if len(prompts) == MOST_PROMPTS:
            raise UserError(f"{file} has more than {MOST_PROMPTS:,} prompts", "split it", "prompts")
        try:
            line = _Line.model_validate(json_reader.read(content, "the line", limits=_LIMITS))
        except (InvalidJson, ValidationError) as error:
            is_array = number == 1 and content.strip() in (b"[", b"[{", b"{")
            fix = f"the file is one JSON document, not JSON lines: {_FORM}" if is_array else _FORM
            raise wrong_line(file, (number,), _problem(error), fix) from error
        messages = tuple(line.messages or ())
        domain = line.domain or NO_DOMAIN
        prompts.append(Prompt(number, domain, line.prompt, messages, line.max_tokens))
        ignored |= dict.fromkeys(sanitize(key, 40) for key in line.model_extra or ())
    if not prompts:
        raise UserError(f"{file} has no prompts", _FORM, "prompts")
    result = PromptSet(file, hashlib.sha256(data).hexdigest(), tuple(prompts), tuple(ignored))
    if (count := len(result.domains)) > MOST_DOMAINS:
        message = f"{file} has {count:,} domains; at most {MOST_DOMAINS} are measured"
        raise UserError(message, "give prompts of the same kind the same domain", "prompts")
    return result


class _Line(BaseModel):
    """One line of the file; the engine checks the rest of its messages."""

    model_config = ConfigDict(strict=True, extra="allow")

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    domain: (
        Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60)] | None
    ) = None
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either prompt or messages")
        texts = [message.get("content") for message in self.messages or ()] or [self.prompt]
        if not any(text.strip() if isinstance(text, str) else text for text in texts):
            raise ValueError("has no text")
        if self.domain and not self.domain.isprintable():
            raise ValueError("domain has characters that cannot be printed")
        return self


def _problem(error: InvalidJson | ValidationError) -> str:
    return first_problem(error) if isinstance(error, ValidationError) else error.why


def first_problem(error: ValidationError) -> str:
    """Where the first problem is, and what: ``rows.3.k: Input should be a valid integer``."""
    detail = error.errors(include_url=False)[0]
    where = ".".join(map(str, detail["loc"]))
    what = detail["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


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
        if preset := PRESETS.get(name):
            raise UserError(
                f"{name} is a workload of peagle plan; bench sends every prompt once, uncached",
                f"use --prompt-tokens {preset.prompt_tokens} --output-tokens "
                f"{preset.output_tokens}, or --workload {'|'.join(WORKLOADS)}|FILE",
                "unknown-workload",
            )
        hint = nearest(name, WORKLOADS) or f"choose {', '.join(WORKLOADS)}, or a file of prompts"
        raise UserError(f"there is no workload and no file {name}", hint, "unknown-workload")
    if prompt_tokens is not None:
        raise OptionsConflict(
            "prompts from a file have a size of their own", "leave out --prompt-tokens"
        )
    prompts = read_prompts(file)
    texts = tuple(_only_text(prompt, file) for prompt in prompts.prompts)
    size = Workload(0, output_tokens or DEFAULT_MAX_TOKENS)
    return BenchWorkload(file.stem, size, texts, fixed_length=False, digest=prompts.sha256)


def _only_text(prompt: Prompt, file: Path) -> str:
    content = prompt.text or prompt.messages[0].get("content")
    if len(prompt.messages) > 1 or not isinstance(content, str):
        why = "a load sends one text per request, not several messages"
        raise wrong_line(str(file), (prompt.line,), why, 'write {"prompt": "..."}')
    return content


def make_loads(
    workload: str,
    concurrencies: Sequence[int],
    repetitions: int = 3,
    requests: int | None = None,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
) -> tuple[BenchLoad, ...]:
    """The loads of a workload, by its name or its file, at these concurrencies. Each repetition
    sends ``requests``, by default twice the concurrency. Raises UserError as ``find_workload``
    does."""
    requested = find_workload(workload, prompt_tokens, output_tokens)
    return tuple(
        BenchLoad(
            requested,
            concurrency,
            max(requests or max(2 * concurrency, LEAST_REQUESTS), concurrency),
            repetitions,
        )
        for concurrency in concurrencies
    )


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
