"""Selects the instance: the user's own type, or the cheapest candidate that meets the options."""

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
    cost_text,
    instances_text,
    parallel_reason,
    reaches,
    speed_origin,
)
from peagle.planning.findings import (
    candidate_findings,
    none_fits,
    price_findings,
    speed_findings,
    too_small,
)
from peagle.planning.plan import Alternative, Decision, Options, Reason, decide

BEST = 3
"""How many candidates of the ranking a plan shows."""


@dataclass(frozen=True)
class Ranked:
    """The selected candidate, and the best of the ranking."""

    candidate: Candidate
    best: tuple[Candidate, ...]


def choose_instance(table: InstanceTable, evaluator: CandidateEvaluator) -> Decision[Ranked]:
    """The user's instance type, or the best of the ranking, with findings about it.

    Raises NotFound for an instance type that is not in the catalogue, and UserError for
    impossible limits.
    """
    options = evaluator.options
    _check_limits(options)
    fitting = evaluator.fitting()
    best = tuple(rank(options, fitting)[:BEST])
    if options.instance_type is not None:
        candidate = evaluator.candidate(find_instance(table, options.instance_type))
        unusable = tuple(too_small(evaluator, candidate, fitting))
    elif best:
        candidate, unusable = best[0], ()
    else:
        largest = evaluator.largest()
        because = "the largest in the catalogue, since none fits"
        reasons = decide(largest.instance.type, "instance_type", because).reasons
        return Decision(Ranked(largest, ()), reasons, (none_fits(evaluator, largest),))
    findings = (
        *unusable,
        *candidate_findings(evaluator, candidate, fitting),
        *price_findings(options.max_price_per_hour, candidate, fitting),
        *speed_findings(evaluator, candidate, fitting),
        *_several_for_speed(options, candidate),
        *_cheaper_alone(evaluator, candidate),
    )
    reasons = parallel_reason(candidate.hosting, candidate.load)
    if options.instance_type is None:
        reasons = (_instance_reason(options, candidate, fitting), *reasons)
    return Decision(Ranked(candidate, best), reasons, findings)


def rank(options: Options, fitting: list[Candidate]) -> list[Candidate]:
    """``fitting``, sorted by price, from best to worst.

    Candidates whose KV cache holds enough of a load that the user gave (``HELD_SHARE``) come
    first. With a price limit, candidates above it or without a price are left out unless nothing
    remains. With a required speed, measured ones that reach it come first, then unmeasured ones;
    if none reaches it, the fastest come first.
    """
    limit, required = options.max_price_per_hour, options.min_tokens_per_second
    within = [candidate for candidate in fitting if affordable(candidate, limit)] or fitting
    if options.asks_for_load:
        within = sorted(within, key=lambda candidate: not candidate.holds_load)
    if required is None:
        return within
    measured = [candidate for candidate in within if candidate.tokens_per_second is not None]
    unmeasured = [candidate for candidate in within if candidate.tokens_per_second is None]
    enough = [candidate for candidate in measured if reaches(candidate, required)]
    fastest = sorted(measured, key=lambda c: (-(c.tokens_per_second or 0), c.cost))
    return [*(enough or fastest), *unmeasured]


def affordable(candidate: Candidate, limit: float | None) -> bool:
    """Whether its price is known and at most ``limit`` USD per hour; True without a limit."""
    return limit is None or (candidate.usd_per_hour is not None and candidate.usd_per_hour <= limit)


def alternative(options: Options, candidate: Candidate) -> Alternative:
    """A candidate as the plan lists it."""
    fit = candidate.hosting.fit
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
        verified=reaches(candidate, options.min_tokens_per_second or 0),
    )


def choose_count(options: Options, candidate: Candidate) -> Decision[int]:
    """The number of instances."""
    if options.instance_count is not None:
        return Decision(options.instance_count)
    if candidate.count == 1:
        return decide(1, "instance_count", "one instance serves the load")
    because = f"together they reach {candidate.tokens_per_second:,.0f} tokens/s"
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
            raise UserError(f"{flag} {value:g} is not a limit", "use a number above 0")


