"""Compare greedy answers with and without speculation, token by token.

Speculation must not change what greedy decoding writes. A different number of tokens per step
rounds differently, though, so where the target itself is undecided the answers may part: a
difference is explained only if the two best log probabilities of the target, and that of the other
token, differ by less than ``LARGEST_GAP`` there. After the first difference the answers have
different contexts, so nothing else of them is compared.

Requests are sent one at a time: batches of other sizes round differently, too. The two servers are
asked one after the other, so that both fit on one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peagle.bench.asking import Ask, PromptRefused, RefusedPrompt
from peagle.bench.prompts import PromptSet
from peagle.errors import EngineError, NotProved, Unsupported, UserError, count_of, parsing
from peagle.protocol import piece_of

LOSSLESS_FORMAT = 1

LARGEST_GAP = 0.01
"""Between log probabilities, which differ from logits by a constant."""

_BEST = 5
"""How many log probabilities the target returns for each token."""

_AS_ID = "token_id:"
_SHOWN = 60

TranscriptProgress = Callable[[str, int, int], object]
"""Called with the server, and how many prompts of how many are answered."""


@dataclass(frozen=True)
class Transcript:
    """One answer: its tokens and text. ``best`` are the best log probabilities at each token, by
    token; empty if they were not asked for. ``prompt`` are the tokens of the prompt, empty if the
    server does not tell."""

    line: int
    tokens: tuple[int, ...]
    text: str
    prompt: tuple[int, ...] = ()
    best: tuple[Mapping[int, float], ...] = ()


@dataclass(frozen=True)
class TokenDifference:
    """Where an answer with speculation first differs from that of the target alone.

    ``position`` counts the tokens of the answer from 0. The continuations begin at the first
    character that differs; a token is ``None`` where the answer has ended. ``gap`` is between the
    two best log probabilities of the target there, ``None`` after its end.
    """

    line: int
    domain: str
    position: int
    target_token: int | None
    other_token: int | None
    target_text: str
    other_text: str
    gap: float | None
    explained: bool

    @property
    def text(self) -> str:
        """The difference in one sentence."""
        gap = "the target had ended" if self.gap is None else f"a gap of {self.gap:.4f}"
        return (
            f"line {self.line}, token {self.position}: {self.other_text!r} with speculation, "
            f"{self.target_text!r} without ({gap})"
        )


@dataclass(frozen=True)
class LosslessResult:
    """The comparison of ``prompts`` answers. ``tokens`` are those compared, up to the first
    difference of each answer. ``ended`` is the message of the error that ended it early."""

    server: str
    against: str
    started: str
    file: str
    sha256: str
    max_tokens: int
    prompts: int
    tokens: int
    differences: tuple[TokenDifference, ...]
    refused: tuple[RefusedPrompt, ...] = ()
    largest_gap: float = LARGEST_GAP
    ended: str = ""
    format: int = LOSSLESS_FORMAT

    @property
    def unexplained(self) -> tuple[TokenDifference, ...]:
        """The differences that rounding does not explain."""
        return tuple(one for one in self.differences if not one.explained)

    @property
    def passed(self) -> bool:
        """Whether answers were compared, and rounding explains each difference."""
        return self.prompts > 0 and not self.unexplained

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints and a file holds."""
        return {**asdict(self), "passed": self.passed}


def transcripts(
    prompts: PromptSet,
    server: str,
    ask: Ask,
    *,
    chat: bool,
    max_tokens: int,
    is_target: bool,
    progress: TranscriptProgress = lambda server, done, count: None,
) -> Iterator[Transcript | RefusedPrompt]:
    """The greedy answer to each prompt, or that it was refused; with log probabilities if
    ``is_target``.

    Raises Unsupported for a server that does not return tokens, and what ``ask`` raises.
    """
    for done, prompt in enumerate(prompts.prompts):
        progress(server, done, len(prompts.prompts))
        body = prompt.body(chat=chat, max_tokens=max_tokens)
        body |= {"return_token_ids": True}
        if is_target:
            logprobs = {"logprobs": True, "top_logprobs": _BEST}
            body |= logprobs if "messages" in body else {"logprobs": _BEST}
            body |= {"return_tokens_as_token_ids": True}
        try:
            answer = ask(body)
        except PromptRefused as error:
            yield RefusedPrompt(prompt.line, error.message)
        else:
            yield read_transcript(answer, prompt.line, is_target)
    progress(server, len(prompts.prompts), len(prompts.prompts))


