"""Acceptance on the user's own prompts, and whether speculation changes greedy answers.

Acceptance: prompts are sent in small groups, and the engine's counters are read after each: the
groups give the confidence interval. Domains follow each other, since the counters do not know them.
A file of it is used in a catalogue, or imposed on engines: vLLM's synthetic sampler accepts drafts
at given rates, whatever the drafter proposes.

Lossless: greedy answers are compared token by token. A different number of tokens per step rounds
differently, so where the target itself is undecided the answers may part: a difference is explained
only if the two best log probabilities of the target, and that of the other token, differ by less
than ``LARGEST_GAP`` there. Requests are sent one at a time, since batches of other sizes round
differently, too, and to one server after the other, so that both fit on one GPU.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from peagle.bench.measure import BenchTarget
from peagle.bench.models import (
    DEFAULT_MAX_TOKENS,
    NO_SPECULATION,
    BenchedServer,
    BenchSetting,
    CounterSource,
    Interval,
    MeasuredAcceptance,
    Progress,
    ratio_interval,
    silent,
    utc_now,
)
from peagle.bench.server import OpenAiServer, PromptRefused, RefusedPrompt, ask_together
from peagle.bench.workloads import Prompt, PromptSet, parse_prompts, read_prompts, wrong_line
from peagle.catalog.find import find_pair, pair_name
from peagle.catalog.schema import Catalog, Drafter, Target, TextAcceptance
from peagle.deploy.proving import DEFAULT_PROMPTS, find_pair_of_tag
from peagle.errors import (
    EngineError,
    Fix,
    NotProved,
    PeagleError,
    Unsupported,
    UserError,
    count_of,
    nearest,
    parsing,
)
from peagle.planning.plan import Plan
from peagle.planning.speculation import with_speculation, without_floor
from peagle.protocol import Counters, parse_piece
from peagle.render.requests import tag_value
from peagle.speed.models import WORKLOADS, AcceptanceBasis
from peagle.store import read_record

ACCEPTANCE_FORMAT = 1

GROUPS = 20
"""A domain is sent in so many groups, if it has as many prompts."""

GROUPS_OF_LOG = 4
"""The same where drafts are counted in a log, which is written every 10 s."""

FEW_DRAFTS = 100
"""Fewer drafts give no reliable mean."""

TOTAL = "all domains"

_NONE = Counters(0, 0, 0)
_OTHER_SERVER = "measure a server that speculates"
_MAX_OWN_TOKEN_RATIO = 1.05
"""With more tokens counted than this times those of the own answers, others sent requests too."""


@dataclass(frozen=True)
class AcceptanceRequest:
    """How to send the prompts. ``max_tokens`` applies to lines without their own; temperature 0 is
    greedy decoding. ``concurrency`` is the largest number of requests at a time. ``groups`` is in
    how many parts a domain is sent: more give a better interval, and more often wait for the last
    answer."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    concurrency: int = 4
    groups: int = GROUPS


@dataclass(frozen=True)
class DomainAcceptance:
    """The acceptance of one domain. ``interval`` is the 95 % confidence interval of its length;
    its bounds are the length itself where one group was sent. Refused prompts are not counted in
    ``prompts``."""

    domain: str
    prompts: int
    groups: int
    output_tokens: int
    acceptance: MeasuredAcceptance
    interval: Interval

    @property
    def is_reliable(self) -> bool:
        """Whether there are enough drafts for a mean."""
        return self.acceptance.drafts >= FEW_DRAFTS


