"""Which of the candidates: the user's own, or the cheapest that does what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peagle.catalog.find import find_instance
from peagle.catalog.tables import InstanceTable
from peagle.errors import UserError
from peagle.findings import Finding, warning
from peagle.planning.candidates import (
    HELD_SHARE_TEXT,
    Candidate,
    CandidateEvaluator,
    parallel_reason,
    reaches,
)
from peagle.planning.findings import (
    candidate_findings,
    cost_text,
    known,
    none_fits,
    price_findings,
    speed_findings,
    too_small,
    words,
)
from peagle.planning.plan import Alternative, Decision, Options, Reason, decide

BEST = 3
"""How many of the ranking a plan shows."""


@dataclass(frozen=True)
class Ranked:
    """The candidate that was chosen, and the best of the ranking."""

    candidate: Candidate
    best: tuple[Candidate, ...]


def choose_instance(
    options: Options, table: InstanceTable, evaluator: CandidateEvaluator
) -> Decision[Ranked]:
    """The user's instance type, or the best of the ranking; what is wrong with it is a finding.

    Raises NotFound for an instance type that the catalogue does not have, and UserError for limits
    that cannot be meant.
    """
    _check_limits(options)
    fitting = evaluator.fitting()
    order = rank(options, fitting)
    best = tuple(order[:BEST])
    if options.instance_type is not None:
        candidate = evaluator.candidate(find_instance(table, options.instance_type))
        return _the_users(options, evaluator, candidate, fitting, best)
    if not order:
        return _none_fits(evaluator)
    candidate = order[0]
    findings = (
        *candidate_findings(options, evaluator, candidate, fitting),
        *price_findings(options, candidate, fitting),
        *speed_findings(options, evaluator, candidate, fitting),
        *_raised(options, candidate),
        *_cheaper_alone(options, evaluator, candidate),
    )
    parallel = parallel_reason(candidate.hosting, candidate.load)
    reasons = (_instance_reason(options, candidate, fitting), *parallel)
    return Decision(Ranked(candidate, best), reasons, findings)


def rank(options: Options, fitting: list[Candidate]) -> list[Candidate]:
    """From best to worst, of ``fitting`` from cheap to dear.

    What holds the load that was asked for (``HELD_SHARE``) comes before what only fits. With a
    price limit, what costs more, or nobody knows what, is left out unless nothing remains.
    With a speed asked for, what is measured to make it comes first, and then what nobody has
    measured; what is measured not to make it only counts when nothing makes it, the fastest first.
    """
    limit, wanted = options.max_price_per_hour, options.min_tokens_per_second
    within = [candidate for candidate in fitting if affordable(candidate, limit)] or fitting
    if options.asks_for_load:
        within = sorted(within, key=lambda candidate: not candidate.holds_load)
    if wanted is None:
        return within
    known = [candidate for candidate in within if candidate.tokens_per_second is not None]
    unknown = [candidate for candidate in within if candidate.tokens_per_second is None]
    enough = [candidate for candidate in known if reaches(candidate, wanted)]
    fastest = sorted(known, key=lambda p: (-(p.tokens_per_second or 0), p.cost))
    return [*(enough or fastest), *unknown]


def affordable(candidate: Candidate, limit: float | None) -> bool:
    """Whether it is known to cost no more than ``limit`` USD per hour."""
    return limit is None or (candidate.usd_per_hour is not None and candidate.usd_per_hour <= limit)


def alternative(options: Options, candidate: Candidate) -> Alternative:
    """A candidate as the plan shows it."""
    fit, wanted = candidate.hosting.fit, options.min_tokens_per_second
    return Alternative(
        instance_type=candidate.instance.type,
        instance_count=candidate.count,
        gpu=candidate.instance.gpu,
        tensor_parallel_size=fit.tensor_parallel_size,
        price_per_hour_usd=candidate.usd_per_hour,
        max_concurrency=fit.max_concurrency,
        kv_cache_tokens=fit.kv_cache_tokens,
        k=candidate.speculation.k,
        tokens_per_second=candidate.tokens_per_second,
        speed_source=candidate.source,
        usd_per_million_tokens=candidate.usd_per_million_tokens,
        verified=reaches(candidate, wanted or 0),
    )


def choose_count(options: Options, candidate: Candidate) -> Decision[int]:
    """How many instances."""
    if options.instance_count is not None:
        return Decision(options.instance_count)
    if candidate.count == 1:
        return decide(1, "instance_count", "one instance answers; more share the load")
    because = f"so many share the load to make {candidate.tokens_per_second:,.0f} tokens/s together"
    return decide(candidate.count, "instance_count", because)


def _check_limits(options: Options) -> None:
    if options.instance_count is not None and options.instance_count < 1:
        raise UserError(f"--instance-count {options.instance_count} is less than 1", "use 1")
    limits = {
        "--min-tokens-per-second": options.min_tokens_per_second,
        "--max-price-per-hour": options.max_price_per_hour,
    }
    for flag, value in limits.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{flag} {value:g} is no limit", "give a number above 0")


def _the_users(
    options: Options,
    evaluator: CandidateEvaluator,
    candidate: Candidate,
    fitting: list[Candidate],
    best: tuple[Candidate, ...],
) -> Decision[Ranked]:
    findings = (
        *too_small(evaluator, candidate, fitting),
        *candidate_findings(options, evaluator, candidate, fitting),
        *price_findings(options, candidate, fitting),
        *speed_findings(options, evaluator, candidate, fitting),
        *_raised(options, candidate),
        *_cheaper_alone(options, evaluator, candidate),
    )
    return Decision(
        Ranked(candidate, best), parallel_reason(candidate.hosting, candidate.load), findings
    )


def _none_fits(evaluator: CandidateEvaluator) -> Decision[Ranked]:
    largest = evaluator.largest()
    type, because = largest.instance.type, "the largest that the catalogue has, since none fits"
    reasons = decide(type, "instance_type", because).reasons
    return Decision(Ranked(largest, ()), reasons, (none_fits(evaluator, largest),))


def _instance_reason(
    options: Options, candidate: Candidate, fitting: Sequence[Candidate]
) -> Reason:
    """Among which types it was chosen, and by what: the price, unless none of them has one."""
    wanted = options.min_tokens_per_second
    if (
        wanted is not None
        and candidate.tokens_per_second is not None
        and not reaches(candidate, wanted)
    ):
        because = "the fastest that was measured"
        cost = (
            f"at {cost_text(candidate)}"
            if candidate.usd_per_hour
            else "at a price that is not known"
        )
        return Reason(
            what="instance_type", value=candidate.instance.type, because=f"{because}, {cost}"
        )
    peers = sum(_alike(options, candidate, other) for other in fitting)
    which = ""
    if candidate.holds_load and options.asks_for_load:
        which += f", with a cache for {HELD_SHARE_TEXT} of the load at full length"
    if wanted is not None and candidate.tokens_per_second is not None:
        which += f", measured to make {wanted:,.0f} tokens/s"
    elif wanted is not None:
        which += ", which nobody has measured"
    best, cost = "the cheapest", f"at {cost_text(candidate)}" if candidate.usd_per_hour else ""
    if candidate.usd_per_hour is None:
        best, cost = "one", f"no price is known of {'it' if peers == 1 else 'any of them'}"
    among = "the only type that fits" if peers == 1 else f"{best} of {peers} types that fit"
    because = f"{among}{which}; {cost}" if which else f"{among}, {cost}"
    return Reason(what="instance_type", value=candidate.instance.type, because=because)


def _alike(options: Options, candidate: Candidate, other: Candidate) -> bool:
    """Whether these two are told apart by their price alone."""
    limit, wanted = options.max_price_per_hour, options.min_tokens_per_second
    ours, theirs = (
        (
            options.asks_for_load and one.holds_load,
            affordable(one, limit),
            wanted is not None and reaches(one, wanted),
            wanted is not None and one.tokens_per_second is None,
        )
        for one in (candidate, other)
    )
    return ours == theirs


def _cheaper_alone(
    options: Options, evaluator: CandidateEvaluator, candidate: Candidate
) -> Iterator[Finding]:
    """A warning when the target alone makes the speed asked for with less money."""
    wanted, drafter = options.min_tokens_per_second, candidate.speculation.drafter
    if wanted is None or drafter is None:
        return
    alone = evaluator.alone()
    others = [alone.candidate(candidate.instance)]
    if options.instance_type is None:
        others += rank(options, alone.fitting())[:1]
    enough = [other for other in others if reaches(other, wanted) and _costs_more(candidate, other)]
    if enough:
        best = min(enough, key=lambda other: other.cost)
        cost = f" at {cost_text(best)}" if best.usd_per_hour else ""
        message = (
            f"{evaluator.work.target.title} alone makes that speed for less: "
            f"{best.tokens_per_second:,.0f} tokens/s, {known(best)}, on {words(best)}{cost}, where "
            f"{drafter.title} takes {words(candidate)}"
        )
        yield warning("speculation-costs-more", "drafter", message, "use --no-speculation")


def _costs_more(candidate: Candidate, other: Candidate) -> bool:
    """Whether ``candidate`` is known to cost more than ``other``; of one type, more cost more."""
    if candidate.instance.type == other.instance.type:
        return candidate.count > other.count
    if candidate.usd_per_hour is None or other.usd_per_hour is None:
        return False
    return candidate.usd_per_hour > other.usd_per_hour


def _raised(options: Options, candidate: Candidate) -> Iterator[Finding]:
    if options.instance_count is None and candidate.count > 1:
        message = (
            f"{candidate.count} instances are planned, and all are paid for, because one is not "
            f"measured to make {options.min_tokens_per_second:,.0f} tokens/s"
        )
        fix = "say how many with --instance-count"
        yield warning("instances-for-speed", "instance_count", message, fix)
