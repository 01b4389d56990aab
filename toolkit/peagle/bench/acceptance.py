"""Measure acceptance on the user's own prompts, by domain, from the engine's counters.

Prompts are sent in small groups, and the counters are read after each: the groups give the
confidence interval. Domains follow each other, since the counters do not know them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from peagle.bench.intervals import ratio_interval
from peagle.bench.measure import BenchTarget
from peagle.bench.models import (
    DEFAULT_MAX_TOKENS,
    BenchedServer,
    BenchSetting,
    CounterSource,
    Interval,
    MeasuredAcceptance,
    utc_now,
)
from peagle.bench.openai_server import RefusedPrompt, ask_together
from peagle.bench.prompts import Prompt, PromptSet, wrong_line
from peagle.errors import NotProved, PeagleError, Unsupported
from peagle.protocol import Counters, parse_piece
from peagle.speed.models import AcceptanceBasis

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

AcceptanceProgress = Callable[[str, int, int], object]
"""Called with the domain, and how many prompts of how many are answered."""


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
    progress: AcceptanceProgress = lambda domain, done, count: None,
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

    def groups(self, progress: AcceptanceProgress) -> Iterator[_DomainCounts]:
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
