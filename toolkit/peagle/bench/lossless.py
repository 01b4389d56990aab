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

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from peagle.bench.measure import BenchTarget
from peagle.bench.models import utc_now
from peagle.bench.openai_server import RefusedPrompt
from peagle.bench.prompts import PromptSet
from peagle.bench.transcripts import Transcript, TranscriptProgress, transcripts
from peagle.errors import NotProved, PeagleError, UserError
from peagle.protocol import Counters

LOSSLESS_FORMAT = 1

LARGEST_GAP = 0.01
"""Between log probabilities, which differ from logits by a constant."""

_SHOWN = 60
_OTHER_SERVER = "compare a server that speculates"


class AgainstSpeculates(UserError, code="against-speculates"):
    """The server to compare with speculates, so its answers are not the target's alone."""


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
    difference of each answer. ``incomplete`` is the message of the error that ended it early."""

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
    incomplete: str = ""
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


def check_lossless(
    target: BenchTarget,
    against: AbstractContextManager[BenchTarget],
    prompts: PromptSet,
    max_tokens: int,
    *,
    keep: Callable[[LosslessResult], object] = lambda result: None,
    progress: TranscriptProgress = lambda server, done, count: None,
) -> LosslessResult:
    """Compare ``target``, which speculates, with ``against``, which does not and is opened when the
    first has answered. A comparison that does not pass is returned too: ``require_lossless`` raises
    for it.

    An error or an interrupt ends it; then ``keep`` receives the comparison of what both answered
    until then, if anything, before the error is raised again. Raises NotProved where ``target`` is
    known to draft nothing, AgainstSpeculates where ``against`` does, Unsupported for a server that
    does not return tokens, and what the servers raise.
    """
    if target.runs_alone:
        raise NotProved(f"{target.facts.name} does not speculate", _OTHER_SERVER, "no-speculation")
    started = utc_now()
    ours: list[Transcript | RefusedPrompt] = []
    theirs: list[Transcript | RefusedPrompt] = []
    names = [target.facts.name, "the target alone"]

    def compared(ended: str) -> LosslessResult:
        return compare_transcripts(
            prompts, ours, theirs, server=names[0], against=names[1],
            started=started, max_tokens=max_tokens, ended=ended,
        )  # fmt: skip

    try:
        before = target.read_counters()
        for one in transcripts(prompts, target.server, names[0], max_tokens, False, progress):
            ours.append(one)
        if _drafts_since(before, target.read_counters()) == 0:
            raise NotProved(
                f"{names[0]} drafted nothing, so there is nothing to compare",
                _OTHER_SERVER,
                "no-speculation",
            )
        with against as alone:
            names[1] = alone.facts.name
            before = alone.read_counters()
            for one in transcripts(prompts, alone.server, names[1], max_tokens, True, progress):
                theirs.append(one)
            if _drafts_since(before, alone.read_counters()):
                raise AgainstSpeculates(
                    f"{names[1]} speculates, too",
                    "compare with a server of the same target without speculation",
                )
    except AgainstSpeculates:
        raise
    except (PeagleError, KeyboardInterrupt) as error:
        if theirs:
            keep(compared(error.message if isinstance(error, PeagleError) else "interrupted"))
        raise
    return compared("")


def _drafts_since(before: Counters | None, after: Counters | None) -> int | None:
    """The drafts between two readings; ``None`` where they are unknown."""
    return after.since(before).drafts if before and after else None


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
        compared, tokens, tuple(differences), tuple(refused), incomplete=ended,
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
        raise NotProved(
            "no answers were compared", "use prompts that fit the context", "nothing-compared"
        )
    first, *others = result.unexplained
    more = f"; and {len(others)} more" if others else ""
    raise NotProved(
        f"speculation changes the answers: {first.text}{more}",
        "serve both with --set dtype=float32 to tell rounding from an error of the engine",
        "not-lossless",
    )