def _instance_reason(
    options: Options, candidate: Candidate, fitting: Sequence[Candidate]
) -> Reason:
    """Why this type: by price, unless no price is known, among the types that are alike."""
    required, priced = options.min_tokens_per_second, bool(candidate.usd_per_hour)
    measured = required is not None and candidate.tokens_per_second is not None
    if required is not None and measured and not reaches(candidate, required):
        cost = f"at {cost_text(candidate)}" if priced else "price unknown"
        because = f"the fastest measured, {cost}"
        return Reason(what="instance_type", value=candidate.instance.type, because=because)
    peers = sum(_alike(options, candidate, other) for other in fitting)
    which = ""
    if candidate.holds_load and options.asks_for_load:
        which += f", with a KV cache for {HELD_SHARE_TEXT} of the load at full length"
    if measured:
        which += f", measured to reach {required:,.0f} tokens/s"
    elif required is not None:
        which += ", not measured"
    best, cost = "the cheapest", f"at {cost_text(candidate)}"
    if not priced:
        best, cost = "one", "price unknown" if peers == 1 else "no prices known"
    among = "the only type that fits" if peers == 1 else f"{best} of {peers} types that fit"
    because = f"{among}{which}; {cost}" if which else f"{among}, {cost}"
    return Reason(what="instance_type", value=candidate.instance.type, because=because)


def _alike(options: Options, candidate: Candidate, other: Candidate) -> bool:
    """Whether these two differ by their price alone."""
    limit, required = options.max_price_per_hour, options.min_tokens_per_second
    ours, theirs = (
        (
            options.asks_for_load and one.holds_load,
            affordable(one, limit),
            required is not None and reaches(one, required),
            required is not None and one.tokens_per_second is None,
        )
        for one in (candidate, other)
    )
    return ours == theirs


def _cheaper_alone(evaluator: CandidateEvaluator, candidate: Candidate) -> Iterator[Finding]:
    """A warning when the target alone reaches the required speed at a lower price."""
    options, drafter = evaluator.options, candidate.speculation.drafter
    required = options.min_tokens_per_second
    if required is None or drafter is None:
        return
    alone = evaluator.alone()
    others = [alone.candidate(candidate.instance)]
    if options.instance_type is None:
        others += rank(options, alone.fitting())[:1]
    enough = [o for o in others if reaches(o, required) and _costs_more(candidate, o)]
    if enough:
        best = min(enough, key=lambda other: other.cost)
        cost = f" at {cost_text(best)}" if best.usd_per_hour else ""
        message = (
            f"{evaluator.work.target.title} alone reaches that speed for less: "
            f"{best.tokens_per_second:,.0f} tokens/s, {speed_origin(best)}, on "
            f"{instances_text(best)}{cost}; with {drafter.title} it needs "
            f"{instances_text(candidate)}"
        )
        yield warning("speculation-costs-more", "drafter", message, "use --no-speculation")


def _costs_more(candidate: Candidate, other: Candidate) -> bool:
    """Whether ``candidate`` is known to cost more than ``other``; of one type, more cost more."""
    if candidate.instance.type == other.instance.type:
        return candidate.count > other.count
    if candidate.usd_per_hour is None or other.usd_per_hour is None:
        return False
    return candidate.usd_per_hour > other.usd_per_hour


def _several_for_speed(options: Options, candidate: Candidate) -> Iterator[Finding]:
    if options.instance_count is None and candidate.count > 1:
        message = (
            f"{candidate.count} instances are planned and billed, because one is not measured to "
            f"reach {options.min_tokens_per_second:,.0f} tokens/s"
        )
        fix = "set the number with --instance-count"
        yield warning("instances-for-speed", "instance_count", message, fix)
