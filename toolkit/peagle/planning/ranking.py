"""Which of the places: the user's own, or the cheapest that does what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peagle.catalog.find import find_instance
from peagle.catalog.tables import InstanceTable
from peagle.errors import UserError
from peagle.findings import Finding, warning
from peagle.planning.candidates import HELD_WORDS, Market, Place, parallel_reason, reaches
from peagle.planning.decision import Choice, chosen
from peagle.planning.instance_findings import cost_per_hour, none_fits, remarks, too_old, too_small
from peagle.planning.plan import Alternative, Options, Reason
from peagle.planning.price_findings import known, price_findings, speed_findings, words

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
        *remarks(options, market, place, fitting),
        *price_findings(options, place, fitting),
        *speed_findings(options, market, place, fitting),
        *_raised(options, place),
        *_cheaper_alone(options, market, place),
    )
    parallel = parallel_reason(place.hosting, place.load)
    reasons = (_instance_reason(options, place, fitting), *parallel)
    return Choice(Ranked(place, best), reasons, findings)


def rank(options: Options, fitting: list[Place]) -> list[Place]:
    """From best to worst, of ``fitting`` from cheap to dear.

    What holds the load that was asked for (``HELD_SHARE``) comes before what only fits. With a
    price limit, what costs more, or nobody knows what, is left out unless nothing remains.
    With a speed asked for, what is measured to make it comes first, and then what nobody has
    measured; what is measured not to make it only counts when nothing makes it, the fastest first.
    """
    limit, wanted = options.max_price_per_hour, options.min_tokens_per_second
    within = [place for place in fitting if affordable(place, limit)] or fitting
    if options.asks_for_load:
        within = sorted(within, key=lambda place: not place.holds_load)
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
        *too_small(market, place, fitting),
        *remarks(options, market, place, fitting),
        *price_findings(options, place, fitting),
        *speed_findings(options, market, place, fitting),
        *_raised(options, place),
        *_cheaper_alone(options, market, place),
    )
    return Choice(Ranked(place, best), parallel_reason(place.hosting, place.load), findings)


def _none_fits(market: Market) -> Choice[Ranked]:
    largest = market.largest()
    type, because = largest.instance.type, "the largest that the catalogue has, since none fits"
    reasons = chosen(type, "instance_type", because).reasons
    return Choice(Ranked(largest, ()), reasons, (none_fits(market, largest),))


def _instance_reason(options: Options, place: Place, fitting: Sequence[Place]) -> Reason:
    """Among which types it was chosen, and by what: the price, unless none of them has one."""
    wanted = options.min_tokens_per_second
    if wanted is not None and place.tokens_per_second is not None and not reaches(place, wanted):
        because = "the fastest that was measured"
        cost = (
            f"at {cost_per_hour(place)}" if place.usd_per_hour else "at a price that is not known"
        )
        return Reason(what="instance_type", value=place.instance.type, because=f"{because}, {cost}")
    peers = sum(_alike(options, place, other) for other in fitting)
    which = ""
    if place.holds_load and options.asks_for_load:
        which += f", with a cache for {HELD_WORDS} of the load at full length"
    if wanted is not None and place.tokens_per_second is not None:
        which += f", measured to make {wanted:,.0f} tokens/s"
    elif wanted is not None:
        which += ", which nobody has measured"
    best, cost = "the cheapest", f"at {cost_per_hour(place)}" if place.usd_per_hour else ""
    if place.usd_per_hour is None:
        best, cost = "one", f"no price is known of {'it' if peers == 1 else 'any of them'}"
    among = "the only type that fits" if peers == 1 else f"{best} of {peers} types that fit"
    because = f"{among}{which}; {cost}" if which else f"{among}, {cost}"
    return Reason(what="instance_type", value=place.instance.type, because=because)


def _alike(options: Options, place: Place, other: Place) -> bool:
    """Whether these two are told apart by their price alone."""
    limit, wanted = options.max_price_per_hour, options.min_tokens_per_second
    ours, theirs = (
        (
            options.asks_for_load and one.holds_load,
            affordable(one, limit),
            wanted is not None and reaches(one, wanted),
            wanted is not None and one.tokens_per_second is None,
        )
        for one in (place, other)
    )
    return ours == theirs


def _cheaper_alone(options: Options, market: Market, place: Place) -> Iterator[Finding]:
    """A warning when the target alone makes the speed asked for with less money."""
    wanted, drafter = options.min_tokens_per_second, place.verdict.drafter
    if wanted is None or drafter is None:
        return
    alone = market.alone()
    others = [alone.place(place.instance)]
    if options.instance_type is None:
        others += rank(options, alone.fitting())[:1]
    enough = [other for other in others if reaches(other, wanted) and _dearer(place, other)]
    if enough:
        best = min(enough, key=lambda other: other.cost)
        cost = f" at {cost_per_hour(best)}" if best.usd_per_hour else ""
        message = (
            f"{market.work.target.title} alone makes that speed for less: "
            f"{best.tokens_per_second:,.0f} tokens/s, {known(best)}, on {words(best)}{cost}, where "
            f"{drafter.title} takes {words(place)}"
        )
        yield warning("speculation-costs-more", "drafter", message, "use --no-speculation")


def _dearer(place: Place, other: Place) -> bool:
    """Whether ``place`` is known to cost more than ``other``: of one type it is when it is more."""
    if place.instance.type == other.instance.type:
        return place.count > other.count
    if place.usd_per_hour is None or other.usd_per_hour is None:
        return False
    return place.usd_per_hour > other.usd_per_hour


def _raised(options: Options, place: Place) -> Iterator[Finding]:
    if options.instance_count is None and place.count > 1:
        message = (
            f"{place.count} instances are planned, and all are paid for, because one is not "
            f"measured to make {options.min_tokens_per_second:,.0f} tokens/s"
        )
        fix = "say how many with --instance-count"
        yield warning("instances-for-speed", "instance_count", message, fix)