def read_transcript(answer: dict[str, Any], line: int, is_target: bool) -> Transcript:
    """The tokens in a chat or completion response of vLLM.

    Raises Unsupported where it has none, and EngineError for another format.
    """
    text = piece_of(answer).written
    with parsing("the engine's response", EngineError):
        choice = answer["choices"][0]
        prompt = choice.get("prompt_token_ids") or answer.get("prompt_token_ids") or ()
        if choice.get("token_ids") is None:
            raise _no_tokens("tokens")
        tokens = tuple(count_of(token) for token in choice["token_ids"])
        best: tuple[dict[int, float], ...] = ()
        if is_target:
            if not choice.get("logprobs"):
                raise _no_tokens("log probabilities")
            best = tuple(_best(choice["logprobs"]))
            if len(best) != len(tokens):
                raise ValueError(f"{len(best)} log probabilities of {len(tokens)} tokens")
        return Transcript(line, tokens, text, tuple(map(count_of, prompt)), best)


def _no_tokens(what: str) -> Unsupported:
    return Unsupported(
        f"the server does not return {what}",
        "compare vLLM servers of version 0.11 or later",
        "no-tokens",
    )


def _best(logprobs: Mapping[str, Any]) -> Iterator[dict[int, float]]:
    """Token -> log probability at each position, of a chat (``content``) or a completion."""
    if "content" in logprobs:
        for entry in logprobs["content"] or ():
            yield {_token(one["token"]): _finite(one["logprob"]) for one in entry["top_logprobs"]}
    else:
        for by_token in logprobs["top_logprobs"] or ():
            yield {_token(name): _finite(value) for name, value in by_token.items()}


def _token(name: str) -> int:
    digits = name.removeprefix(_AS_ID)
    if not name.startswith(_AS_ID) or not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{name[:40]!r} is not a token")
    return count_of(int(digits[:20]))


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value < 0.001:
        raise ValueError(f"{value!r} is not a log probability")
    return float(value)


def compare_transcripts(
    prompts: PromptSet,
    with_speculation: Sequence[Transcript | RefusedPrompt],
    alone: Sequence[Transcript | RefusedPrompt],
    *,
    server: str,
    against: str,
    started: str,
    max_tokens: int,
    ended: str = "",
) -> LosslessResult:
    """The comparison of what both servers answered; of the first prompts only, if either ended
    early. Raises UserError for servers that read a prompt as different tokens."""
    domains = {prompt.line: prompt.domain for prompt in prompts.prompts}
    refused: list[RefusedPrompt] = []
    differences: list[TokenDifference] = []
    compared = tokens = 0
    for other, target in zip(with_speculation, alone, strict=False):
        if isinstance(other, RefusedPrompt) or isinstance(target, RefusedPrompt):
            refused.append(target if isinstance(target, RefusedPrompt) else _as_refused(other))
            continue
        _require_same_prompt(prompts.file, other, target)
        compared += 1
        found = first_difference(other, target, domains[target.line])
        tokens += found.position if found else len(target.tokens)
        if found:
            differences.append(found)
    return LosslessResult(
        server, against, started, prompts.file, prompts.sha256, max_tokens,
        compared, tokens, tuple(differences), tuple(refused), ended=ended,
    )  # fmt: skip


def _as_refused(answer: Transcript | RefusedPrompt) -> RefusedPrompt:
    return answer if isinstance(answer, RefusedPrompt) else RefusedPrompt(answer.line, "refused")


def _require_same_prompt(file: str, other: Transcript, target: Transcript) -> None:
    if other.prompt and target.prompt and other.prompt != target.prompt:
        raise UserError(
            f"{file}, line {target.line}: the two servers read the prompt as different tokens",
            "compare the same target, with the same tokenizer and chat template",
            "not-the-same-target",
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
    is_near = any(ranked[0] - best[one] < LARGEST_GAP for one in best if one == other_token)
    same = _shared(other.text, target.text)
    return TokenDifference(
        target.line,
        domain,
        position,
        target_token,
        other_token,
        target.text[same : same + _SHOWN],
        other.text[same : same + _SHOWN],
        gap,
        gap is not None and gap < LARGEST_GAP and is_near,
    )


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def require_lossless(result: LosslessResult) -> None:
    """Raise NotProved, with the first unexplained difference, unless ``result`` passed."""
    if result.passed:
        return
    if not result.prompts:
        raise NotProved("no answers were compared", "use prompts that fit the context", "lossless")
    first, *others = result.unexplained
    more = f"; and {len(others)} more" if others else ""
    raise NotProved(
        f"speculation changes the answers: {first.text}{more}",
        "serve both with --set dtype=float32 to tell rounding from an error of the engine",
        "not-lossless",
    )
