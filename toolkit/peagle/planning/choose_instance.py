"""Selects the instance: the user's own type, or the best candidate for the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peagle.case import MOST_COUNT
from peagle.catalog.find import find_instance
from peagle.errors import OutOfRange
from peagle.options import AUTO, Options
from peagle.planning.candidates import Candidate, cheapest_of, rank
from peagle.planning.copies import Copies, reserved
from peagle.planning.evaluation import Evaluator
from peagle.planning.findings import Review, costs_more, none_fits
from peagle.planning.plan import Alternative, Decision, Reason, SpeedEstimate, decide
from peagle.planning.reasons import (
    copies_text,
    count_text,
    gpus_reason,
    instance_reason,
    is_cheaper,
    reason_without,
    speculation_reason,
)
from peagle.planning.speculation import SpeedsByK, is_drafter_named

BEST = 3
"""How many candidates of the ranking a plan shows, in addition to the best on another GPU and those
with the lowest price per hour and the lowest cost per token."""


@dataclass(frozen=True)
class InstanceChoice:
    """The selected candidate, the speeds on its GPUs, others for comparison, and the target alone
    on the user's instance type, else on its own best."""

    candidate: Candidate
    compared: SpeedsByK
    shown: tuple[Candidate, ...] = ()
    alone: Candidate | None = None


