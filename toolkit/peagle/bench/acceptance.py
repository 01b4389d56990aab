"""Acceptance on the user's own prompts, and what it is good for.

Prompts are sent in small groups, and the engine's counters are read after each: the groups give the
confidence interval. Domains follow each other, since the counters do not know them. A file of it is
used in a catalogue, or imposed on engines: vLLM's synthetic sampler accepts drafts at given rates,
whatever the drafter proposes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from peagle.bench.result import (
    DEFAULT_MAX_TOKENS,
    BenchedServer,
    BenchSetting,
    CounterSource,
    Interval,
    MeasuredAcceptance,
    Progress,
    acceptance_in,
    ratio_interval,
    silent,
    utc_now,
)
from peagle.bench.targets import BenchTarget, RefusedPrompt, ask_together
from peagle.bench.workloads import PromptSet, wrong_line
from peagle.catalog.find import find_pair
from peagle.catalog.schema import Catalog, TextAcceptance
from peagle.checkpoints.entries import parse_identity
from peagle.errors import Fix, NotProved, Unsupported, UserError, nearest
from peagle.planning.plan import Plan
from peagle.planning.speculation import with_speculation, without_floor
from peagle.protocol import Counters, parse_piece
from peagle.render.requests import tag_value
from peagle.store import read_record
from peagle.text import plain

GROUPS = 20
"""The most groups of a domain."""

FEW_GROUPS = 4
"""The most where drafts are counted in a log, which is written every 10 s; else often the least."""

FEW_DRAFTS = 100
"""Fewer drafts give no reliable mean."""


@dataclass(frozen=True)
class AcceptanceRequest:
    """How to send the prompts. ``max_tokens`` applies to lines without their own. A domain is sent
    in at most so many ``groups``, of ``concurrency`` prompts or more: many give a good interval."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    concurrency: int = 4
    groups: int = GROUPS


@dataclass(frozen=True)
class DomainAcceptance:
    """The acceptance of one domain. ``interval`` is the 95 % confidence interval of its length,
    which is the length itself where one group was sent."""

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
    """The acceptance of a drafter on a file of prompts: in ``total``, weighted as in the file, and
    by each domain in which something was drafted. Requests of other clients are counted too."""

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
    refused: tuple[RefusedPrompt, ...] = ()
    format: int = 1


def no_speculation(server: str) -> NotProved:
    """The error that nothing is drafted."""
    fix = "measure a server that speculates, or longer answers"
    return NotProved(f"{server} drafted nothing", fix, "no-speculation")


@dataclass(frozen=True)
class _Group:
    """What was counted while a few prompts of one domain were answered."""

    domain: str
    prompts: int
    output_tokens: int
    counted: Counters
    refused: Sequence[RefusedPrompt]


