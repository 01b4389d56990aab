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
from peagle.render.plan_file import first_problem
from peagle.workload import WORKLOADS, Workload
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, read_regular

LARGEST_FILE = 64 << 20

_FORM = 'write lines such as {"domain": "code", "prompt": "..."}'


class Prompt(BaseModel):
    """One line of the file, whose number is ``line``. It has exactly one of ``prompt`` and
    ``messages``. ``max_tokens`` limits the answer. The engine checks the rest of the messages."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    line: int
    prompt: str | None = None
    messages: list[dict[str, Any]] = []
    domain: Annotated[
        str,
        StringConstraints(strip_whitespace=True, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$"),
    ] = "all"
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if self.prompt is not None and self.messages:
            raise ValueError("needs either prompt or messages")
        texts = [self.prompt, *(message.get("content") for message in self.messages)]
        if not any(text.strip() if isinstance(text, str) else text for text in texts):
            raise ValueError("has no text in prompt or messages")
        return self

    def body(self, *, chat: bool, max_tokens: int, temperature: float = 0.0) -> dict[str, Any]:
        """The request body; with ``chat`` a ``prompt`` becomes the user's message. ``max_tokens``
        applies where the line says nothing."""
        limit = self.max_tokens or max_tokens
        if self.prompt is not None:
            return request_body(self.prompt, chat=chat, max_tokens=limit, temperature=temperature)
        return {"max_tokens": limit, "temperature": temperature, "messages": self.messages}


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a file, in its order. ``sha256`` is of the file's bytes."""

    file: str
    sha256: str
    prompts: tuple[Prompt, ...]

    @property
    def domains(self) -> dict[str, list[Prompt]]:
        """The prompts by domain, in the order in which the domains first occur."""
        domains: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            domains.setdefault(prompt.domain, []).append(prompt)
        return domains


def read_prompts(file: Path) -> PromptSet:
    """The prompts in ``file``. Raises UserError, which names the line, for a file that is missing,
    empty, or not JSON lines with prompts."""
    try:
        return parse_prompts(read_regular(file, LARGEST_FILE), str(file))
    except OSError as error:
        raise UserError(
            f"{file} cannot be read: {error.strerror}", "name a file of JSON lines", "prompts"
        ) from error


def parse_prompts(data: bytes, file: str) -> PromptSet:
    """The prompts in the content of ``file``. Raises UserError as ``read_prompts`` does."""
    prompts: list[Prompt] = []
    for number, content in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not content.strip():
            continue
        try:
            document = json_reader.read(content, "the line", limit=6 << 20)
            if isinstance(document, dict):
                document["line"] = number
            prompts.append(Prompt.model_validate(document))
        except InvalidJson as error:
            raise wrong_line(file, (number,), error.why, _FORM) from error
        except ValidationError as error:
            raise wrong_line(file, (number,), first_problem(error, Prompt), _FORM) from error
    if not prompts:
        raise UserError(f"{file} has no prompts", _FORM, "prompts")
    return PromptSet(file, hashlib.sha256(data).hexdigest(), tuple(prompts))


def wrong_line(file: str, lines: Sequence[int], why: str, fix: str) -> UserError:
    """The error that these lines of ``file`` cannot be used."""
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return UserError(f"{file}, line {lines[0]}{more}: {why}", fix, "prompts")


_TEXT = (
    "time year people way day thing woman life child world school family student group country "
    "problem hand part place case week company system program question work number night point "
    "home water room area money story fact month lot right study book eye job word business side"
)
WORDS = _TEXT.split()
"""Of which random prompts are made."""


def find_workload(
    name: str, prompt_tokens: int | None = None, output_tokens: int | None = None
) -> BenchWorkload:
    """The workload called ``name``, or the prompts of that file; sizes replace its own. Raises
    UserError for an unknown name, for a file of other prompts, and for a prompt size of a file."""
    if preset := WORKLOADS.get(name):
        size = Workload(
            prompt_tokens or preset.prompt_tokens, output_tokens or preset.output_tokens
        )
        sizes = "" if size == preset else f"-{size.prompt_tokens}x{size.output_tokens}"
        return BenchWorkload(f"{name}{sizes}", size)
    file = Path(name).expanduser()
    if not file.exists():
        hint = nearest(name, WORKLOADS) or f"choose {', '.join(WORKLOADS)}, or a file of prompts"
        raise UserError(f"there is no workload and no file {name}", hint, "unknown-workload")
    if prompt_tokens is not None:
        raise OptionsConflict(
            "prompts from a file have a size of their own", "leave out --prompt-tokens"
        )
    prompts, texts = read_prompts(file), []
    for prompt in prompts.prompts:
        content = prompt.prompt or prompt.messages[0].get("content")
        if len(prompt.messages) > 1 or not isinstance(content, str):
            why = "a load sends one text per request, not several messages"
            raise wrong_line(name, (prompt.line,), why, 'write {"prompt": "..."}')
        texts.append(content)
    size = Workload(0, output_tokens or DEFAULT_MAX_TOKENS)
    return BenchWorkload(file.stem, size, tuple(texts), False, prompts.sha256)


def make_loads(
    workload: str,
    concurrencies: Sequence[int],
    repetitions: int = 3,
    requests: int | None = None,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
) -> tuple[BenchLoad, ...]:
    """The loads of a workload, by its name or its file, at these concurrencies. Each repetition
    sends ``requests``, by default twice the concurrency. Raises UserError."""
    requested = find_workload(workload, prompt_tokens, output_tokens)
    return tuple(
        BenchLoad(requested, load, max(requests or max(2 * load, 4), load), repetitions)
        for load in concurrencies
    )


def request_bodies(
    load: BenchLoad, *, model: str, chat: bool, words: int, draw: random.Random | None = None
) -> list[list[dict[str, Any]]]:
    """The bodies of the warm-up and of each repetition; random prompts have so many ``words``, and
    no two are the same, so no cache of prefixes has them."""
    draw, workload = draw or random.Random(), load.workload
    phases = [load.concurrency] + [load.requests] * load.repetitions
    prompts: Sequence[str] = workload.prompts
    prompts = prompts or [random_prompt(words, draw) for _ in range(sum(phases))]
    more: dict[str, Any] = {"model": model} | (
        {"ignore_eos": True} if workload.fixed_length else {}
    )
    if not chat:
        more |= {"messages": []}  # aiperf refuses a line without; vLLM ignores it
    most = workload.size.output_tokens
    bodies = (
        request_body(prompts[number % len(prompts)], chat=chat, max_tokens=most, stream=True) | more
        for number in range(sum(phases))
    )
    return [[next(bodies) for _ in range(count)] for count in phases]


def random_prompt(words: int, draw: random.Random) -> str:
    """A prompt of so many words; it begins with a random number, so no prefix cache has it."""
    number = str(draw.randrange(10**6))
    return " ".join((number, *draw.choices(WORDS, k=max(words - 1, 0))))
