"""Findings about an instance: too small, too full, idle, too expensive or too slow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from peagle.catalog.tables import Instance
from peagle.findings import Finding, error, note, warning
from peagle.fit.estimate import GIB
from peagle.planning.candidates import (
    HELD_SHARE,
    HELD_SHARE_TEXT,
    MOST_TRIED,
    Candidate,
    CandidateEvaluator,
    cost_text,
    holds,
    host,
    instances_text,
    reaches,
    speed_origin,
    why_too_small,
)
from peagle.planning.engine_settings import Workload, drafter_bytes
from peagle.text import format_concurrency, format_requests, format_usd

_SHORTEST = 1024
"""Tokens; a shorter context is not worth suggesting."""

_STEP = 256
"""Suggested contexts are multiples of this many tokens."""

_CHEAPEST = "leave --instance-type out to get the cheapest type that fits"


def fitting_options(work: Workload, instance: Instance) -> str:
    """The single options that make it fit: ``lower --concurrency to 5461 or lower --k to 1``."""

    def fits(**change: int) -> bool:
        return host(replace(work, **change), instance, 0).fit.fits  # type: ignore[arg-type]

    found = []
    length = _largest(_SHORTEST, work.max_model_len, lambda n: fits(max_model_len=n))
    if length:
        found.append(f"lower --max-model-len to {length // _STEP * _STEP}")
    load = _largest(1, work.concurrency, lambda n: fits(concurrency=n))
    if load:
        found.append(f"lower --concurrency to {load}")
    k = _largest(1, work.k, lambda n: fits(k=n)) if work.drafter is not None else None
    if k:
        found.append(f"lower --k to {k}")
    return " or ".join(found)


def _largest(low: int, high: int, works: Callable[[int], bool]) -> int | None:
    """The largest number from ``low`` to below ``high`` that works; larger ones work less."""
    best, high = None, high - 1
    while low <= high:
        middle = (low + high) // 2
        if works(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def too_small(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """An error when the engine cannot start on the user's instance type."""
    fit, instance = candidate.hosting.fit, candidate.instance
    if fit.fits:
        return
    work = evaluator.work_on(candidate)
    message = (
        f"the pair does not fit on {instance.type} ({fit.gpu_count} x {fit.gpu}, "
        f"{fit.gpu_memory_gib:.1f} GiB each): {why_too_small(work, candidate.hosting)}"
    )
    fix = "; or ".join(filter(None, (_larger(fitting), fitting_options(work, instance))))
    fix = fix or "no instance type and no single option makes it fit"
    yield error("instance-too-small", "instance_type", message, fix)


def none_fits(evaluator: CandidateEvaluator, largest: Candidate) -> Finding:
    """The error that the pair does not fit on any instance type."""
    work, type = evaluator.work_on(largest), largest.instance.type
    message = (
        f"the pair fits on no instance type; on {type}, the largest: "
        f"{why_too_small(work, largest.hosting)}"
    )
    fix = fitting_options(work, largest.instance)
    fix = fix or "choose a smaller target: no single option makes it fit"
    return error("instance-too-small", "instance_type", message, fix)


