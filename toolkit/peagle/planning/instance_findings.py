"""What would make it fit, or hold the load, on one instance type: found by trying, in numbers.

What is to be said of a place: that it is too old or too small, too full, or idle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from peagle.catalog.schema import Target
from peagle.catalog.tables import Instance
from peagle.findings import Finding, error, note, warning
from peagle.planning.candidates import (
    HELD_SHARE,
    HELD_WORDS,
    Market,
    Place,
    holds,
    host,
    needed_capability,
    why_too_small,
)
from peagle.planning.memory import GIB, Workload, drafter_bytes
from peagle.planning.plan import Options
from peagle.text import dollars, requests
from peagle.vllm.gpus import capability_of

_SHORTEST = 1024
"""Tokens below which a context is no remedy."""

_STEP = 256
"""Contexts are named in multiples of so many tokens."""


def remedies(work: Workload, instance: Instance) -> str:
    """Which single options make it fit there: ``lower --concurrency to 5461, or --k to 1``."""

    def fits(**change: int) -> bool:
        return host(replace(work, **change), instance, 0).fit.fits  # type: ignore[arg-type]

    return " or ".join(_single(work, fits))


def _single(work: Workload, fits: Callable[..., bool]) -> Iterator[str]:
    length = _largest(_SHORTEST, work.max_model_len, lambda n: fits(max_model_len=n))
    if length:
        yield f"lower --max-model-len to {length // _STEP * _STEP}"
    requests = _largest(1, work.concurrency, lambda n: fits(concurrency=n))
    if requests:
        yield f"lower --concurrency to {requests}"
    k = _largest(1, work.k, lambda n: fits(k=n)) if work.drafter is not None else None
    if k:
        yield f"lower --k to {k}"


def longest_held(work: Workload, instance: Instance, load: int) -> int | None:
    """The longest context of which the cache holds enough for ``load`` requests at a time."""

    def held(length: int) -> bool:
        return holds(host(replace(work, max_model_len=length), instance, load).fit, load)

    length = _largest(_SHORTEST, work.max_model_len, held)
    return length // _STEP * _STEP if length else None


def _largest(low: int, high: int, fine: Callable[[int], bool]) -> int | None:
    """The largest number from ``low`` to below ``high`` that is fine; more is never finer."""
    best, high = None, high - 1
    while low <= high:
        middle = (low + high) // 2
        if fine(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def too_old(target: Target, instance: Instance) -> Iterator[Finding]:
    """An error when this GPU cannot compute as the target needs."""
    needed, has = needed_capability(target), capability_of(instance)
    if has < needed:
        message = (
            f"{target.title} needs a GPU of compute capability {needed / 10}, and the "
            f"{instance.gpu} of {instance.type} has {has / 10}"
        )
        fix = "leave --instance-type out to get the cheapest that fits"
        yield error("gpu-too-old", "instance_type", message, fix)


def too_small(market: Market, place: Place, fitting: Sequence[Place]) -> Iterator[Finding]:
    """An error when the engine would not start on the user's instance type."""
    fit, instance = place.hosting.fit, place.instance
    if fit.fits:
        return
    work = market.work_on(place)
    message = (
        f"{instance.type} ({fit.gpu_count} x {fit.gpu}, {fit.gpu_memory_gib:.1f} GiB each) "
        f"does not hold it: {why_too_small(work, place.hosting)}"
    )
    fix = "; or ".join(filter(None, (_larger(fitting), remedies(work, instance))))
    fix = fix or "no instance type holds it, and no setting makes it fit"
    yield error("instance-too-small", "instance_type", message, fix)


def none_fits(market: Market, largest: Place) -> Finding:
    """The error that not even the largest instance type holds it."""
    work, type = market.work_on(largest), largest.instance.type
    message = (
        f"no instance type holds it; of {type}, the largest: {why_too_small(work, largest.hosting)}"
    )
    fix = remedies(work, largest.instance) or "choose a smaller target: no setting makes it fit"
    return error("instance-too-small", "instance_type", message, fix)


def remarks(
    options: Options, market: Market, place: Place, fitting: Sequence[Place]
) -> Iterator[Finding]:
    """What is good to know of a place on which the model fits."""
    if place.hosting.fit.fits:
        yield from _crowded(market, place, fitting)
        yield from _read_in_pieces(market, place)
        yield from _idle(options, place, fitting)


