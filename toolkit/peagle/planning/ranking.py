"""Selects the instance: the user's own type, or the best candidate for the load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from peagle.case import MOST_COUNT
from peagle.catalog.find import find_instance
from peagle.errors import UserError
from peagle.findings import Finding, warning
from peagle.planning.candidates import Candidate
from peagle.planning.evaluation import CandidateEvaluator
from peagle.planning.findings import Review, none_fits
from peagle.planning.plan import (
    Alternative,
    Decision,
    Options,
    Reason,
    SpeedEstimate,
    decide,
)
from peagle.planning.speculation import SpeedsByK, is_drafter_named
from peagle.text import format_requests, format_usd

NAMED_DRAFTER = "the drafter that you name"
"""How a reason begins for a drafter of --drafter or PAIR."""

BEST = 3
"""How many candidates of the ranking a plan shows; beside them the one with the lowest price, and
the best on another GPU."""


@dataclass(frozen=True)
class InstanceChoice:
    """The selected candidate, the speeds on its GPUs, others for comparison, and the target alone
    on its own best instance."""

    candidate: Candidate
    compared: SpeedsByK
    alternatives: tuple[Alternative, ...] = ()
    alone: Alternative | None = None


def choose_instance(evaluator: CandidateEvaluator) -> Decision[InstanceChoice]:
    """The user's instance type, or the best of the ranking, with findings about it; and the best
    of the ranking for comparison.

    Raises NotFound for an instance type that is not in the catalogue, and UserError for
    impossible limits.
    """
    options = evaluator.options
    _check_limits(options)
    ranked = evaluator.fitting() or evaluator.fitting(anywhere=True)
    if options.instance_type is not None:
        types = evaluator.work.catalog.instances
        candidate = evaluator.candidate(find_instance(types, options.instance_type))
        reasons = [candidate.parallel_reason()]
    elif ranked:
        candidate = ranked[0]
        reasons = [_instance_reason(options, candidate, ranked), candidate.parallel_reason()]
    else:
        candidate = evaluator.largest()
        finding = none_fits(evaluator.work_on(candidate), candidate)
        reasons = [_reason(candidate, "the largest in the catalogue, since none fits")]
        compared = evaluator.compared(candidate)
        return Decision(InstanceChoice(candidate, compared), tuple(reasons), (finding,))
    alone = evaluator.with_drafter(None).fitting()
    drafter = candidate.drafter or evaluator.pair.drafter
    speculating = evaluator.with_drafter(drafter).fitting() if drafter else []
    choice = InstanceChoice(
        candidate,
        evaluator.compared(candidate),
        tuple(_alternative(options, one) for one in _shown(options, ranked)),
        _alternative(options, alone[0]) if alone else None,
    )
    if evaluator.pair.drafter is not None:
        reasons.append(_speculation_reason(options, candidate, choice.compared, alone, speculating))
    findings = (
        *Review(evaluator, candidate, ranked).findings(),
        *_cheaper_alone(options, candidate, alone),
    )
    return Decision(choice, tuple(reasons), findings)


def _shown(options: Options, ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best, the one with the lowest price per hour, and the best on another GPU; none above
    the price limit or below what is required, unless all are."""
    allowed = [one for one in ranked if one.within(options.max_price_per_hour)] or list(ranked)
    allowed = [one for one in allowed if one.meets(options)] or allowed
    best = allowed[:BEST]
    another = (one for one in allowed if one.instance.gpu != best[0].instance.gpu)
    for one in (next(another, None), cheapest_of(allowed)):
        if one is not None and one not in best:
            best.append(one)
    return best


def cheapest_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """The lowest price per hour of those that hold the load."""
    priced = [one for one in candidates if one.usd_per_hour is not None and one.holds_load]
    return min(priced, key=lambda one: one.usd_per_hour or 0.0, default=None)


def speed_of(candidate: Candidate) -> SpeedEstimate:
    """The candidate's speed, of all instances together."""
    return SpeedEstimate(**_speed(candidate))


def _speed(candidate: Candidate) -> dict[str, Any]:
    one = candidate.performance
    return {
        "tokens_per_second": candidate.tokens_per_second,
        "low": candidate.total(one.low),
        "high": candidate.total(one.high),
        "basis": one.basis,
        "ttft_seconds": _rounded(one.ttft_seconds),
        "itl_seconds": _rounded(one.itl_seconds),
        "usd_per_million_tokens": candidate.usd_per_million_tokens,
        "acceptance_length": None if one.acceptance.basis == "unknown" else one.acceptance.length,
        "acceptance_basis": one.acceptance.basis,
        "source": candidate.source,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)


def _alternative(options: Options, candidate: Candidate) -> Alternative:
    return Alternative(
        **_speed(candidate),
        instance_type=candidate.instance.type,
        instance_count=candidate.count,
        gpu=candidate.instance.gpu,
        tensor_parallel_size=candidate.fit.tensor_parallel_size,
        price_per_hour_usd=candidate.usd_per_hour,
        max_concurrency=candidate.fit.max_concurrency,
        kv_cache_tokens=candidate.fit.kv_cache_tokens,
        drafter=candidate.drafter.name if candidate.drafter else None,
        k=candidate.k,
        verified=candidate.tokens_per_second is not None and candidate.meets(options),
        speed_source=None if candidate.tokens_per_second is None else candidate.source,
    )


def choose_count(options: Options, candidate: Candidate) -> Decision[int]:
    """The number of instances."""
    if options.instance_count is not None:
        return Decision(options.instance_count)
    one_holds = candidate.on_instance.most_requests
    if candidate.count == 1:
        because = "one instance serves the load"
    elif one_holds * (candidate.count - 1) < candidate.load * candidate.count:
        because = f"the KV cache of one is enough for {format_requests(one_holds)} of this load"
    else:
        because = f"one is too slow; together they reach {candidate.speed_text}"
    return decide(candidate.count, "instance_count", because)


