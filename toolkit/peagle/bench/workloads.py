"""The requests of a load: prompts of a file, or random words of a named size."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
from peagle.catalog.documents import first_problem
from peagle.errors import OptionsConflict, OutOfRange, UserError, nearest
from peagle.protocol import follow_up_body, request_body
from peagle.text import format_decimal
from peagle.workload import BENCH_WORKLOADS, Workload
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, read_regular

LARGEST_FILE = 64 << 20

_FORM = 'write lines such as {"domain": "code", "prompt": "..."}'


Domain = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$"),
]
"""A kind of text, by whose name results are shown."""


class Prompt(BaseModel):
    """One line of the file, whose number is ``line``. It has exactly one of ``prompt`` and
    ``messages``. ``max_tokens`` limits the answer. The engine checks the rest of the messages."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    line: int
    prompt: str | None = None
    messages: list[dict[str, Any]] = []
    domain: Domain = "all"
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


DEFAULT_TURNS = 3
"""Of a conversation: as in the measurements of the catalogue."""


def find_workload(
    name: str,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    turns: int | None = None,
    think_seconds: float = 0.0,
) -> BenchWorkload:
    """The workload called ``name``, or the prompts of that file; sizes and turns replace its own.
    Raises UserError for an unknown name, for a file of other prompts or with a prompt size, and for
    turns that the prompts have no room for."""
    if preset := BENCH_WORKLOADS.get(name):
        size = preset.resized(prompt_tokens, output_tokens)
        parts = [name] if size == preset else [name, f"{size.prompt_tokens}x{size.output_tokens}"]
        if not preset.is_conversation:
            _refuse_turns(name, turns, think_seconds)
            return BenchWorkload("-".join(parts), size)
        turns = turns or DEFAULT_TURNS
        if first_turn_tokens(size, turns) <= size.shared_prompt_tokens:
            raise OutOfRange(
                f"prompts of {size.prompt_tokens:,} tokens are too short for {turns} turns, each "
                f"with {size.new_prompt_tokens:,} new tokens",
                "use fewer --turns, or more --prompt-tokens",
            )
        parts += [f"{turns}-turns"] if turns != DEFAULT_TURNS else []
        parts += [f"think-{format_decimal(think_seconds)}s"] if think_seconds else []
        return BenchWorkload("-".join(parts), size, turns=turns, think_seconds=think_seconds)
    file = Path(name).expanduser()
    if not file.exists():
        choices = f"choose {', '.join(BENCH_WORKLOADS)}, or a file of prompts"
        hint = nearest(name, BENCH_WORKLOADS) or choices
        raise UserError(f"there is no workload and no file {name}", hint, "unknown-workload")
    if prompt_tokens is not None:
        raise OptionsConflict(
            "prompts from a file have a size of their own", "leave out --prompt-tokens"
        )
    _refuse_turns(name, turns, think_seconds)
    prompts, texts = read_prompts(file), []
    for prompt in prompts.prompts:
        content = prompt.prompt or prompt.messages[0].get("content")
        if len(prompt.messages) > 1 or not isinstance(content, str):
            why = "a load sends one text per request, not several messages"
            raise wrong_line(name, (prompt.line,), why, 'write {"prompt": "..."}')
        texts.append(content)
    size = Workload(0, output_tokens or DEFAULT_MAX_TOKENS)
    return BenchWorkload(file.stem, size, tuple(texts), False, prompts.sha256)


def _refuse_turns(name: str, turns: int | None, think_seconds: float) -> None:
    if turns is not None or think_seconds:
        names = ", ".join(key for key, size in BENCH_WORKLOADS.items() if size.is_conversation)
        message = f"{name} has single prompts: --turns and --think-time are for conversations"
        raise OptionsConflict(message, f"omit them, or use --workload {names}")


def first_turn_tokens(size: Workload, turns: int) -> int:
    """The tokens of the first prompt of a conversation, whose later ones have ``size`` on average
    and its new tokens more than the prompt before them; of a single prompt all."""
    if turns == 1:
        return size.prompt_tokens
    return size.prompt_tokens - size.new_prompt_tokens * turns // 2