def choose_instance(
    evaluator: Evaluator, target_alone: Evaluator | None = None
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
        return _none_fits(evaluator)
    without = target_alone or evaluator.with_drafter(None)
    alone = _fitting(without)
    considered = _candidate(evaluator, ranked)
    drafter = considered.drafter or evaluator.pair.drafter
    speculating = _fitting(evaluator.with_drafter(drafter)) if drafter else []
    if considered.drafter is None and options.instance_type is None:
        speculating = rank([*speculating, *(other for other in ranked if other.drafter)])
    candidate = _alone_instead(considered, alone) or considered
    unknown, reviewed = None, evaluator
    if candidate is not considered:
        unknown, ranked, reviewed = considered, without.fitting(), evaluator.with_drafter(None)
    compared = evaluator.compared(candidate)
    reasons: list[Reason] = [gpus_reason(candidate)]
    if options.instance_type is None:
        reasons.insert(0, instance_reason(candidate, ranked))
    elif alone and (best := next(iter(without.fitting()), None)):
        reasons += [reason_without(best)] if best.instance != alone[0].instance else []
    if evaluator.pair.drafter is not None:
        reasons.append(speculation_reason(candidate, unknown, speculating, alone, compared))
    findings = (*Review(reviewed, candidate, ranked).findings(), *costs_more(candidate, alone))
    choice = InstanceChoice(candidate, compared, _shown(ranked), alone[0] if alone else None)
    return Decision(choice, tuple(reasons), findings)


def best_candidate(evaluator: Evaluator) -> Candidate | None:
    """What ``choose_instance`` would select by cost; ``None`` where nothing fits."""
    ranked = evaluator.fitting() or evaluator.fitting(anywhere=True)
    if evaluator.options.instance_type is None and not ranked:
        return None
    return _candidate(evaluator, ranked)


def selected_candidate(evaluator: Evaluator) -> Candidate:
    """What ``choose_instance`` selects on the user's instance type."""
    considered = _candidate(evaluator, ())
    return _alone_instead(considered, _fitting(evaluator.with_drafter(None))) or considered


def _candidate(evaluator: Evaluator, ranked: Sequence[Candidate]) -> Candidate:
    """On the user's instance type, else the best of the ranking."""
    named = evaluator.options.instance_type
    if named is None:
        return ranked[0]
    return evaluator.candidate(find_instance(evaluator.load.catalog.instances, named))


def _fitting(evaluator: Evaluator) -> list[Candidate]:
    """The candidate on the user's instance type if it fits; without one, the ranking of all."""
    if evaluator.options.instance_type is None:
        return evaluator.fitting()
    candidate = _candidate(evaluator, ())
    return [candidate] if candidate.fit.fits else []


def _alone_instead(candidate: Candidate, alone: Sequence[Candidate]) -> Candidate | None:
    """The target alone, to plan instead of the candidate: where the speed with its drafter is
    unknown, the user did not name it, and that of the target alone is known, costs less per
    hour, or meets what is required. A verdict, which selects known speeds only, is the same."""
    unknown = candidate.tokens_per_second is None and candidate.fit.fits
    if candidate.drafter is None or not unknown or is_drafter_named(candidate.asked) or not alone:
        return None
    best, cheapest = alone[0], cheapest_of(alone) or alone[0]
    if candidate.holds_load and not best.holds_load:
        return None
    certain = best.tokens_per_second is not None or (best.meets and not candidate.meets)
    return best if certain or is_cheaper(cheapest, candidate) else None


def _none_fits(evaluator: Evaluator) -> Decision[InstanceChoice]:
    """The largest type, with the error that nothing fits."""
    candidate = evaluator.largest()
    because = "the largest in the catalogue, since none fits"
    choice = InstanceChoice(candidate, evaluator.compared(candidate))
    decision = decide(choice, "instance_type", because, shown=candidate.instance.type)
    return Decision(choice, decision.reasons, (none_fits(evaluator.load, candidate),))


def _shown(ranked: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The best, the best on another GPU, and those with the lowest price per hour and the lowest
    cost per token; none above the price limit or below what is required, unless all are."""
    allowed = [other for other in ranked if other.affordable] or ranked
    allowed = [other for other in allowed if other.meets] or allowed
    best = [*allowed[:BEST]]
    another = (other for other in allowed if other.instance.gpu != best[0].instance.gpu)
    holding = (other for other in allowed if other.usd_per_million_tokens and other.holds_load)
    least = min(holding, key=lambda other: other.usd_per_million_tokens or 0.0, default=None)
    for other in (next(another, None), cheapest_of(allowed), least):
        if other is not None and other not in best:
            best.append(other)
    return tuple(best)


def speed_of(candidate: Candidate) -> SpeedEstimate:
    """The candidate's speed, of all instances together."""
    return SpeedEstimate(**_speed(candidate))


def alternative(candidate: Candidate) -> Alternative:
    """The candidate as a plan keeps it."""
    return Alternative(
        **_speed(candidate),
        instance_type=candidate.instance.type,
        instance_count=candidate.count,
        copies=candidate.copies if _has_copies(candidate) else None,
        gpu=candidate.instance.gpu,
        tensor_parallel_size=candidate.gpus,
        price_per_hour_usd=candidate.usd_per_hour,
        max_concurrency=candidate.fit.max_concurrency,
        kv_cache_tokens=candidate.fit.kv_cache_tokens,
        drafter=candidate.drafter.name if candidate.drafter else None,
        k=candidate.k,
        verified=candidate.tokens_per_second is not None and candidate.meets,
        speed_source=None if candidate.tokens_per_second is None else candidate.source,
        batch=candidate.batch,
    )


def _speed(candidate: Candidate) -> dict[str, Any]:
    speed, acceptance = candidate.performance, candidate.performance.acceptance
    times = {"ttft_seconds": speed.ttft_seconds, "itl_seconds": speed.itl_seconds}
    return {
        "tokens_per_second": candidate.tokens_per_second,
        "low": candidate.total(speed.low),
        "high": candidate.total(speed.high),
        "basis": speed.basis,
        **{name: None if time is None else round(time, 5) for name, time in times.items()},
        "usd_per_million_tokens": candidate.usd_per_million_tokens,
        "acceptance_length": None if acceptance.basis == "unknown" else acceptance.length,
        "acceptance_basis": acceptance.basis,
        "source": candidate.source,
        "cached_prompt_tokens": speed.cached_prompt_tokens,
        "conversations": speed.conversations,
        "extrapolated": speed.extrapolated,
    }


def count_decision(options: Options, candidate: Candidate) -> Decision[int]:
    """The chosen number of instances with the reason."""
    if options.instance_count is not None:
        return Decision(options.instance_count)
    return decide(candidate.count, "instance_count", count_text(options, candidate))


def copies_decision(options: Options, candidate: Candidate) -> Decision[Copies | None]:
    """The engines on each instance and what each reserves, with the reason; ``None`` without
    copies."""
    if not _has_copies(candidate):
        return Decision(None)
    copies = candidate.copies
    chosen = reserved(candidate.instance, copies, candidate.gpus)
    if options.copies != AUTO:
        return Decision(chosen)
    return decide(chosen, "copies", copies_text(candidate), shown=str(copies))


def _has_copies(candidate: Candidate) -> bool:
    """Whether its engines are an inference component, which a single one needs only to scale to
    zero."""
    asked = candidate.asked
    several = asked.copies != AUTO or candidate.copies > 1 or asked.scale_to_zero
    return asked.copies is not None and several


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
