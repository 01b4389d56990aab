"""The workloads by name, from a file or of given sizes, and their request bodies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.bench.models import DEFAULT_MAX_TOKENS, BenchLoad, BenchWorkload
from peagle.bench.prompts import Prompt, read_prompts
from peagle.errors import OptionsConflict, UserError, nearest
from peagle.protocol import request_body
from peagle.speed.models import PRESETS, WORKLOADS, Workload

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