def candidate_findings(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """Findings about a candidate on which the pair fits: KV cache, host memory, idle GPUs."""
    if candidate.hosting.fit.fits:
        yield from _cache(evaluator, candidate, fitting)
        yield from _host_memory(evaluator, candidate)
        yield from _idle(evaluator, candidate, fitting)


def _cache(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """That the KV cache holds less than the load at full length; a warning if much less."""
    fit, load, length = candidate.hosting.fit, candidate.load, evaluator.work.max_model_len
    if fit.max_concurrency >= load:
        return
    message = (
        f"the KV cache holds {fit.max_concurrency:.1f} requests of full length ({length:,} tokens) "
        f"of the planned {format_requests(load)}; at full length, excess requests queue or are "
        "preempted"
    )
    if candidate.holds_load:
        fix = (
            "lower --max-model-len or --concurrency, unless requests have about "
            f"{fit.kv_cache_tokens // load:,} tokens or less, prompt and output together"
        )
        yield note("cache-below-concurrency", "concurrency", message, fix)
        return
    fix = "; or ".join(_more_room(evaluator, candidate, fitting))
    yield warning("cache-below-concurrency", "concurrency", message, fix)


def _more_room(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[str]:
    """What makes the load fit in the cache: another type, fewer requests, or shorter ones."""
    other = next((other for other in fitting if other.holds_load), None)
    if other is not None:
        cost = f" at {cost_text(other)}" if other.usd_per_hour is not None else ""
        yield f"use {other.instance.type}{cost}, which holds {HELD_SHARE_TEXT} of that load"
    fewer = math.floor(candidate.hosting.fit.max_concurrency / HELD_SHARE) * candidate.count
    yield f"lower --concurrency to {fewer}"
    work, instance, load = evaluator.work_on(candidate), candidate.instance, candidate.load

    def held(length: int) -> bool:
        return holds(host(replace(work, max_model_len=length), instance, load).fit, load)

    length = _largest(_SHORTEST, work.max_model_len, held)
    if length:
        yield f"lower --max-model-len to {length // _STEP * _STEP}"


def _host_memory(evaluator: CandidateEvaluator, candidate: Candidate) -> Iterator[Finding]:
    work, instance = evaluator.work_on(candidate), candidate.instance
    weights = (work.target.weight_bytes + drafter_bytes(work)) / GIB
    if weights > instance.memory_gib:
        message = (
            f"the weights ({weights:.1f} GiB) exceed the host memory of {instance.type} "
            f"({instance.memory_gib} GiB), so they load in parts and startup takes longer"
        )
        fix = "if startup runs out of memory, use the next larger size"
        yield note("host-memory-below-weights", "instance_type", message, fix)


def _idle(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """A note on unused GPUs; a warning if planning chose them though they are not the cheapest."""
    fit, options = candidate.hosting.fit, evaluator.options
    idle = fit.gpu_count - fit.tensor_parallel_size
    if not idle:
        return
    message = (
        f"{idle} of the {fit.gpu_count} GPUs of {candidate.instance.type} "
        f"{'is' if idle == 1 else 'are'} idle but billed"
    )
    if options.instance_type is not None:
        yield note("gpus-idle", "instance_type", message, _CHEAPEST)
        return
    if candidate.usd_per_hour is not None and candidate.cost <= fitting[0].cost:
        yield note("gpus-idle", "instance_type", f"{message}; nothing cheaper fits", "")
        return
    busy = next((other for other in fitting if _all_busy(other)), None)
    fix = "no type that fits uses all of its GPUs"
    if busy is not None:
        cost = f" at {cost_text(busy)}" if busy.usd_per_hour is not None else ""
        fix = f"use --instance-type {busy.instance.type}{cost}, which uses all of its GPUs"
        if options.min_tokens_per_second is not None and busy.tokens_per_second is None:
            fix += "; its speed is not measured"
    yield warning("gpus-idle", "instance_type", message, fix)


def _all_busy(candidate: Candidate) -> bool:
    return candidate.hosting.fit.tensor_parallel_size == candidate.hosting.fit.gpu_count


def _larger(fitting: Sequence[Candidate]) -> str:
    """Types to use instead; empty when none fits."""
    if not fitting:
        return ""
    cheapest = fitting[0]
    smallest = min(
        fitting, key=lambda c: (c.instance.gpu_count * c.instance.gpu_memory_mib, *c.cost)
    ).instance.type
    cost = f" at {cost_text(cheapest)}" if cheapest.usd_per_hour is not None else ""
    if smallest == cheapest.instance.type:
        return f"use {smallest}, the smallest and cheapest that fits{cost}"
    return (
        f"use {smallest}, the smallest that fits, or {cheapest.instance.type}, the cheapest{cost}"
    )


def price_findings(
    limit: float | None, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """An error when the price is above the limit (USD per hour) or unknown."""
    if limit is None or (candidate.usd_per_hour is not None and candidate.usd_per_hour <= limit):
        return
    message = f"the price of {instances_text(candidate)} is unknown"
    if candidate.usd_per_hour is not None:
        message = f"{instances_text(candidate)} costs {format_usd(candidate.usd_per_hour)} an hour"
    message += f"; the limit is {format_usd(limit)}"
    fix = _cheaper(candidate, fitting, limit)
    yield error("price-above-limit", "max_price_per_hour", message, fix)


def _cheaper(candidate: Candidate, fitting: Sequence[Candidate], limit: float) -> str:
    cheapest = next((other for other in fitting if other.usd_per_hour is not None), None)
    if cheapest is None or cheapest.usd_per_hour is None:
        return "leave --max-price-per-hour out: no price is known of any type that fits"
    price = f"{format_usd(cheapest.usd_per_hour)} an hour"
    if cheapest.usd_per_hour <= limit:
        return f"use {instances_text(cheapest)}, the cheapest that fits, at {price}"
    if cheapest.instance == candidate.instance:
        return f"it is the cheapest that fits: use --max-price-per-hour {cheapest.usd_per_hour:g}"
    return f"even the cheapest that fits, {instances_text(cheapest)}, costs {price}"


def speed_findings(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """A warning when the required speed is not measured; an error when measured to be missed."""
    required = evaluator.options.min_tokens_per_second
    if required is None or reaches(candidate, required):
        return
    if candidate.tokens_per_second is None:
        yield _unverified(evaluator, candidate, fitting, required)
    else:
        yield _too_slow(evaluator, candidate, fitting, required)


def _unverified(
    evaluator: CandidateEvaluator,
    candidate: Candidate,
    fitting: Sequence[Candidate],
    required: float,
) -> Finding:
    gpus = f"{candidate.hosting.fit.tensor_parallel_size} x {candidate.instance.gpu}"
    measured = f"this pair is not measured on {gpus}"
    loads = evaluator.loads(candidate)
    if loads:
        measured = (
            f"on {gpus} this pair is measured with {loads[0]:,} to "
            f"{format_concurrency(loads[-1])}, not with {evaluator.work.concurrency:,}"
        )
    message = (
        f"{measured}, so it is unknown whether {instances_text(candidate)} reaches "
        f"{required:,.0f} tokens/s"
    )
    fix = "run a benchmark before you rely on it"
    enough = next((other for other in fitting if reaches(other, required)), None)
    if enough is not None:
        known = enough.usd_per_hour is not None
        cost = f"{format_usd(enough.usd_per_hour or 0)} an hour" if known else "unknown price"
        fix += (
            f"; {instances_text(enough)} is {speed_origin(enough)} to reach "
            f"{enough.tokens_per_second:,.0f} ({cost})"
        )
    return warning("speed-unverified", "min_tokens_per_second", message, fix)


def _too_slow(
    evaluator: CandidateEvaluator,
    candidate: Candidate,
    fitting: Sequence[Candidate],
    required: float,
) -> Finding:
    options = evaluator.options
    most = f"{candidate.tokens_per_second:,.0f} tokens/s"
    load = format_concurrency(evaluator.work.concurrency)
    message = (
        f"{instances_text(candidate)} reaches {most} with {load}, not {required:,.0f} "
        f"({candidate.source})"
    )
    if options.instance_type is None and options.instance_count is None:
        message = (
            f"no type that fits is known to reach {required:,.0f} tokens/s with {load}; the "
            f"fastest, {instances_text(candidate)}, reaches {most} ({candidate.source})"
        )
    faster = [*_faster(evaluator, candidate, fitting, required)]
    fix = "; or ".join(faster) or (
        f"lower --min-tokens-per-second to {candidate.tokens_per_second:,.0f} or less"
    )
    return error("speed-below-wanted", "min_tokens_per_second", message, fix)


def _faster(
    evaluator: CandidateEvaluator,
    candidate: Candidate,
    fitting: Sequence[Candidate],
    required: float,
) -> Iterator[str]:
    """What reaches the speed according to evidence: another type, K, more instances, more load."""
    options = evaluator.options
    other = next((other for other in fitting if reaches(other, required)), None)
    if other is not None:
        speed = f"{other.tokens_per_second:,.0f}"
        yield f"use {instances_text(other)}, {speed_origin(other)} to reach {speed}"
    compared = candidate.speculation.compared
    if options.k is not None and compared is not None:
        busy = min(candidate.count, evaluator.work.concurrency)
        if compared.fastest.tokens_per_second * busy >= required:
            yield f"leave --k out: K={compared.fastest.k} is measured to reach it"
    if options.instance_count is not None:
        most = min(evaluator.work.concurrency, options.instance_count + MOST_TRIED)
        for count in range(options.instance_count + 1, most + 1):
            if reaches(evaluator.shared(candidate.instance, count), required):
                yield f"use --instance-count {count}"
                break
    # The fewest instances that can reach it, and the smallest measured load at which they do.
    loads = {
        load: evaluator.shared(candidate.instance, 1, load).tokens_per_second or 0.0
        for load in evaluator.loads(candidate)
    }
    count = options.instance_count or math.ceil(required / max(loads.values()))
    load = next((load for load, speed in loads.items() if speed * count >= required), None)
    if load is None or load * count <= evaluator.work.concurrency:
        return
    if not evaluator.starts(candidate.instance, load * count):
        return
    measured = f"{loads[load]:,.0f} tokens/s measured with {format_requests(load)}"
    if count == 1:
        yield f"send more requests at a time: --concurrency {load} ({measured})"
    else:
        yield (
            f"send more requests at a time: --concurrency {load * count} on "
            f"{count} x {candidate.instance.type} (estimated: {count} times {measured} on one)"
        )
