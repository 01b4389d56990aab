"""Selects the instance: the user's own type, or the best candidate for the load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.case import MOST_COUNT
from peagle.catalog.find import find_instance
from peagle.errors import OutOfRange
from peagle.planning.candidates import SAME_COST_FACTOR, Candidate, batch_on, rank
from peagle.planning.copies import Copies, reserved
from peagle.planning.evaluation import CandidateEvaluator
from peagle.planning.findings import Review, none_fits
from peagle.planning.options import AUTO, Options
from peagle.planning.plan import Alternative, Decision, Reason, SpeedEstimate, decide
from peagle.planning.speculation import SpeedsByK
from peagle.planning.with_or_without import WithOrWithout, cheapest_of
from peagle.text import format_requests, format_usd

BEST = 3
"""How many candidates of the ranking a plan shows, in addition to the best on another GPU and those
with the lowest price per hour and the lowest cost per token."""


@dataclass(frozen=True)
class InstanceChoice:
    """The selected candidate, the speeds on its GPUs, others for comparison, and the target alone
    on the user's instance type, else on its own best."""

    candidate: Candidate
    compared: SpeedsByK
    alternatives: tuple[Alternative, ...] = ()
    alone: Alternative | None = None


def choose_instance(
    evaluator: CandidateEvaluator, target_alone: CandidateEvaluator | None = None
) -> Decision[InstanceChoice]:
    """The user's instance type, or the best of the ranking, with findings about it; and the best
    of the ranking for comparison. ``target_alone`` evaluates the target without speculation, where
    its load is another one.

    Raises NotFound for an instance type that is not in the catalogue, and UserError for
    impossible limits.
    """
    options = evaluator.options
    _check_limits(options)
    ranked = evaluator.fitting() or evaluator.fitting(anywhere=True)
    if options.instance_type is None and not ranked:
        return _largest(evaluator)
    without = target_alone or evaluator.with_drafter(None)
    alone = _fitting(without)
    considered = _candidate(evaluator, ranked)
    drafter = considered.drafter or evaluator.pair.drafter
    speculating = _fitting(evaluator.with_drafter(drafter)) if drafter else []
    if considered.drafter is None and options.instance_type is None:
        others = (candidate for candidate in ranked if candidate.drafter)
        speculating = rank(options, [*speculating, *others])
    either = WithOrWithout(evaluator, considered, speculating, alone)
    candidate = either.instead() or considered
    unknown = None if candidate is considered else considered
    if unknown is not None:
        ranked, either = without.fitting(), replace(either, candidate=candidate)
    reasons = [_parallel_reason(candidate)]
    if options.instance_type is None:
        reasons.insert(0, _instance_reason(options, candidate, ranked))
    else:
        reasons += _without_reason(without, alone)
    choice = InstanceChoice(
        candidate,
        evaluator.compared(candidate),
        tuple(_alternative(options, other) for other in _shown(options, ranked)),
        _alternative(options, alone[0]) if alone else None,
    )
    if evaluator.pair.drafter is not None:
        reasons.append(either.reason(choice.compared, unknown))
    reviewed = evaluator if unknown is None else evaluator.with_drafter(None)
    findings = (*Review(reviewed, candidate, ranked).findings(), *either.costs_more())
    return Decision(choice, tuple(reasons), findings)


def best_candidate(evaluator: CandidateEvaluator) -> Candidate | None:
    """What ``choose_instance`` would select by cost; ``None`` where nothing fits."""
    ranked = evaluator.fitting() or evaluator.fitting(anywhere=True)
    if evaluator.options.instance_type is None and not ranked:
        return None
    return _candidate(evaluator, ranked)


def selected_candidate(evaluator: CandidateEvaluator) -> Candidate:
    """What ``choose_instance`` selects on the user's instance type."""
    considered, alone = _candidate(evaluator, ()), _fitting(evaluator.with_drafter(None))
    return WithOrWithout(evaluator, considered, (), alone).instead() or considered


def _candidate(evaluator: CandidateEvaluator, ranked: Sequence[Candidate]) -> Candidate:
    """On the user's instance type, else the best of the ranking."""
    named = evaluator.options.instance_type
    if named is None:
        return ranked[0]
    return evaluator.candidate(find_instance(evaluator.work.catalog.instances, named))