def measure_acceptance(
    target: BenchTarget,
    prompts: PromptSet,
    request: AcceptanceRequest,
    *,
    progress: Progress = silent,
) -> AcceptanceResult:
    """Send all prompts and evaluate what the engine counts meanwhile; refused prompts are listed.
    Raises Unsupported for a server without counters, NotProved where nothing is drafted, UserError
    where every prompt is refused, and what the server raises."""
    started = utc_now()
    groups: list[_Group] = []
    sent, total = 0, len(prompts.prompts)

    def read_counters() -> Counters:
        counted = target.read_counters()
        if counted is None:
            if target.runs_alone:
                raise no_speculation(target.facts.name)
            raise Unsupported(
                "the server does not tell how many drafts it accepts",
                "use a vLLM server with /metrics, or an endpoint whose log can be read",
                "no-counters",
            )
        return counted

    before = read_counters()
    for domain, members in prompts.domains.items():
        together = min(request.concurrency, len(members) // FEW_GROUPS)
        size = max(1, together, math.ceil(len(members) / request.groups))
        for first in range(0, len(members), size):
            progress(domain, sent, total)
            asked = [
                (prompt, prompt.body(chat=target.server.chat, max_tokens=request.max_tokens,
                                     temperature=request.temperature))
                for prompt in members[first : first + size]
            ]  # fmt: skip
            answers, refused = ask_together(target.server.ask, asked, request.concurrency)
            after = read_counters()
            tokens = sum(parse_piece(answer).output_tokens or 0 for answer in answers)
            groups.append(_Group(domain, len(answers), tokens, after.since(before), refused))
            before, sent = after, sent + len(asked)
            tokens = sum(group.output_tokens for group in groups)
            is_long = tokens > 2 * sum(group.prompts for group in groups)
            if is_long and not any(group.counted.drafts for group in groups):
                raise no_speculation(target.facts.name)
    progress(domain, sent, total)
    if not any(group.prompts for group in groups):
        raise _refusal(prompts.file, [prompt for group in groups for prompt in group.refused])
    return _evaluate(target, prompts, request, started, groups)


def _evaluate(
    target: BenchTarget,
    prompts: PromptSet,
    request: AcceptanceRequest,
    started: str,
    groups: Sequence[_Group],
) -> AcceptanceResult:
    """What the groups measured. Raises NotProved where nothing was drafted."""

    def measured(domain: str, members: Sequence[_Group]) -> DomainAcceptance | None:
        """The acceptance of these groups together; ``None`` where nothing was drafted."""
        counted = sum((group.counted for group in members), Counters())
        acceptance = acceptance_in(counted, target.setting)
        share = ratio_interval(
            [(group.counted.accepted_tokens, group.counted.drafts) for group in members]
        )
        if acceptance is None or share is None:
            return None
        low, high = max(0.0, share.low), min(len(acceptance.per_position), share.high)
        return DomainAcceptance(
            domain,
            sum(group.prompts for group in members),
            sum(group.counted.drafts > 0 for group in members),
            sum(group.output_tokens for group in members),
            acceptance,
            Interval(acceptance.length, 1 + low, 1 + high),
        )

    by_domain = groupby(groups, key=lambda group: group.domain)
    domains = [measured(domain, list(members)) for domain, members in by_domain]
    total = measured("all domains", groups)
    if total is None:
        raise no_speculation(target.facts.name)
    k = len(total.acceptance.per_position)
    return AcceptanceResult(
        server=target.facts,
        setting=target.setting,
        started=started,
        file=prompts.file,
        sha256=prompts.sha256,
        k=k,
        source=target.counted_by,
        request=request,
        total=total,
        domains=tuple(part for part in domains if part is not None),
        refused=tuple(prompt for group in groups for prompt in group.refused),
    )


def acceptance_bytes(result: AcceptanceResult) -> bytes:
    """The content of a file for ``read_acceptance``."""
    return (json.dumps(plain(result), indent=2, ensure_ascii=False) + "\n").encode()


def require_none_refused(result: AcceptanceResult) -> None:
    """Raise UserError, with the lines, where the engine refused prompts of ``result``."""
    if result.refused:
        raise _refusal(result.file, result.refused)


def _refusal(file: str, refused: Sequence[RefusedPrompt]) -> UserError:
    why = f"the engine refuses the prompt: {refused[0].message}"
    fix = "shorten it, lower its max_tokens, or remove it; any other prompts were measured"
    return wrong_line(file, [prompt.line for prompt in refused], why, fix)


_FIX = Fix("measure it again", ("peagle", "bench", "NAME", "--acceptance", "PROMPTS.jsonl"))


def _unusable(message: str, fix: str | Fix = _FIX) -> UserError:
    return UserError(message, fix, "acceptance-file")


def read_acceptance(file: Path) -> AcceptanceResult:
    """The result in ``file``. Raises UserError for a file that is missing or of another format."""
    result = read_record(file, AcceptanceResult, _FIX)
    if result is None or result.format != 1:
        raise _unusable(f"{file} does not exist, or is of another version")
    return result


def unusable_reason(result: AcceptanceResult, part: DomainAcceptance) -> str:
    """Why a verdict cannot use this part of the result; empty where it can."""
    if part.acceptance.basis != "measured":
        return "its acceptance was imposed"
    if result.server.stand_in:
        return f"{result.server.stand_in} was measured in place of the target"
    if not part.is_reliable:
        return f"{part.acceptance.drafts} drafts are too few for a mean: {FEW_DRAFTS} are needed"
    return ""


def find_part(result: AcceptanceResult, domain: str | None) -> DomainAcceptance:
    """The part of the result of one domain, or of all together. Raises UserError for an unknown
    domain."""
    domains = {part.domain: part for part in (result.total, *result.domains)}
    if domain is not None and domain not in domains:
        hint = nearest(domain, domains) or f"known: {', '.join(domains)}"
        raise _unusable(f"the acceptance has no domain {domain!r}", hint)
    return result.total if domain is None else domains[domain]


def compute_rates(result: AcceptanceResult, k: int, domain: str | None = None) -> tuple[float, ...]:
    """The share of drafts accepted at each of the first ``k`` positions, of one domain or of all
    together. Raises UserError for a larger K than was measured, and for an unknown domain."""
    if k > result.k:
        message = f"acceptance was measured with K={result.k}: nothing is known of K={k}"
        raise _unusable(message, f"measure acceptance with K={k}, or leave K={k} out")
    rates = find_part(result, domain).acceptance.per_position
    return tuple(round(rate, 4) for rate in rates[:k])


def with_imposed_acceptance(plan: Plan, rates: tuple[float, ...]) -> Plan:
    """``plan`` with vLLM's synthetic sampler, which accepts drafts at these rates, one for each
    position of its K. Its answers are not the target's, and it runs on GPUs only."""
    speculation = without_floor(plan).speculation
    assert speculation is not None
    assert speculation.k == len(rates)
    settings = {
        **speculation.settings,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": list(rates),
    }
    return with_speculation(plan, speculation.model_copy(update={"settings": settings}))


def with_text_acceptance(
    catalog: Catalog, pair: str, file: Path, domain: str | None = None
) -> Catalog:
    """The catalogue with the acceptance in ``file``, of one domain or of all, for the drafter that
    was measured: that of the file, else the one that ``pair`` names. Raises NotFound for an unknown
    pair, and UserError for a file that is not a measurement of it."""
    measured = read_acceptance(file)
    requested = find_pair(catalog, pair)
    target, drafter = requested.target, requested.drafter if "+" in pair else None
    if measured.server.pair:
        # The pair is named by the catalogue, or by folders that are this entry's weights.
        tags = {
            tag_value(f"{name}+{drafter_name}"): other
            for name in (target.id, parse_identity(target.weights)[0])
            for other in target.drafters
            for drafter_name in filter(None, (other.name, other.weights))
        }
        of_file = tags.get(tag_value(measured.server.pair))
        if of_file is None or drafter not in (None, of_file):
            raise _unusable(f"{file} is of {measured.server.pair}, not of {pair}", "use its pair")
        drafter = of_file
    if drafter is None:
        message = f"{file} does not name the drafter that was measured"
        raise _unusable(message, f"name it: {target.short_name}+DRAFTER")
    rates, chosen = compute_rates(measured, measured.k, domain), find_part(measured, domain)
    if why := unusable_reason(measured, chosen):
        raise _unusable(f"{file} cannot be used: {why}", "measure more of the text")
    text = f"{Path(measured.file).name}, {chosen.domain}" if domain else Path(measured.file).name
    source = f"{chosen.acceptance.drafts:,} drafts on {text}, {measured.started[:10]}"
    lengths = tuple(
        TextAcceptance(k=k, acceptance_length=round(1 + sum(rates[:k]), 3), source=source)
        for k in range(1, measured.k + 1)
    )
    changed = drafter.model_copy(update={"on_text": lengths})
    drafters = tuple(changed if other is drafter else other for other in target.drafters)
    replaced = target.model_copy(update={"drafters": drafters})
    return replace(catalog, targets={**catalog.targets, target.id: replaced})
