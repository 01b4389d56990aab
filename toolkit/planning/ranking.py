"""Which of the places: the user's own, or the cheapest that does what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolkit.catalog.pairs import find_instance
from toolkit.catalog.tables import InstanceTable
from toolkit.errors import UserError
from toolkit.findings import Finding, error, warning
from toolkit.planning.choice import Choice, chosen
from toolkit.planning.hosting import idle, parallel_reason, remarks, too_old, too_small
from toolkit.planning.limited import price_findings, speed_findings
from toolkit.planning.market import Market, Place, reaches
from toolkit.planning.memory import missing_gib
from toolkit.planning.models import Alternative, Options, Reason

BEST = 3
"""How many of the ranking a plan shows."""


@dataclass(frozen=True)
class Ranked:
    """The place that was chosen, and the best of the ranking."""

    place: Place
    best: tuple[Place, ...]


def choose_place(options: Options, table: InstanceTable, market: Market) -> Choice[Ranked]:
    """The user's instance type, or the best of the ranking; what is wrong with it is a finding.

    Raises NotFound for an instance type that the catalogue does not have, and UserError for limits
    that cannot be meant.
    """
    _check_limits(options)
    fitting = market.fitting()
    order = rank(options, fitting)
    best = tuple(order[:BEST])
    if options.instance_type is not None:
        place = market.place(find_instance(table, options.instance_type))
        return _the_users(options, market, place, fitting, best)
    if not order:
        return _none_fits(market)
    place = order[0]
    findings = (
        *remarks(place.hosting, market.work_on(place), market.load_on(place)),
        *price_findings(options, place, fitting),
        *speed_findings(options, market, place, fitting),
        *_raised(options, place),
    )
    reasons = (_instance_reason(options, place, fitting), *parallel_reason(place.hosting))
    return Choice(Ranked(place, best), reasons, findings)


def rank(options: Options, fitting: list[Place]) -> list[Place]:
    """From best to worst, of ``fitting`` from cheap to dear.

    With a price limit, what costs more, or nobody knows what, is left out unless nothing remains.
    With a speed asked for, what is measured to make it comes first, and then what nobody has
    measured; what is measured not to make it only counts when nothing makes it, the fastest first.
    """
    limit, wanted = options.max_price_per_hour, options.min_tokens_per_second
    within = [place for place in fitting if affordable(place, limit)] or fitting
    if wanted is None:
        return within
    known = [place for place in within if place.tokens_per_second is not None]
    unknown = [place for place in within if place.tokens_per_second is None]
    enough = [place for place in known if reaches(place, wanted)]
    fastest = sorted(known, key=lambda p: (-(p.tokens_per_second or 0), p.cost))
    return [*(enough or fastest), *unknown]


def affordable(place: Place, limit: float | None) -> bool:
    """Whether it is known to cost no more than ``limit`` USD per hour."""
    return limit is None or (place.usd_per_hour is not None and place.usd_per_hour <= limit)


def alternative(options: Options, place: Place) -> Alternative:
    """A place as the plan shows it."""
    fit, wanted = place.hosting.fit, options.min_tokens_per_second
    return Alternative(
        instance_type=place.instance.type,
        instance_count=place.count,
        gpu=place.instance.gpu,
        tensor_parallel_size=fit.tensor_parallel_size,
        price_per_hour_usd=place.usd_per_hour,
        max_concurrency=fit.max_concurrency,
        kv_cache_tokens=fit.kv_cache_tokens,
        k=place.verdict.k,
        tokens_per_second=place.tokens_per_second,
        speed_source=place.source,
        usd_per_million_tokens=place.usd_per_million_tokens,
        verified=reaches(place, wanted or 0),
    )


def choose_count(options: Options, place: Place) -> Choice[int]:
    """How many instances."""
    if options.instance_count is not None:
        return Choice(options.instance_count)
    if place.count == 1:
        return chosen(1, "instance_count", "one instance answers; more share the load")
    because = f"so many share the load to make {place.tokens_per_second:,.0f} tokens/s together"
    return chosen(place.count, "instance_count", because)


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
    options: Options, market: Market, place: Place, fitting: list[Place], best: tuple[Place, ...]
) -> Choice[Ranked]:
    findings = (
        *too_old(market.work.target, place.instance),
        *too_small(place.hosting, market.work_on(place), _larger(fitting)),
        *remarks(place.hosting, market.work_on(place), market.load_on(place)),
        *idle(place.hosting),
        *price_findings(options, place, fitting),
        *speed_findings(options, market, place, fitting),
        *_raised(options, place),
    )
    return Choice(Ranked(place, best), parallel_reason(place.hosting), findings)


def _larger(fitting: list[Place]) -> str:
    if not fitting:
        return "lower --max-model-len: no instance type holds it"
    cheapest = fitting[0]
    smallest = min(
        fitting, key=lambda p: (p.instance.gpu_count * p.instance.gpu_memory_mib, *p.cost)
    ).instance.type
    cost = f" at {_dollars(cheapest)}" if cheapest.usd_per_hour is not None else ""
    if smallest == cheapest.instance.type:
        return f"use {smallest}, the smallest and cheapest that fits{cost}"
    return (
        f"use {smallest}, the smallest that fits, or {cheapest.instance.type}, the cheapest{cost}"
    )


def _none_fits(market: Market) -> Choice[Ranked]:
    largest = market.largest()
    type = largest.instance.type
    message = (
        f"no instance type holds it; {type}, the largest, "
        f"lacks {missing_gib(largest.hosting.fit):.1f} GiB on each GPU"
    )
    finding = error("instance-too-small", "instance_type", message, "lower --max-model-len")
    because = "the largest that the catalogue has, since none fits"
    ranked = Ranked(largest, ())
    return Choice(ranked, chosen(type, "instance_type", because, shown=type).reasons, (finding,))


def _instance_reason(options: Options, place: Place, fitting: list[Place]) -> Reason:
    wanted = options.min_tokens_per_second
    cost = f"at {_dollars(place)}" if place.usd_per_hour else "though its price is not known"
    because = f"the cheapest of {len(fitting)} types that fit, {cost}"
    if wanted is not None and place.tokens_per_second is None:
        because = f"the cheapest of the types that fit and nobody has measured, {cost}"
    elif wanted is not None:
        enough = sum(reaches(other, wanted) for other in fitting)
        because = f"the cheapest of {enough} types measured to make {wanted:,.0f} tokens/s, {cost}"
        if not enough:
            because = f"the fastest that was measured, {cost}"
    return Reason(what="instance_type", value=place.instance.type, because=because)


def _dollars(place: Place) -> str:
    together = f" for {place.count}" if place.count > 1 else ""
    return f"${place.usd_per_hour:.2f} an hour{together}"


def _raised(options: Options, place: Place) -> Iterator[Finding]:
    if options.instance_count is None and place.count > 1:
        message = (
            f"{place.count} instances are planned, and all are paid for, because one is not "
            f"measured to make {options.min_tokens_per_second:,.0f} tokens/s"
        )
        fix = "say how many with --instance-count"
        yield warning("instances-for-speed", "instance_count", message, fix)