def _fitting(evaluator: CandidateEvaluator) -> list[Candidate]:
    """The candidate on the user's instance type if it fits; without one, the ranking of all."""
    if evaluator.options.instance_type is None:
        return evaluator.fitting()
    candidate = _candidate(evaluator, ())
    return [candidate] if candidate.fit.fits else []


def _without_reason(evaluator: CandidateEvaluator, alone: Sequence[Candidate]) -> Iterator[Reason]:
    """What would be chosen without speculation if the user had not named the type of ``alone``."""
    best = next(iter(evaluator.fitting()), None)
    if best is None or not alone or best.instance == alone[0].instance:
        return
    because = "price unknown" if best.usd_per_hour is None else best.cost_text
    if best.usd_per_million_tokens is not None:
        because += f", {format_usd(best.usd_per_million_tokens)} per million output tokens"
    yield Reason(what="instance_without_speculation", value=best.text, because=because)


def _largest(evaluator: CandidateEvaluator) -> Decision[InstanceChoice]:
    """The largest type, with the error that nothing fits."""
    candidate = evaluator.largest()
    finding = none_fits(evaluator.work_on(candidate), candidate)
    reason = _reason(candidate, "the largest in the catalogue, since none fits")
    choice = InstanceChoice(candidate, evaluator.compared(candidate))
    return Decision(choice, (reason,), (finding,))