@dataclass(frozen=True)
class AcceptanceResult:
    """The acceptance of a server's drafter on a file of prompts.

    ``started`` is an ISO 8601 time in UTC; ``file`` and ``sha256`` identify the prompts. ``source``
    is where drafts were counted. ``total`` is of all domains together, weighted as in the file;
    in ``undrafted`` domains nothing was drafted. ``others_sent``: other clients sent requests
    meanwhile, which are counted, too. ``incomplete`` is the message of the error that ended it
    early, ``""`` when all prompts were sent.
    """

    server: BenchedServer
    setting: BenchSetting
    started: str
    file: str
    sha256: str
    k: int
    source: CounterSource
    request: AcceptanceRequest
    total: DomainAcceptance
    domains: tuple[DomainAcceptance, ...]
    undrafted: tuple[str, ...] = ()
    refused: tuple[RefusedPrompt, ...] = ()
    others_sent: bool = False
    incomplete: str = ""
    format: int = ACCEPTANCE_FORMAT

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints and a file holds; ``read_acceptance`` reads it."""
        return asdict(self)


@dataclass(frozen=True)
class _DomainCounts:
    """What was counted while a few prompts of one domain were answered."""

    domain: str
    prompts: int
    output_tokens: int
    counted: Counters
    refused: tuple[RefusedPrompt, ...]


def measure_acceptance(
    target: BenchTarget,
    prompts: PromptSet,
    request: AcceptanceRequest,
    *,
    keep: Callable[[AcceptanceResult], object] = lambda result: None,
    progress: Progress = silent,
) -> AcceptanceResult:
    """Send all prompts and evaluate what the engine counts meanwhile.

    An error or an interrupt ends it; then ``keep`` receives what was measured until then, if
    anything, before the error is raised again. Prompts that the engine refuses are left out and
    listed. Raises Unsupported for a server without counters, NotProved where nothing is drafted,
    UserError where every prompt is refused, and what the server raises.
    """
    measurement = _AcceptanceRun(target, prompts, request)
    try:
        for group in measurement.groups(progress):
            measurement.measured.append(group)
            _require_drafts(measurement.measured)
    except (PeagleError, KeyboardInterrupt) as error:
        if any(group.counted.drafts for group in measurement.measured):
            why = error.message if isinstance(error, PeagleError) else "interrupted"
            keep(measurement.result(why))
        raise
    if not any(group.prompts for group in measurement.measured):
        refused = [one for group in measurement.measured for one in group.refused]
        lines = [one.line for one in refused]
        why = f"the engine refuses every prompt: {refused[0].message}"
        fix = "shorten the prompts, lower max_tokens, or lower --output-tokens"
        raise wrong_line(prompts.file, lines, why, fix)
    return measurement.result("")


def acceptance_bytes(result: AcceptanceResult) -> bytes:
    """The content of a file for ``read_acceptance``."""
    return (json.dumps(result.document(), indent=2, ensure_ascii=False) + "\n").encode()


def require_none_refused(result: AcceptanceResult) -> None:
    """Raise UserError, with the lines, where the engine refused prompts of ``result``."""
    if not result.refused:
        return
    lines = [one.line for one in result.refused]
    why = f"the engine refuses the prompt: {result.refused[0].message}"
    fix = "shorten it, lower its max_tokens, or remove the line; the other prompts were measured"
    raise wrong_line(result.file, lines, why, fix)


class _AcceptanceRun:
    """The groups of one measurement, as they are sent."""

    def __init__(self, target: BenchTarget, prompts: PromptSet, request: AcceptanceRequest) -> None:
        self.measured: list[_DomainCounts] = []
        self._target, self._prompts, self._request = target, prompts, request
        self._started = utc_now()

    def groups(self, progress: Progress) -> Iterator[_DomainCounts]:
        """Send the prompts, group by group."""
        request = self._request
        before = self._counters()
        for domain, members in self._prompts.domains.items():
            size = max(1, ceil(len(members) / request.groups))
            for first in range(0, len(members), size):
                progress(domain, first, len(members))
                asked = [(one, self._body(one)) for one in members[first : first + size]]
                answers, refused = ask_together(self._target.server.ask, asked, request.concurrency)
                after = self._counters()
                tokens = sum(parse_piece(answer).output_tokens or 0 for answer in answers)
                yield _DomainCounts(
                    domain, len(answers), tokens, after.since(before), tuple(refused)
                )
                before = after
            progress(domain, len(members), len(members))

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        return prompt.body(
            chat=self._target.server.chat,
            max_tokens=self._request.max_tokens,
            temperature=self._request.temperature,
        )

    def _counters(self) -> Counters:
        found = self._target.read_counters()
        if found is None and self._target.runs_alone:
            name = self._target.facts.name
            raise NotProved(f"{name} does not speculate", _OTHER_SERVER, "no-speculation")
        if found is None:
            raise Unsupported(
                "the server does not tell how many drafts it accepts",
                "use a vLLM server with /metrics, or an endpoint whose log can be read",
                "no-counters",
            )
        return found

    def result(self, ended: str) -> AcceptanceResult:
        """What the groups measured. Raises NotProved where nothing was drafted."""
        groups, prompts = self.measured, self._prompts
        is_imposed = bool(self._target.setting.imposed_rates)
        basis: AcceptanceBasis = "imposed" if is_imposed else "measured"
        by_domain = {
            domain: _of_groups(domain, [one for one in groups if one.domain == domain], basis)
            for domain in dict.fromkeys(group.domain for group in groups)
        }
        total = _of_groups(TOTAL, groups, basis)
        if total is None:
            raise NotProved(
                "the answers are too short: nothing was drafted",
                "raise --max-tokens",
                "too-few-drafts",
            )
        k = len(total.acceptance.per_position)
        return AcceptanceResult(
            server=self._target.facts,
            setting=self._target.setting,
            started=self._started,
            file=prompts.file,
            sha256=prompts.sha256,
            k=k,
            source=self._target.counted_by,
            request=self._request,
            total=total,
            domains=tuple(one for one in by_domain.values() if one is not None),
            undrafted=tuple(domain for domain, one in by_domain.items() if one is None),
            refused=tuple(one for group in groups for one in group.refused),
            others_sent=_tokens_of_steps(groups, k) > _MAX_OWN_TOKEN_RATIO * total.output_tokens,
            incomplete=ended,
        )


def _tokens_of_steps(groups: Sequence[_DomainCounts], k: int) -> int:
    """The output tokens of all steps, at least. A step outputs its accepted tokens and one more;
    the last step of an answer may output less than it counts."""
    counted = sum((group.counted for group in groups), _NONE)
    answers = sum(group.prompts for group in groups)
    return counted.drafts + counted.accepted_tokens - answers * k


def _require_drafts(groups: Sequence[_DomainCounts]) -> None:
    """Raise NotProved where several tokens were generated and nothing was drafted."""
    tokens = sum(group.output_tokens for group in groups)
    answered = sum(group.prompts for group in groups)
    if tokens > 2 * answered and not any(group.counted.drafts for group in groups):
        raise NotProved(
            f"the server wrote {tokens:,} tokens and drafted nothing: it does not speculate",
            _OTHER_SERVER,
            "no-speculation",
        )


def _of_groups(
    domain: str, groups: Sequence[_DomainCounts], basis: AcceptanceBasis
) -> DomainAcceptance | None:
    """The acceptance of all groups together; ``None`` where nothing was drafted."""
    counted = sum((group.counted for group in groups), _NONE)
    parts = [(group.counted.accepted_tokens, group.counted.drafts) for group in groups]
    share = ratio_interval(parts)
    if share is None:
        return None
    positions = counted.accepted_per_position
    measured = MeasuredAcceptance(
        1 + share.value, tuple(n / counted.drafts for n in positions), counted.drafts, basis
    )
    low, high = max(0.0, share.low), min(len(positions), share.high)
    return DomainAcceptance(
        domain,
        sum(group.prompts for group in groups),
        sum(group.counted.drafts > 0 for group in groups),
        sum(group.output_tokens for group in groups),
        measured,
        Interval(1 + share.value, 1 + low, 1 + high),
    )


_BEST = 5
"""How many log probabilities the target returns for each token."""

_AS_ID = "token_id:"


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


def transcripts(
    prompts: PromptSet,
    server: OpenAiServer,
    name: str,
    max_tokens: int,
    is_target: bool,
    progress: Progress = silent,
) -> Iterator[Transcript | RefusedPrompt]:
    """The greedy answer to each prompt, or that it was refused; with log probabilities if
    ``is_target``. Raises as ``check_lossless`` does.
    """
    for done, prompt in enumerate(prompts.prompts):
        progress(name, done, len(prompts.prompts))
        body = prompt.body(chat=server.chat, max_tokens=max_tokens)
        body |= {"return_token_ids": True}
        if is_target:
            logprobs = {"logprobs": True, "top_logprobs": _BEST}
            body |= logprobs if "messages" in body else {"logprobs": _BEST}
            body |= {"return_tokens_as_token_ids": True}
        try:
            answer = server.ask(body)
        except PromptRefused as error:
            yield RefusedPrompt(prompt.line, error.message)
        else:
            yield read_transcript(answer, prompt.line, is_target)
    progress(name, len(prompts.prompts), len(prompts.prompts))


def read_transcript(answer: dict[str, Any], line: int, is_target: bool) -> Transcript:
    """The tokens in a chat or completion response of vLLM.

    Raises Unsupported where it has none, and EngineError for another format.
    """
    text = parse_piece(answer).written
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


LOSSLESS_FORMAT = 1

LARGEST_GAP = 0.01
"""Between log probabilities, which differ from logits by a constant."""

_SHOWN = 60
_COMPARE_OTHER = "compare a server that speculates"


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
    progress: Progress = silent,
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
        raise NotProved(f"{target.facts.name} does not speculate", _COMPARE_OTHER, "no-speculation")
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
                _COMPARE_OTHER,
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


_FIX = Fix("measure it again", ("peagle", "bench", "NAME", "--acceptance", "PROMPTS.jsonl"))


def read_acceptance(file: Path) -> AcceptanceResult:
    """The result in ``file``.

    Raises UserError for a file that is missing, of another format, or with impossible numbers: a
    rate below 0 or above 1, or above that of the position before, or a length above K + 1.
    """
    try:
        found = read_record(file, AcceptanceResult, _FIX)
    except UserError as error:  # whose code is about the toolkit's own records
        raise UserError(error.message, _FIX, "acceptance-file") from error
    if found is None:
        raise UserError(f"{file} does not exist", _FIX, "acceptance-file")
    if found.format != ACCEPTANCE_FORMAT:
        raise _wrong(file, f"its format is {found.format}, not {ACCEPTANCE_FORMAT}")
    try:
        json.dumps(found.document(), allow_nan=False)
    except ValueError:  # a text such as "nan" is a number for pydantic
        raise _wrong(file, "a number is infinite or none") from None
    for one in (found.total, *found.domains):
        if why := _impossible(one, found.k):
            raise _wrong(file, f"{one.domain[:60]!r} {why}")
    return found


def _impossible(one: DomainAcceptance, k: int) -> str:
    """Why these numbers cannot have been measured; empty if they can."""
    rates, length = one.acceptance.per_position, one.acceptance.length
    if one.acceptance.drafts < 1:
        return "has no drafts"
    if not 1 <= k == len(rates):
        return f"has rates of {len(rates)} positions, and K is {k}"
    if not all(0 <= rate <= 1 for rate in rates):
        return "has a rate that is not between 0 and 1"
    if any(later > earlier for earlier, later in pairwise(rates)):
        return "has a rate above that of the position before"
    if not math.isclose(length, 1 + sum(rates), rel_tol=1e-3):
        return f"has a length of {length:.4g}, and its rates give {1 + sum(rates):.4g}"
    if not 1 <= one.interval.low <= length + 1e-6 <= one.interval.high + 2e-6 <= k + 1.001:
        return "has an interval that does not hold its length"
    return ""


def _wrong(file: Path, why: str) -> UserError:
    return UserError(f"{file} cannot be used: {why}", _FIX, "acceptance-file")


def rates_of(result: AcceptanceResult, k: int, domain: str | None = None) -> tuple[float, ...]:
    """The share of drafts accepted at each of the first ``k`` positions, of one domain or of all
    together.

    A smaller K than the measured one has the same rates at its positions. Raises UserError for a
    larger K, and for an unknown domain.
    """
    known = {one.domain: one for one in result.domains}
    if domain is not None and domain not in known:
        hint = nearest(domain, known) or f"known: {', '.join(known)}"
        raise UserError(f"the acceptance has no domain {domain!r}", hint, "acceptance-file")
    if k > result.k:
        raise UserError(
            f"acceptance was measured with K={result.k}: nothing is known of K={k}",
            f"measure acceptance with K={k}, or leave K={k} out",
            "acceptance-file",
        )
    chosen = result.total if domain is None else known[domain]
    return tuple(round(rate, 4) for rate in chosen.acceptance.per_position[:k])


def with_imposed_acceptance(plan: Plan, rates: tuple[float, ...]) -> Plan:
    """``plan`` with vLLM's synthetic sampler, which accepts drafts at these rates.

    Its answers are not the target's: an engine of it is for measurements only, and runs on a GPU:
    the CPU engine has no such sampler. Raises UserError for a plan without speculation or with
    another K.
    """
    speculation = without_floor(plan).speculation
    if speculation is None or speculation.k != len(rates):
        k = speculation.k if speculation else 0
        raise UserError(
            f"rates of {len(rates)} positions cannot be imposed on K={k}",
            "give a rate for each position",
            "acceptance-file",
        )
    settings = {
        **speculation.settings,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": list(rates),
    }
    return with_speculation(plan, speculation.model_copy(update={"settings": settings}))


def with_text_acceptance(
    catalog: Catalog, pair: str, file: Path, domain: str | None = None
) -> Catalog:
    """The catalogue with the acceptance in ``file``, of one domain or of all, for the drafter of
    ``pair`` that was measured.

    Raises NotFound for an unknown pair, and UserError for a file that cannot be read, of another
    pair, of a stand-in, of an imposed acceptance, or with too few drafts.
    """
    measured = read_acceptance(file)
    target = find_pair(catalog, pair).target
    drafter = _drafter(catalog, target, pair, measured, file)
    rates = rates_of(measured, measured.k, domain)
    chosen = next((one for one in measured.domains if one.domain == domain), measured.total)
    why = ""
    if chosen.acceptance.basis != "measured":
        why = "its acceptance was imposed"
    elif measured.server.stand_in:
        why = f"{measured.server.stand_in} was measured in place of the target"
    elif not chosen.is_reliable:
        why = f"{chosen.acceptance.drafts} drafts are too few for a mean: {FEW_DRAFTS} are needed"
    if why:
        raise UserError(f"{file} cannot be used: {why}", "measure more of the text", "acceptance")
    text = f"{Path(measured.file).name}, {chosen.domain}" if domain else Path(measured.file).name
    source = f"{chosen.acceptance.drafts:,} drafts on {text}, {measured.started[:10]}"
    lengths = tuple(
        TextAcceptance(k=k, acceptance_length=round(1 + sum(rates[:k]), 3), source=source)
        for k in range(1, measured.k + 1)
    )
    changed = drafter.model_copy(update={"on_text": lengths})
    drafters = tuple(changed if one is drafter else one for one in target.drafters)
    replaced = target.model_copy(update={"drafters": drafters})
    return replace(catalog, targets={**catalog.targets, target.id: replaced})


def _drafter(
    catalog: Catalog, target: Target, pair: str, measured: AcceptanceResult, file: Path
) -> Drafter:
    """The drafter that was measured: the one of the pair in the file, else the one that ``pair``
    names. Raises UserError for a file of another pair, and where neither is known."""
    of_file = measured.server.pair
    named = find_pair(catalog, pair).drafter if "+" in pair else None
    if of_file is not None:
        for drafter in target.drafters:
            full = pair_name(target, drafter)
            if of_file in (full, tag_value(full)) and named in (None, drafter):
                return drafter
        raise UserError(f"{file} is of {of_file}, not of {pair}", "use its own pair", "acceptance")
    if named is None:
        raise UserError(
            f"{file} does not name the drafter that was measured",
            f"name it: {target.short_name}+DRAFTER",
            "acceptance",
        )
    return named


Opened = Callable[[BenchSetting], AbstractContextManager[object]]

CATALOGUE = "the catalogue's prompts"


class SweepLossless:
    """Collects the answers of each setting to ``prompts`` while its engine runs.

    Settings with an imposed acceptance are left out: their answers are not the target's.
    """

    def __init__(
        self,
        prompts: PromptSet,
        progress: Progress = silent,
    ) -> None:
        self._prompts, self._progress = prompts, progress
        self._started = utc_now()
        self._answers: dict[BenchSetting, list[Transcript | RefusedPrompt]] = {}

    def ask(self, setting: BenchSetting, target: BenchTarget) -> None:
        """Ask the engine of this setting, which has just started. Raises what the server raises,
        and Unsupported where it returns no tokens."""
        if setting.imposed_rates or setting in self._answers:
            return
        is_alone = not setting.k
        answers = transcripts(
            self._prompts, target.server, setting.text, DEFAULT_MAX_TOKENS, is_alone, self._progress
        )
        self._answers[NO_SPECULATION if is_alone else setting] = list(answers)

    def complete(self, settings: Sequence[BenchSetting], opened: Opened) -> None:
        """Start the engines of these settings, and of the target alone, that have not been asked:
        their rows were measured earlier, or the sweep has no such setting."""
        asked = [one for one in settings if one.k and not one.imposed_rates]
        for setting in (*asked, *([NO_SPECULATION] if asked else [])):
            if setting not in self._answers:
                with opened(setting):  # which asks it
                    pass

    @property
    def results(self) -> tuple[LosslessResult, ...]:
        """The comparison of each setting with the target alone."""
        alone = self._answers.get(NO_SPECULATION, [])
        return tuple(
            compare_transcripts(
                self._prompts,
                answers,
                alone,
                server=setting.text,
                against=NO_SPECULATION.text,
                started=self._started,
                max_tokens=DEFAULT_MAX_TOKENS,
            )
            for setting, answers in self._answers.items()
            if setting.k
        )


def sweep_lossless(
    catalog: Catalog,
    pair: str,
    workloads: Sequence[str],
    progress: Progress = silent,
) -> SweepLossless:
    """The check with the prompts of the first workload that is a file, else the catalogue's of
    ``pair``, a plan's. Raises UserError for a file without prompts."""
    file = next((Path(name) for name in workloads if name not in WORKLOADS), None)
    prompts = read_prompts(file.expanduser()) if file else prompts_of_pair(catalog, pair)
    return SweepLossless(prompts, progress)


def prompts_of_pair(catalog: Catalog, pair: str | None) -> PromptSet:
    """The prompts with which a deployment of ``pair`` is proved; of an unknown pair, some
    questions."""
    target, _ = find_pair_of_tag(tag_value(pair), catalog) if pair else (None, None)
    texts = target.proof.prompts if target and target.proof else DEFAULT_PROMPTS
    lines = [json.dumps({"prompt": text}) for text in texts]
    return parse_prompts("\n".join(lines).encode(), CATALOGUE)
