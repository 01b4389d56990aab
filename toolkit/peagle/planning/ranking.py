"""Selects the instance: the user's own type, or the cheapest candidate that meets the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from peagle.case import MOST_COUNT
from peagle.catalog.find import find_instance
from peagle.errors import UserError
from peagle.findings import Finding, warning
from peagle.planning.candidates import HELD_SHARE_TEXT, Candidate, CandidateEvaluator
from peagle.planning.findings import Review, none_fits
from peagle.planning.plan import Alternative, Decision, Options, Reason, decide

BEST = 3
"""How many candidates of the ranking a plan shows."""


def choose_instance(
    evaluator: CandidateEvaluator,
) -> Decision[tuple[Candidate, tuple[Alternative, ...]]]:
    """The user's instance type, or the best of the ranking, with findings about it; and the best
    of the ranking for comparison.

    Raises NotFound for an instance type that is not in the catalogue, and UserError for
    impossible limits.
    """
    options = evaluator.options
    _check_limits(options)
    fitting = evaluator.fitting() or evaluator.fitting(anywhere=True)
    ranked = rank(options, fitting)
    best = tuple(_alternative(options, candidate) for candidate in ranked[:BEST])
    if options.instance_type is not None:
        types = evaluator.work.catalog.instances
        candidate = evaluator.candidate(find_instance(types, options.instance_type))
        reasons = [candidate.parallel_reason()]
    elif ranked:
        candidate = ranked[0]
        reasons = [_instance_reason(options, candidate, fitting), candidate.parallel_reason()]
    else:
        candidate = evaluator.largest()
        because = "the largest in the catalogue, since none fits"
        finding = none_fits(evaluator.work_on(candidate), candidate)
        reasons = [_reason(candidate, because)]
        return Decision((candidate, ()), tuple(reasons), (finding,))
    findings = (
        *Review(evaluator, candidate, fitting).findings(),
        *_cheaper_alone(evaluator, candidate),
    )
    return Decision((candidate, best), tuple(reasons), findings)


def rank(options: Options, fitting: list[Candidate]) -> list[Candidate]:
    """``fitting``, sorted by price, from best to worst.

    Candidates whose KV cache holds enough of a load that the user gave (``MIN_LOAD_SHARE``) come
    first. With a price limit, candidates above it or without a price are left out unless nothing
    remains. With a required speed, measured ones that reach it come first, then unmeasured ones;
    if none reaches it, the fastest come first.
    """
    limit, required = options.max_price_per_hour, options.min_tokens_per_second
    within = [candidate for candidate in fitting if candidate.within(limit)] or fitting
    if options.specifies_load:
        within = sorted(within, key=lambda candidate: not candidate.holds_load)
    if required is None:
        return within
    measured = [candidate for candidate in within if candidate.tokens_per_second is not None]
    unmeasured = [candidate for candidate in within if candidate.tokens_per_second is None]
    enough = [candidate for candidate in measured if candidate.reaches(required)]
    fastest = sorted(measured, key=lambda c: (-(c.tokens_per_second or 0), c.cost))
    return [*(enough or fastest), *unmeasured]


def _alternative(options: Options, candidate: Candidate) -> Alternative:
    return Alternative(
        instance_type=candidate.instance.type,
        instance_count=candidate.count,
        gpu=candidate.instance.gpu,
        tensor_parallel_size=candidate.fit.tensor_parallel_size,
        price_per_hour_usd=candidate.usd_per_hour,
        max_concurrency=candidate.fit.max_concurrency,
        kv_cache_tokens=candidate.fit.kv_cache_tokens,
        k=candidate.speculation.k,
        tokens_per_second=candidate.tokens_per_second,
        speed_source=candidate.source,
        usd_per_million_tokens=candidate.usd_per_million_tokens,
        verified=candidate.reaches(options.min_tokens_per_second or 0),
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
    if (options.instance_count or 0) > MOST_COUNT:
        raise UserError(f"--instance-count is more than {MOST_COUNT:,}", "use a smaller number")
    limits = {
        "--min-tokens-per-second": options.min_tokens_per_second,
        "--max-price-per-hour": options.max_price_per_hour,
    }
    for flag, value in limits.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{flag} {value:g} is not a positive number", "use a number above 0")


def _instance_reason(
    options: Options, candidate: Candidate, fitting: Sequence[Candidate]
) -> Reason:
    """Why this type: by price, unless no price is known, among comparable types."""
    required, priced = options.min_tokens_per_second, candidate.usd_per_hour is not None
    measured = required is not None and candidate.tokens_per_second is not None
    if required is not None and measured and not candidate.reaches(required):
        cost = candidate.at_cost.strip() or "price unknown"
        return _reason(candidate, f"the fastest measured, {cost}")
    ours = _apart_from_price(options, candidate)
    peers = sum(_apart_from_price(options, other) == ours for other in fitting)
    which = ""
    if candidate.holds_load and options.specifies_load:
        which += f", with a KV cache for {HELD_SHARE_TEXT} of the load at full length"
    if measured:
        which += f", measured to reach {required:,.0f} tokens/s"
    elif required is not None:
        which += ", not measured"
    best, cost = "the cheapest", candidate.at_cost.strip()
    if not priced:
        best, cost = "one", "price unknown" if peers == 1 else "no prices known"
    among = "the only type that fits" if peers == 1 else f"{best} of {peers} types that fit"
    return _reason(candidate, f"{among}{which}; {cost}" if which else f"{among}, {cost}")


def _apart_from_price(options: Options, candidate: Candidate) -> tuple[bool, ...]:
    """How the ranking treats the candidate, apart from its price."""
    required = options.min_tokens_per_second
    return (
        options.specifies_load and candidate.holds_load,
        candidate.within(options.max_price_per_hour),
        required is not None and candidate.reaches(required),
        required is not None and candidate.tokens_per_second is None,
    )


def _reason(candidate: Candidate, because: str) -> Reason:
    return Reason(what="instance_type", value=candidate.instance.type, because=because)


def _cheaper_alone(evaluator: CandidateEvaluator, candidate: Candidate) -> Iterator[Finding]:
    """A warning when the target alone reaches the required speed at a lower price."""
    options, drafter = evaluator.options, candidate.speculation.drafter
    required = options.min_tokens_per_second
    if required is None or drafter is None:
        return
    alone = evaluator.without_drafter()
    others = [alone.candidate(candidate.instance)]
    if options.instance_type is None:
        others += rank(options, alone.fitting())[:1]
    enough = [o for o in others if o.reaches(required) and _costs_more(candidate, o)]
    if enough:
        best = min(enough, key=lambda other: other.cost)
        message = (
            f"{evaluator.work.target.title} alone reaches that speed for less: "
            f"{best.tokens_per_second:,.0f} tokens/s, {best.speed_origin}, on "
            f"{best.text}{best.at_cost}; with {drafter.title} it needs {candidate.text}"
        )
        yield warning("speculation-costs-more", "drafter", message, "use --no-speculation")


def _costs_more(candidate: Candidate, other: Candidate) -> bool:
    """Whether ``candidate`` is known to cost more than ``other``.

    Of the same type, more instances cost more.
    """
    if candidate.instance.type == other.instance.type:
        return candidate.count > other.count
    if candidate.usd_per_hour is None or other.usd_per_hour is None:
        return False
    return candidate.usd_per_hour > other.usd_per_hour
