"""Whether speculation changes greedy answers, compared token by token.

A different number of tokens per step rounds differently, so where the target itself is undecided
the answers may part: a difference is explained only if the two best log probabilities of the
target, and that of the other token, differ by less than ``LARGEST_GAP`` there. Requests are sent
one at a time, since batches of other sizes round differently, too, and to one server after the
other, so that both fit on one GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.bench.acceptance import no_speculation
from peagle.bench.result import (
    DEFAULT_MAX_TOKENS,
    NO_SPECULATION,
    BenchSetting,
    Progress,
    silent,
    utc_now,
)
from peagle.bench.targets import BenchTarget, OpenAiServer, PromptRefused, RefusedPrompt
from peagle.bench.workloads import PromptSet, parse_prompts, read_prompts
from peagle.catalog.schema import Catalog
from peagle.deploy.proving import DEFAULT_PROOF, find_pair_of_tag
from peagle.errors import EngineError, NotProved, Unsupported, UserError, parsing, to_count
from peagle.protocol import parse_piece
from peagle.render.requests import tag_value
from peagle.workload import BENCH_WORKLOADS

LARGEST_GAP = 0.01
"""Between log probabilities, which differ from logits by a constant."""

_BEST = 5
"""How many log probabilities the target returns for each token."""


@dataclass(frozen=True)
class Transcript:
    """One answer: its tokens and text, the ``best`` log probabilities at each token, by token, and
    the tokens of the prompt; empty if the server was not asked, or does not tell."""

    line: int
    tokens: tuple[int, ...]
    text: str
    prompt: tuple[int, ...] = ()
    best: tuple[Mapping[int, float], ...] = ()


Answers = list[Transcript | RefusedPrompt]


def transcripts(
    prompts: PromptSet,
    server: OpenAiServer,
    name: str,
    max_tokens: int,
    is_target: bool,
    progress: Progress = silent,
) -> Answers:
    """The greedy answer to each prompt, or that it was refused; with log probabilities if
    ``is_target``. Raises as ``check_lossless`` does."""
    answers: Answers = []
    for done, prompt in enumerate(prompts.prompts):
        progress(name, done, len(prompts.prompts))
        body = prompt.body(chat=server.chat, max_tokens=max_tokens) | {"return_token_ids": True}
        if is_target:
            in_chats = {"logprobs": True, "top_logprobs": _BEST}
            logprobs = in_chats if "messages" in body else {"logprobs": _BEST}
            body |= {**logprobs, "return_tokens_as_token_ids": True}
        try:
            answers.append(read_transcript(server.ask(body), prompt.line, is_target))
        except PromptRefused as error:
            answers.append(RefusedPrompt(prompt.line, error.message))
    return answers


def read_transcript(answer: dict[str, Any], line: int, is_target: bool) -> Transcript:
    """The tokens in a chat or completion response of vLLM. Raises Unsupported where it has none,
    and EngineError for another format."""
    text = parse_piece(answer).written
    with parsing("the engine's response", EngineError):
        choice = answer["choices"][0]
        prompt = choice.get("prompt_token_ids") or answer.get("prompt_token_ids") or ()
        logprobs = choice.get("logprobs") if is_target else None
        if choice.get("token_ids") is None or (is_target and not logprobs):
            raise Unsupported(
                "the server does not return tokens and log probabilities",
                "compare vLLM servers of version 0.11 or later",
                "no-tokens",
            )
        tokens = tuple(to_count(token) for token in choice["token_ids"])
        best: tuple[dict[int, float], ...] = ()
        if logprobs:  # of a chat, or of a completion
            positions = [
                {each["token"]: each["logprob"] for each in entry["top_logprobs"]}
                for entry in logprobs.get("content") or ()
            ] or (logprobs.get("top_logprobs") or [])
            best = tuple(
                {
                    int(name.removeprefix("token_id:")): float(logprob)
                    for name, logprob in by_name.items()
                }
                for by_name in positions
            )
        return Transcript(line, tokens, text, tuple(map(to_count, prompt)), best)


@dataclass(frozen=True)
class TokenDifference:
    """Where an answer with speculation first differs from that of the target alone. A token is
    ``None`` where the answer has ended. ``gap`` is between the two best log probabilities there."""

    line: int
    domain: str
    position: int
    target_token: int | None
    other_token: int | None
    target_text: str
    other_text: str
    gap: float | None
    explained: bool


@dataclass(frozen=True)
class LosslessResult:
    """The comparison of ``prompts`` answers, of which ``tokens`` were compared, up to the first
    differences. ``passed``: answers were compared, and rounding explains each difference."""

    server: str
    against: str
    started: str
    file: str
    sha256: str
    max_tokens: int
    prompts: int
    tokens: int
    differences: tuple[TokenDifference, ...]
    refused: tuple[RefusedPrompt, ...]
    passed: bool
    largest_gap: float = LARGEST_GAP
    incomplete: str = ""
    format: int = 1

    @property
    def unexplained(self) -> tuple[TokenDifference, ...]:
        """The differences that rounding does not explain."""
        return tuple(difference for difference in self.differences if not difference.explained)


def check_lossless(
    target: BenchTarget,
    against: AbstractContextManager[BenchTarget],
    prompts: PromptSet,
    max_tokens: int,
    progress: Progress = silent,
) -> LosslessResult:
    """Compare ``target``, which speculates, with ``against``, which does not and is opened when the
    first has answered. Raises NotProved where ``target`` drafts nothing, UserError where
    ``against`` does, Unsupported for a server that returns no tokens, and what the servers
    raise."""
    name, started = target.facts.name, utc_now()
    if target.runs_alone:
        raise no_speculation(name)

    def collect(server: BenchTarget, is_target: bool) -> tuple[Answers, int | None]:
        """All answers; and how many drafts were made, ``None`` where that is unknown."""
        before, shown = server.read_counters(), server.facts.name
        answers = transcripts(prompts, server.server, shown, max_tokens, is_target, progress)
        after = server.read_counters()
        return answers, after.since(before).drafts if before and after else None

    ours, drafts = collect(target, False)
    if drafts == 0:
        raise no_speculation(name)
    with against as alone:
        theirs, drafts = collect(alone, True)
    if drafts:
        fix = "compare with a server of the same target without speculation"
        raise UserError(f"{alone.facts.name} speculates, too", fix, "wrong-against")
    against_name = alone.facts.name
    return compare_transcripts(prompts, ours, theirs, name, against_name, started, max_tokens)


def compare_transcripts(
    prompts: PromptSet,
    with_speculation: Sequence[Transcript | RefusedPrompt],
    alone: Sequence[Transcript | RefusedPrompt],
    server: str,
    against: str,
    started: str,
    max_tokens: int,
) -> LosslessResult:
    """The comparison of what both servers answered. Raises UserError for servers that read a prompt
    as different tokens."""
    domains = {prompt.line: prompt.domain for prompt in prompts.prompts}
    refused: list[RefusedPrompt] = []
    differences: list[TokenDifference] = []
    compared = tokens = 0
    for other, target in zip(with_speculation, alone, strict=False):
        if isinstance(target, RefusedPrompt):
            refused.append(target)
        elif isinstance(other, RefusedPrompt):
            refused.append(other)
        else:
            if other.prompt and target.prompt and other.prompt != target.prompt:
                raise UserError(
                    f"{prompts.file}, line {target.line}: the two servers read the prompt as "
                    "different tokens",
                    "compare the same target, with the same tokenizer and chat template",
                    "wrong-against",
                )
            compared += 1
            difference = first_difference(other, target, domains[target.line])
            tokens += difference.position if difference else len(target.tokens)
            differences += [difference] if difference else []
    return LosslessResult(
        server=server,
        against=against,
        started=started,
        file=prompts.file,
        sha256=prompts.sha256,
        max_tokens=max_tokens,
        prompts=compared,
        tokens=tokens,
        differences=tuple(differences),
        refused=tuple(refused),
        passed=compared > 0 and all(difference.explained for difference in differences),
    )


def first_difference(
    other: Transcript, target: Transcript, domain: str = ""
) -> TokenDifference | None:
    """Where the answers part; ``None`` for equal ones."""
    if other.tokens == target.tokens:
        return None
    position = _shared(other.tokens, target.tokens)
    target_token = target.tokens[position] if position < len(target.tokens) else None
    other_token = other.tokens[position] if position < len(other.tokens) else None
    best = target.best[position] if position < len(target.best) else {}
    ranked = sorted(best.values(), reverse=True)
    gap = ranked[0] - ranked[1] if len(ranked) > 1 else None
    is_near = any(ranked[0] - best[token] < LARGEST_GAP for token in best if token == other_token)
    same = _shared(other.text, target.text)
    theirs, ours = (text[same : same + 60] for text in (target.text, other.text))
    explained = gap is not None and gap < LARGEST_GAP and is_near
    return TokenDifference(
        target.line, domain, position, target_token, other_token, theirs, ours, gap, explained
    )


def _shared(other: Sequence[object], target: Sequence[object]) -> int:
    """The length of the common beginning."""
    pairs = enumerate(zip(other, target, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(other), len(target)))


def require_lossless(result: LosslessResult) -> None:
    """Raise NotProved, with the first unexplained difference, unless ``result`` passed."""
    if result.passed:
        return
    if not result.prompts:
        raise NotProved(
            "no answers were compared", "use prompts that fit the context", "nothing-compared"
        )
    first, *others = result.unexplained
    more = f" ({len(others)} more)" if others else ""
    raise NotProved(
        f"speculation changes the answers: line {first.line}, token {first.position}: "
        f"{first.other_text!r}, without it {first.target_text!r}{more}",
        "serve both with --set dtype=float32 to tell rounding from an error of the engine",
        "not-lossless",
    )


def find_prompts(catalog: Catalog, pair: str | None) -> PromptSet:
    """The prompts with which a deployment of ``pair`` is proved; of an unknown pair, some
    questions."""
    target, _ = find_pair_of_tag(tag_value(pair), catalog) if pair else (None, None)
    texts = ((target and target.proof) or DEFAULT_PROOF).prompts
    lines = [json.dumps({"prompt": text}) for text in texts]
    return parse_prompts("\n".join(lines).encode(), "the catalogue's prompts")


class SweepLossless:
    """Collects the answers of each setting while its engine runs, except with an imposed
    acceptance, whose answers are not the target's. The prompts are those of the first workload that
    is a file, else the catalogue's of ``pair``."""

    def __init__(
        self, catalog: Catalog, pair: str, workloads: Sequence[str], progress: Progress = silent
    ) -> None:
        """Raises UserError for a file without prompts."""
        file = next((Path(name) for name in workloads if name not in BENCH_WORKLOADS), None)
        self.prompts = read_prompts(file.expanduser()) if file else find_prompts(catalog, pair)
        self._progress, self._started = progress, utc_now()
        self._answers: dict[BenchSetting, Answers] = {}

    def ask(self, setting: BenchSetting, target: BenchTarget) -> None:
        """Ask the engine of this setting, which has just started. Raises what the server raises,
        and Unsupported where it returns no tokens."""
        if not setting.imposed_rates and setting not in self._answers:
            self._answers[setting] = transcripts(
                self.prompts, target.server, setting.text, DEFAULT_MAX_TOKENS, not setting.k,
                self._progress,
            )  # fmt: skip

    def complete(
        self,
        settings: Sequence[BenchSetting],
        opened: Callable[[BenchSetting], AbstractContextManager[object]],
    ) -> None:
        """Start the engines of these settings, and of the target alone, that have not been asked:
        their rows were measured earlier, or the sweep has no such setting."""
        asked = [setting for setting in settings if setting.k and not setting.imposed_rates]
        for setting in (*asked, *([NO_SPECULATION] if asked else [])):
            if setting not in self._answers:
                with opened(setting):  # which asks it
                    pass

    @property
    def results(self) -> tuple[LosslessResult, ...]:
        """The comparison of each setting with the target alone."""
        alone, more = self._answers.get(NO_SPECULATION, []), (self._started, DEFAULT_MAX_TOKENS)
        return tuple(
            compare_transcripts(
                self.prompts, answers, alone, setting.text, NO_SPECULATION.text, *more
            )
            for setting, answers in self._answers.items()
            if setting.k
        )