def _crowded(market: Market, place: Place, fitting: Sequence[Place]) -> Iterator[Finding]:
    """That the cache holds less than the load at full length; a warning when it is much less."""
    fit, load, length = place.hosting.fit, place.load, market.work.max_model_len
    if fit.max_concurrency >= load:
        return
    message = (
        f"the cache holds {fit.max_concurrency:.1f} requests of full length ({length:,} tokens) "
        f"at a time, and {requests(load)} are to run: while they are that long, the others wait, "
        "or are stopped and begun again (preempted)"
    )
    if place.holds_load:
        fix = (
            f"fine while requests have about {fit.kv_cache_tokens // load:,} tokens or less, "
            "prompt and answer together; else lower --max-model-len or --concurrency"
        )
        yield note("cache-below-concurrency", "concurrency", message, fix)
        return
    fix = "; or ".join(_more_room(market, place, fitting))
    yield warning("cache-below-concurrency", "concurrency", message, fix)


def _more_room(market: Market, place: Place, fitting: Sequence[Place]) -> Iterator[str]:
    """What gives the load room: another type, fewer requests, or shorter ones."""
    other = next((other for other in fitting if other.holds_load), None)
    if other is not None:
        cost = f" at {cost_per_hour(other)}" if other.usd_per_hour is not None else ""
        yield f"use {other.instance.type}{cost}, which holds {HELD_WORDS} of that load"
    fewer = math.floor(place.hosting.fit.max_concurrency / HELD_SHARE) * place.count
    yield f"lower --concurrency to {fewer}"
    shorter = longest_held(market.work_on(place), place.instance, place.load)
    if shorter is not None:
        yield f"lower --max-model-len to {shorter}"


def _read_in_pieces(market: Market, place: Place) -> Iterator[Finding]:
    work, instance = market.work_on(place), place.instance
    weights = (work.target.weight_bytes + drafter_bytes(work)) / GIB
    if weights > instance.memory_gib:
        message = (
            f"the weights have {weights:.1f} GiB and {instance.type} {instance.memory_gib} GiB of "
            "host memory, so they are read in pieces and the start takes longer"
        )
        fix = "if the start fails for want of memory, use the next larger size"
        yield note("host-memory-below-weights", "instance_type", message, fix)


def _idle(options: Options, place: Place, fitting: Sequence[Place]) -> Iterator[Finding]:
    """A word on GPUs that are paid for and that nobody needs; a warning where planning chose them
    though they are not the cheapest."""
    fit = place.hosting.fit
    idle = fit.gpu_count - fit.tensor_parallel_size
    if not idle:
        return
    do = "does nothing and is" if idle == 1 else "do nothing and are"
    message = f"{idle} of the {fit.gpu_count} GPUs of {place.instance.type} {do} paid for"
    fix = "leave --instance-type out to get the cheapest that fits"
    if options.instance_type is not None:
        yield note("gpus-idle", "instance_type", message, fix)
        return
    if place.usd_per_hour is not None and place.cost <= fitting[0].cost:
        fix = "nothing is to be done: it is the cheapest that fits all the same"
        yield note("gpus-idle", "instance_type", message, fix)
        return
    busy = next((other for other in fitting if _all_busy(other)), None)
    fix = "no type of which all GPUs are used fits"
    if busy is not None:
        cost = f", at {cost_per_hour(busy)}" if busy.usd_per_hour is not None else ""
        fix = f"all GPUs are used on {busy.instance.type}{cost}: name it with --instance-type"
        if options.min_tokens_per_second is not None and busy.tokens_per_second is None:
            fix += ", though nobody has measured its speed"
    yield warning("gpus-idle", "instance_type", message, fix)


def _all_busy(place: Place) -> bool:
    return place.hosting.fit.tensor_parallel_size == place.hosting.fit.gpu_count


def _larger(fitting: Sequence[Place]) -> str:
    """The types to take instead; "" when there is none."""
    if not fitting:
        return ""
    cheapest = fitting[0]
    smallest = min(
        fitting, key=lambda p: (p.instance.gpu_count * p.instance.gpu_memory_mib, *p.cost)
    ).instance.type
    cost = f" at {cost_per_hour(cheapest)}" if cheapest.usd_per_hour is not None else ""
    if smallest == cheapest.instance.type:
        return f"use {smallest}, the smallest and cheapest that fits{cost}"
    return (
        f"use {smallest}, the smallest that fits, or {cheapest.instance.type}, the cheapest{cost}"
    )


def cost_per_hour(place: Place) -> str:
    """``$4.20 an hour``, of all its instances."""
    together = f" for {place.count}" if place.count > 1 else ""
    return f"{dollars(place.usd_per_hour or 0.0)} an hour{together}"
