"""What is to be said of a place that costs more, or makes less, than was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from peagle.findings import Finding, error, warning
from peagle.planning.candidates import MOST_TRIED, Market, Place, reaches
from peagle.planning.plan import Options
from peagle.text import at_a_time, dollars, requests


def price_findings(options: Options, place: Place, fitting: Sequence[Place]) -> Iterator[Finding]:
    """An error when the chosen place costs more than the limit, or nobody knows what."""
    limit = options.max_price_per_hour
    if limit is None or (place.usd_per_hour is not None and place.usd_per_hour <= limit):
        return
    if place.usd_per_hour is None:
        message = (
            f"what {words(place)} costs is not known, so it is not below {dollars(limit)} an hour"
        )
    else:
        message = (
            f"{words(place)} costs {dollars(place.usd_per_hour)} an hour, not {dollars(limit)}"
        )
    yield error("price-above-limit", "max_price_per_hour", message, _cheaper(place, fitting, limit))


def _cheaper(place: Place, fitting: Sequence[Place], limit: float) -> str:
    cheapest = next((other for other in fitting if other.usd_per_hour is not None), None)
    if cheapest is None or cheapest.usd_per_hour is None:
        return "leave --max-price-per-hour out: no price is known of what fits"
    price = f"{dollars(cheapest.usd_per_hour)} an hour"
    if cheapest.usd_per_hour <= limit:
        return f"use {words(cheapest)}, the cheapest that fits, at {price}"
    if cheapest.instance == place.instance:
        return f"it is the cheapest that fits: give --max-price-per-hour {cheapest.usd_per_hour:g}"
    return f"even the cheapest that fits, {words(cheapest)}, costs {price}"


def speed_findings(
    options: Options, market: Market, place: Place, fitting: Sequence[Place]
) -> Iterator[Finding]:
    """A warning when nobody knows whether the chosen place is fast enough, an error when it is
    known not to be."""
    wanted = options.min_tokens_per_second
    if wanted is None or reaches(place, wanted):
        return
    if place.tokens_per_second is None:
        yield _unverified(market, place, fitting, wanted)
    else:
        yield _too_slow(options, market, place, fitting, wanted)


def words(place: Place) -> str:
    """``ml.g6.xlarge``, or ``2 x ml.g6.xlarge``."""
    return place.instance.type if place.count == 1 else f"{place.count} x {place.instance.type}"


def known(place: Place) -> str:
    """How its speed is known: what several make together is reckoned, not measured."""
    return "measured" if place.count == 1 else "reckoned from measurements"


def _unverified(market: Market, place: Place, fitting: Sequence[Place], wanted: float) -> Finding:
    load, parallel = market.work.concurrency, place.hosting.fit.tensor_parallel_size
    on = f"{parallel} x {place.instance.gpu}"
    message = (
        f"nobody has measured this pair on {on}, so it is not known whether "
        f"{words(place)} makes {wanted:,.0f} tokens/s"
    )
    loads = market.loads(place)
    if loads:
        message = (
            f"on {on} this pair was measured with {loads[0]:,} to {at_a_time(loads[-1])}, "
            f"not with {load:,}, so it is not known whether {words(place)} makes {wanted:,.0f} "
            "tokens/s"
        )
    return warning(
        "speed-unverified", "min_tokens_per_second", message, _measured_elsewhere(fitting, wanted)
    )


def _measured_elsewhere(fitting: Sequence[Place], wanted: float) -> str:
    enough = next((other for other in fitting if reaches(other, wanted)), None)
    if enough is None:
        return "measure it before you rely on it"
    cost = "at a price that is not known"
    if enough.usd_per_hour is not None:
        cost = f"at {dollars(enough.usd_per_hour)} an hour"
    return (
        f"measure it before you rely on it; {words(enough)} is {known(enough)} to make "
        f"{enough.tokens_per_second:,.0f}, {cost}"
    )


def _too_slow(
    options: Options, market: Market, place: Place, fitting: Sequence[Place], wanted: float
) -> Finding:
    most = f"{place.tokens_per_second:,.0f} tokens/s"
    load = at_a_time(market.work.concurrency)
    message = f"{words(place)} makes {most} with {load}, not {wanted:,.0f} ({place.source})"
    if options.instance_type is None and options.instance_count is None:
        message = (
            f"nothing that fits is known to make {wanted:,.0f} tokens/s with {load}; the most is "
            f"{most}, of {words(place)} ({place.source})"
        )
    helps = [*_helps(options, market, place, fitting, wanted)]
    fix = "; or ".join(helps) or f"ask for {place.tokens_per_second:,.0f} or less"
    return error("speed-below-wanted", "min_tokens_per_second", message, fix)


def _helps(
    options: Options, market: Market, place: Place, fitting: Sequence[Place], wanted: float
) -> Iterator[str]:
    """What evidence knows to be fast enough: another type, K, number of instances, or load."""
    other = next((other for other in fitting if reaches(other, wanted)), None)
    if other is not None:
        yield f"use {words(other)}, {known(other)} to make {other.tokens_per_second:,.0f}"
    compared = place.verdict.compared
    if options.k is not None and compared is not None:
        times = min(place.count, market.work.concurrency)
        if compared.fastest.tokens_per_second * times >= wanted:
            yield f"leave --k out: K={compared.fastest.k} is measured to make it"
    if options.instance_count is not None:
        most = min(market.work.concurrency, options.instance_count + MOST_TRIED)
        for count in range(options.instance_count + 1, most + 1):
            if reaches(market.shared(place.instance, count), wanted):
                yield f"use --instance-count {count}"
                break
    yield from _more_at_a_time(options, market, place, wanted)


def _more_at_a_time(options: Options, market: Market, place: Place, wanted: float) -> Iterator[str]:
    """The fewest instances that can make it, and the smallest measured load with which they do."""
    ones = {load: market.shared(place.instance, 1, load) for load in market.loads(place)}
    speeds = {load: one.tokens_per_second or 0.0 for load, one in ones.items()}
    count = options.instance_count or math.ceil(wanted / max(speeds.values()))
    load = next((load for load, speed in speeds.items() if speed * count >= wanted), None)
    if load is None or load * count <= market.work.concurrency:
        return
    if not market.starts(place.instance, load * count):
        return
    made = f"{speeds[load]:,.0f} tokens/s measured with {requests(load)}"
    if count == 1:
        yield f"send more at a time: --concurrency {load} ({made})"
    else:
        yield (
            f"send more at a time: --concurrency {load * count} on {count} x {place.instance.type} "
            f"(reckoned: {count} times the {made} on one)"
        )
