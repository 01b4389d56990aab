"""Measure acceptance on the user's own prompts, by domain, from the engine's counters.

Prompts are sent in small groups, and the counters are read after each: the groups give the
confidence interval. Domains follow each other, since the counters do not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from peagle.bench.asking import Ask, RefusedPrompt, ask_together
from peagle.bench.intervals import ratio_interval
from peagle.bench.models import Interval, MeasuredAcceptance
from peagle.bench.prompts import Prompt, PromptSet, wrong_line
from peagle.errors import NotProved, PeagleError, Unsupported
from peagle.protocol import Counters, piece_of

ACCEPTANCE_FORMAT = 1

GROUPS = 20
"""A domain is sent in so many groups, if it has as many prompts."""

FEW_DRAFTS = 100
"""Fewer drafts give no reliable mean."""

TOTAL = "all domains"

_NONE = Counters(0, 0, 0)
_STRANGERS = 1.05
"""With more than this share of the tokens that were sent here, others sent requests too."""

ReadCounters = Callable[[], Counters | None]
AcceptanceProgress = Callable[[str, int, int], object]
"""Called with the domain, and how many prompts of how many are answered."""


@dataclass(frozen=True)
class AcceptanceRequest:
    """How to send the prompts. ``chat``: prompts without messages are sent as chats.
    ``max_tokens`` applies to lines without their own; temperature 0 is greedy decoding.
    ``concurrency`` is the largest number of requests at a time. ``groups`` is in how many parts a
    domain is sent: more give a better interval, and more often wait for the last answer."""

    chat: bool = True
    max_tokens: int = 256
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

    ``total`` is of all domains together, weighted as in the file. ``others_sent``: other clients
    sent requests meanwhile, which the counters include. ``ended`` is the message of the error that
    ended it early, ``""`` when all prompts were sent.
    """

    server: str
    pair: str | None
    vllm: str | None
    started: str
    file: str
    sha256: str
    k: int
    request: AcceptanceRequest
    total: DomainAcceptance
    domains: tuple[DomainAcceptance, ...]
    refused: tuple[RefusedPrompt, ...] = ()
    others_sent: bool = False
    ended: str = ""
    format: int = ACCEPTANCE_FORMAT

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints and a file holds; ``read_acceptance`` reads it."""
        return asdict(self)


@dataclass(frozen=True)
class AcceptanceSubject:
    """Whose acceptance is measured, as in AcceptanceResult."""

    server: str
    started: str
    pair: str | None = None
    vllm: str | None = None


@dataclass(frozen=True)
class _Group:
    """What was counted while a few prompts of one domain were answered."""

    domain: str
    prompts: int
    output_tokens: int
    counted: Counters
    refused: tuple[RefusedPrompt, ...]


def measure_acceptance(
    prompts: PromptSet,
    subject: AcceptanceSubject,
    request: AcceptanceRequest,
    ask: Ask,
    read_counters: ReadCounters,
    *,
    keep: Callable[[AcceptanceResult], object] = lambda result: None,
    progress: AcceptanceProgress = lambda domain, done, count: None,
) -> AcceptanceResult:
    """Send all prompts and evaluate what the engine counts meanwhile.

    An error or an interrupt ends it; then ``keep`` receives what was measured until then, if
    anything, before the error is raised again. Prompts that the engine refuses are left out and
    listed. Raises Unsupported for a server without counters, NotProved where nothing is drafted,
    UserError where every prompt is refused, and what ``ask`` and ``read_counters`` raise.
    """
    groups: list[_Group] = []
    try:
        for group in _groups(prompts, request, ask, read_counters, progress):
            groups.append(group)
            _require_drafts(groups)
    except BaseException as error:
        if sum(group.counted.drafts for group in groups):
            why = error.message if isinstance(error, PeagleError) else "interrupted"
            keep(_result(prompts, subject, request, groups, why))
        raise
    if not any(group.prompts for group in groups):
        refused = [one for group in groups for one in group.refused]
        lines = [one.line for one in refused]
        why = f"the engine refuses every prompt: {refused[0].message}"
        raise wrong_line(prompts.file, lines, why, "shorten the prompts or lower max_tokens")
    return _result(prompts, subject, request, groups, "")


def refused_error(result: AcceptanceResult) -> PeagleError | None:
    """The error that some prompts were left out; ``None`` where none were."""
    if not result.refused:
        return None
    lines = [one.line for one in result.refused]
    why = f"the engine refuses the prompt: {result.refused[0].message}"
    fix = "shorten it, lower max_tokens, or remove the line; the other prompts were measured"
    return wrong_line(result.file, lines, why, fix)


def _groups(
    prompts: PromptSet,
    request: AcceptanceRequest,
    ask: Ask,
    read_counters: ReadCounters,
    progress: AcceptanceProgress,
) -> Iterator[_Group]:
    before = _counters(read_counters)
    for domain, members in prompts.domains.items():
        size = max(1, ceil(len(members) / request.groups))
        for first in range(0, len(members), size):
            progress(domain, first, len(members))
            part = members[first : first + size]
            asked = [(one, _body(one, request)) for one in part]
            answers, refused = ask_together(ask, asked, request.concurrency)
            after = _counters(read_counters)
            tokens = sum(piece_of(answer).output_tokens or 0 for answer in answers)
            yield _Group(domain, len(answers), tokens, after.since(before), tuple(refused))
            before = after
        progress(domain, len(members), len(members))


def _body(prompt: Prompt, request: AcceptanceRequest) -> dict[str, Any]:
    return prompt.body(
        chat=request.chat, max_tokens=request.max_tokens, temperature=request.temperature
    )


def _counters(read_counters: ReadCounters) -> Counters:
    found = read_counters()
    if found is None:
        raise Unsupported(
            "the server does not tell how many drafts it accepts",
            "use an image of this toolkit with one instance, or a vLLM server with /metrics",
            "no-counters",
        )
    return found


def _require_drafts(groups: Sequence[_Group]) -> None:
    """Raise NotProved where several tokens were generated and nothing was drafted."""
    tokens = sum(group.output_tokens for group in groups)
    answered = sum(group.prompts for group in groups)
    if tokens > 2 * answered and not any(group.counted.drafts for group in groups):
        raise NotProved(
            f"the server wrote {tokens:,} tokens and drafted nothing: it does not speculate",
            "measure a server that speculates",
            "no-speculation",
        )


def _result(
    prompts: PromptSet,
    subject: AcceptanceSubject,
    request: AcceptanceRequest,
    groups: Sequence[_Group],
    ended: str,
) -> AcceptanceResult:
    domains = [
        _of_groups(domain, [group for group in groups if group.domain == domain])
        for domain in prompts.domains
    ]
    total = _of_groups(TOTAL, groups)
    if total is None:
        raise NotProved(
            "the answers are too short: nothing was drafted", "raise --max-tokens", "too-few-drafts"
        )
    counted = sum((group.counted for group in groups), _NONE)
    # A step outputs its accepted tokens and one more; the last step of an answer may output less
    # than it counts, and the first token of an answer is of no step.
    ended_early = total.prompts * len(counted.accepted_per_position)
    counted_tokens = counted.drafts + counted.accepted_tokens - ended_early
    return AcceptanceResult(
        subject.server,
        subject.pair,
        subject.vllm,
        subject.started,
        prompts.file,
        prompts.sha256,
        len(counted.accepted_per_position),
        request,
        total,
        tuple(one for one in domains if one is not None),
        tuple(one for group in groups for one in group.refused),
        counted_tokens > _STRANGERS * total.output_tokens,
        ended,
    )


def _of_groups(domain: str, groups: Sequence[_Group]) -> DomainAcceptance | None:
    """The acceptance of all groups together; ``None`` where nothing was drafted."""
    counted = sum((group.counted for group in groups), _NONE)
    parts = [(group.counted.accepted_tokens, group.counted.drafts) for group in groups]
    share = ratio_interval(parts)
    if share is None:
        return None
    positions = counted.accepted_per_position
    measured = MeasuredAcceptance(
        1 + share.value, tuple(n / counted.drafts for n in positions), counted.drafts
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