def largest_request(workloads: Sequence[BenchWorkload]) -> dict[str, int]:
    """The planning options for the last turn of the longest conversation, or the longest prompt
    with a cached prefix; none without such a workload."""
    sizes = []
    for size, turns in ((workload.size, workload.turns) for workload in workloads):
        if cached := size.cached_prompt_tokens:
            last = first_turn_tokens(size, turns) + (turns - 1) * size.new_prompt_tokens
            cached += last - size.prompt_tokens
            sizes.append(replace(size, prompt_tokens=last, cached_prompt_tokens=cached))
    return asdict(max(sizes, key=lambda size: size.tokens)) if sizes else {}


def make_loads(
    workload: str,
    concurrencies: Sequence[int],
    repetitions: int = 3,
    requests: int | None = None,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    turns: int | None = None,
    think_seconds: float = 0.0,
) -> tuple[BenchLoad, ...]:
    """The loads of a workload, by its name or its file, at these concurrencies. Each repetition
    sends ``requests``, by default twice the concurrency, or one conversation per stream. Raises
    UserError."""
    chosen = find_workload(workload, prompt_tokens, output_tokens, turns, think_seconds)
    if chosen.turns > 1 and requests is not None:
        message = "a repetition of conversations sends one per stream, with all its turns"
        raise OptionsConflict(message, "omit --requests; raise --turns or --repetitions")
    return tuple(
        BenchLoad(
            chosen,
            load,
            # One wave, so that no first turn is processed while later ones are measured.
            load * chosen.turns if chosen.turns > 1 else max(requests or max(2 * load, 4), load),
            repetitions,
        )
        for load in concurrencies
    )


def request_bodies(
    load: BenchLoad,
    *,
    model: str,
    chat: bool,
    words: int,
    added_words: int = 2,
    spare: int = 0,
    draw: random.Random | None = None,
) -> list[list[dict[str, Any]]]:
    """The bodies of the warm-up and of each repetition, then those of ``spare`` prompts or
    conversations, if any, with the turns of a conversation one after another. Random prompts have
    so many ``words`` on average, a turn ``added_words`` more than the one before; no two are the
    same, so that no cache of prefixes has more of them than the workload says.

    The history of a conversation is fixed: half of what a turn adds stands for the answer to the
    one before, so that all settings get the same prompts. aiperf puts real answers into chats only,
    and what a model writes, or its template leaves out, would change the sizes."""
    draw, workload = draw or random.Random(), load.workload
    phases = [load.concurrency * workload.turns] + [load.requests] * load.repetitions
    phases += [spare * workload.turns] if spare else []
    more: dict[str, Any] = {"model": model} | (
        {"ignore_eos": True} if workload.fixed_length else {}
    )
    if not chat:
        more |= {"messages": []}  # aiperf refuses a line without; vLLM ignores it
    size, turns = workload.size, workload.turns
    shared_words = words * size.shared_prompt_tokens // max(size.prompt_tokens, 1)
    shared = f"{random_prompt(shared_words, draw)} " if shared_words else ""
    first_words = words - added_words * turns // 2 if turns > 1 else words
    bodies: list[dict[str, Any]] = []
    while len(bodies) < sum(phases):
        if prompts := workload.prompts:
            prompt = prompts[len(bodies) % len(prompts)]
        else:
            prompt = shared + random_prompt(first_words - shared_words, draw)
        body = request_body(prompt, chat=chat, max_tokens=size.output_tokens, stream=True)
        bodies.append(body)
        for _ in range(turns - 1):
            half = added_words // 2
            answer, prompt = (
                " ".join(draw.choices(WORDS, k=count)) for count in (half, added_words - half)
            )
            body = follow_up_body(body, f" {answer}", prompt)
            bodies.append(body)
    complete = iter([body | more for body in bodies])
    return [[next(complete) for _ in range(count)] for count in phases]


def random_prompt(words: int, draw: random.Random) -> str:
    """A prompt of so many words; it begins with a random number, so no prefix cache has it."""
    number = str(draw.randrange(10**6))
    return " ".join((number, *draw.choices(WORDS, k=max(words - 1, 0))))


def is_random_prompt(text: str) -> bool:
    """Whether ``random_prompt`` may have made it."""
    number, *words = text.split() or [""]
    return number.isdecimal() and len(words) > 3 and {*words} <= {*WORDS}