def _shown(options: Options, ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best, the best on another GPU, and those with the lowest price per hour and the lowest
    cost per token; none above the price limit or below what is required, unless all are."""
    allowed = [other for other in ranked if other.within(options.max_price_per_hour)] or ranked
    allowed = [other for other in allowed if other.meets(options)] or allowed
    best = [*allowed[:BEST]]
    another = (other for other in allowed if other.instance.gpu != best[0].instance.gpu)
    for other in (next(another, None), cheapest_of(options, allowed), _least_cost_of(allowed)):
        if other is not None and other not in best:
            best.append(other)
    return best


def _least_cost_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """The lowest cost per token of those that hold the load."""
    priced = [other for other in candidates if other.usd_per_million_tokens and other.holds_load]
    return min(priced, key=lambda other: other.usd_per_million_tokens or 0.0, default=None)


def speed_of(candidate: Candidate) -> SpeedEstimate:
    """The candidate's speed, of all instances together."""
    return SpeedEstimate(**_speed(candidate))


def _speed(candidate: Candidate) -> dict[str, Any]:
    speed, acceptance = candidate.performance, candidate.performance.acceptance
    return {
        "tokens_per_second": candidate.tokens_per_second,
        "low": candidate.total(speed.low),
        "high": candidate.total(speed.high),
        "basis": speed.basis,
        "ttft_seconds": _rounded(speed.ttft_seconds),
        "itl_seconds": _rounded(speed.itl_seconds),
        "usd_per_million_tokens": candidate.usd_per_million_tokens,
        "acceptance_length": None if acceptance.basis == "unknown" else acceptance.length,
        "acceptance_basis": acceptance.basis,
        "source": candidate.source,
        "cached_prompt_tokens": speed.cached_prompt_tokens,
        "conversations": speed.conversations,
        "extrapolated": speed.extrapolated,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)


def _alternative(options: Options, candidate: Candidate) -> Alternative:
    return Alternative(
        **_speed(candidate),
        instance_type=candidate.instance.type,
        instance_count=candidate.count,
        copies=_shown_copies(options, candidate),
        gpu=candidate.instance.gpu,
        tensor_parallel_size=candidate.fit.tensor_parallel_size,
        price_per_hour_usd=candidate.usd_per_hour,
        max_concurrency=candidate.fit.max_concurrency,
        kv_cache_tokens=candidate.fit.kv_cache_tokens,
        drafter=candidate.drafter.name if candidate.drafter else None,
        k=candidate.k,
        verified=candidate.tokens_per_second is not None and candidate.meets(options),
        speed_source=None if candidate.tokens_per_second is None else candidate.source,
        batch=batch_on(candidate, options),
    )


def count_decision(options: Options, candidate: Candidate) -> Decision[int]:
    """The chosen number of instances with the reason."""
    if options.instance_count is not None:
        return Decision(options.instance_count)
    one_holds = candidate.on_instance.most_requests * candidate.copies
    if candidate.count == 1:
        because = "one instance serves the load"
    elif options.within is not None:
        because = "fewer do not finish in time"
    elif candidate.count == options.min_instances:
        because = "--min-instances"
    elif candidate.count == options.max_instances and not candidate.holds_load:
        because = "--max-instances; the load needs more"
    elif one_holds * (candidate.count - 1) < candidate.load * candidate.engines:
        because = f"the KV cache of one is enough for {format_requests(one_holds)} of this load"
    else:
        because = f"one is too slow; together they reach {candidate.speed_text}"
    return decide(candidate.count, "instance_count", because)


def copies_decision(options: Options, candidate: Candidate) -> Decision[Copies | None]:
    """The engines on each instance and what each reserves, with the reason; ``None`` without
    copies."""
    if _shown_copies(options, candidate) is None:
        return Decision(None)
    size, copies = candidate.fit.tensor_parallel_size, candidate.copies
    chosen = reserved(candidate.instance, copies, size)
    if options.copies != AUTO:
        return Decision(chosen)
    gpus = f"{copies * size} of the {candidate.fit.gpu_count} GPUs"
    because = f"with {size} GPU{'' if size == 1 else 's'} each they use {gpus}"
    if candidate.usd_per_million_tokens is not None:
        because += f", at {format_usd(candidate.usd_per_million_tokens)} per million output tokens"
    return decide(chosen, "copies", because, shown=str(copies))


def _shown_copies(options: Options, candidate: Candidate) -> int | None:
    """The engines on each instance; ``None`` where a single one needs no inference component."""
    several = options.copies != AUTO or candidate.copies > 1 or options.scale_to_zero
    planned = options.copies is not None and several
    return candidate.copies if planned else None


def _check_limits(options: Options) -> None:
    if options.instance_count is not None and options.instance_count < 1:
        raise OutOfRange(f"--instance-count {options.instance_count} is less than 1", "use 1")
    if (options.instance_count or 0) > MOST_COUNT:
        raise OutOfRange(f"--instance-count is more than {MOST_COUNT:,}", "use a smaller number")
    limits = {
        "--min-tokens-per-second": options.min_tokens_per_second,
        "--max-price-per-hour": options.max_price_per_hour,
    }
    for flag, value in limits.items():
        if value is not None and not 0 < value < float("inf"):
            raise OutOfRange(f"{flag} {value:g} is not a positive number", "use a number above 0")


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
    if options.min_tokens_per_second or options.slo or options.within:
        met = "known to meet" if candidate.meets(options) else "not known to meet"
        which += f", {met} what is required"
    costs = candidate.at_cost.strip() or "price unknown"
    if peers == 1:
        return _reason(candidate, f"the only type that fits{which}; {costs}")
    if by_cost and per_million is not None:
        costs = f"{format_usd(per_million)} per million output tokens, {costs}"
        if any((other.usd_per_million_tokens or per_million) < per_million for other in ranked):
            tie = f"about the lowest cost of {peers} types that fit{which}: {costs}; costs within "
            percent = f"{SAME_COST_FACTOR * 100 - 100:.0f} %"
            tie += f"{percent} count as equal, and it has the lowest price per hour"
            return _reason(candidate, tie)
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


def _parallel_reason(candidate: Candidate) -> Reason:
    """Why an engine runs on this many GPUs."""
    size, count = candidate.fit.tensor_parallel_size, candidate.fit.gpu_count
    is_known = candidate.performance.basis != "unknown"
    if count == 1:
        because = "the instance has one GPU"
    elif not candidate.fit.fits:
        because = "needs the least additional memory"
    elif not candidate.holds_load:
        because = f"holds the most requests on the {count} GPUs"
    elif is_known:
        because = f"the fastest on up to {count} GPUs ({candidate.performance.basis})"
    elif size == 1:
        because = (
            f"one of the {count} GPUs holds the load; tensor parallelism would add communication"
        )
    else:
        because = (
            f"the fewest of the {count} GPUs that hold the load and divide the attention heads"
        )
    return Reason(what="tensor_parallel_size", value=str(size), because=because)