def _check_limits(options: Options) -> None:
    if options.instance_count is not None and options.instance_count < 1:
        raise UserError(f"--instance-count {options.instance_count} is less than 1", "use 1")
    if (options.instance_count or 0) > MOST_COUNT:
        raise UserError(f"--instance-count is more than {MOST_COUNT:,}", "use a smaller number")
    limits = {
        "--min-tokens-per-second": options.min_tokens_per_second,
        "--max-price-per-hour": options.max_price_per_hour,
    }
    for flag, value in limits.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{flag} {value:g} is not a positive number", "use a number above 0")


def _instance_reason(options: Options, candidate: Candidate, ranked: Sequence[Candidate]) -> Reason:
    """Why this type: by cost per token or price, among those that are as good otherwise."""
    if candidate.excess(options) is not None and not candidate.meets(options):
        cost = candidate.at_cost.strip() or "price unknown"
        return _reason(candidate, f"the nearest to what is required, {cost}")
    ours = _apart_from_cost(options, candidate)
    peers = sum(_apart_from_cost(options, other) == ours for other in ranked)
    per_million = candidate.usd_per_million_tokens
    by_cost = per_million is not None and all(
        other.tokens_per_second is not None for other in ranked if other.usd_per_hour is not None
    )
    which = " for this load" if candidate.holds_load else ""
    if options.min_tokens_per_second is not None or options.slo is not None:
        met = "known to meet" if candidate.meets(options) else "not known to meet"
        which += f", {met} what is required"
    costs = candidate.at_cost.strip() or "price unknown"
    if peers == 1:
        return _reason(candidate, f"the only type that fits{which}; {costs}")
    if by_cost:
        costs = f"{format_usd(per_million or 0.0)} per million output tokens, {costs}"
        return _reason(candidate, f"the lowest cost of {peers} types that fit{which}: {costs}")
    if candidate.usd_per_hour is None:
        return _reason(candidate, f"one of {peers} types that fit{which}; no prices known")
    return _reason(candidate, f"the cheapest of {peers} types that fit{which}; {costs}")


def _apart_from_cost(options: Options, candidate: Candidate) -> tuple[bool, ...]:
    """How the ranking treats the candidate, apart from its cost."""
    return (
        candidate.holds_load,
        candidate.within(options.max_price_per_hour),
        candidate.meets(options),
        candidate.excess(options) is None,
    )


def _reason(candidate: Candidate, because: str) -> Reason:
    return Reason(what="instance_type", value=candidate.instance.type, because=because)


def _speculation_reason(
    options: Options,
    candidate: Candidate,
    compared: SpeedsByK,
    alone: Sequence[Candidate],
    speculating: Sequence[Candidate],
) -> Reason:
    """What speculation changes: cost per token at best, and the price of the cheapest host."""
    other = alone if candidate.drafter is not None else speculating
    ours, theirs = candidate.usd_per_million_tokens, None
    if other and other[0].holds_load:
        theirs = other[0].usd_per_million_tokens
    named = ("with it", "without") if candidate.drafter is not None else ("without", "with it")
    if ours is not None and theirs is not None:
        because = f"{format_usd(ours)} per million tokens {named[0]}, "
        because += f"{format_usd(theirs)} {named[1]}"
    elif speeds := _both_speeds(candidate, compared, named):
        because = speeds
    else:
        is_named = options.drafter is not None or "+" in options.pair
        who = NAMED_DRAFTER if is_named else "the catalogue's default"
        because = f"{who}; its speed here is unknown"
    with_, without = cheapest_of(speculating), cheapest_of(alone)
    if with_ and without and (with_.usd_per_hour or 0) > (without.usd_per_hour or 0):
        because += (
            f"; the cheapest host costs {format_usd(without.usd_per_hour or 0)} per hour without, "
            f"{format_usd(with_.usd_per_hour or 0)} with it"
        )
    value = f"{candidate.drafter.name}, K={candidate.k}" if candidate.drafter else "none"
    return Reason(what="speculation", value=value, because=because)


def _both_speeds(candidate: Candidate, compared: SpeedsByK, named: tuple[str, str]) -> str:
    """Speeds of all instances with and without speculation; empty where one is unknown."""
    others = [
        speed.tokens_per_second
        for (name, _), speed in compared.speeds.items()
        if (name is None) is (candidate.drafter is not None) and speed.tokens_per_second is not None
    ]
    ours, theirs = candidate.tokens_per_second, candidate.total(max(others, default=None))
    if ours is None or theirs is None:
        return ""
    return f"{ours:,.0f} tokens/s {named[0]}, {theirs:,.0f} {named[1]}, on the same GPUs"


def _cheaper_alone(
    options: Options, candidate: Candidate, alone: Sequence[Candidate]
) -> Iterator[Finding]:
    """A warning when the target alone does the same for less, and the user named the drafter."""
    if candidate.drafter is None or not is_drafter_named(options) or not alone:
        return
    best = alone[0]
    ours, theirs = candidate.usd_per_million_tokens, best.usd_per_million_tokens
    if ours is None or theirs is None or theirs >= ours or not best.holds_load:
        return
    if best.meets(options) or not candidate.meets(options):
        message = (
            f"without speculation, {best.text}{best.at_cost} costs {format_usd(theirs)} per "
            f"million output tokens ({best.speed_text}); with {candidate.drafter.title}, "
            f"{candidate.text}{candidate.at_cost} costs {format_usd(ours)} ({candidate.speed_text})"
        )
        yield warning("speculation-costs-more", "drafter", message, "use --no-speculation")
