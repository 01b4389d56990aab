"""Findings about an instance: too old, too small, too full, idle, too expensive or too slow."""

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
    holds,
    host,
    reaches,
    why_too_small,
)
from peagle.planning.engine_settings import Workload, drafter_bytes
from peagle.planning.plan import Options
from peagle.text import at_a_time, dollars, requests

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


def too_small(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """An error when the engine would not start on the user's instance type."""
    fit, instance = candidate.hosting.fit, candidate.instance
    if fit.fits:
        return
    work = evaluator.work_on(candidate)
    message = (
        f"{instance.type} ({fit.gpu_count} x {fit.gpu}, {fit.gpu_memory_gib:.1f} GiB each) "
        f"does not hold it: {why_too_small(work, candidate.hosting)}"
    )
    fix = "; or ".join(filter(None, (_larger(fitting), remedies(work, instance))))
    fix = fix or "no instance type holds it, and no setting makes it fit"
    yield error("instance-too-small", "instance_type", message, fix)


def none_fits(evaluator: CandidateEvaluator, largest: Candidate) -> Finding:
    """The error that not even the largest instance type holds it."""
    work, type = evaluator.work_on(largest), largest.instance.type
    message = (
        f"no instance type holds it; of {type}, the largest: {why_too_small(work, largest.hosting)}"
    )
    fix = remedies(work, largest.instance) or "choose a smaller target: no setting makes it fit"
    return error("instance-too-small", "instance_type", message, fix)


def candidate_findings(
    options: Options,
    evaluator: CandidateEvaluator,
    candidate: Candidate,
    fitting: Sequence[Candidate],
) -> Iterator[Finding]:
    """What is good to know of a candidate on which the model fits."""
    if candidate.hosting.fit.fits:
        yield from _crowded(evaluator, candidate, fitting)
        yield from _read_in_pieces(evaluator, candidate)
        yield from _idle(options, candidate, fitting)


def _crowded(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """That the cache holds less than the load at full length; a warning when it is much less."""
    fit, load, length = candidate.hosting.fit, candidate.load, evaluator.work.max_model_len
    if fit.max_concurrency >= load:
        return
    message = (
        f"the cache holds {fit.max_concurrency:.1f} requests of full length ({length:,} tokens) "
        f"at a time, and {requests(load)} are to run: while they are that long, the others wait, "
        "or are stopped and begun again (preempted)"
    )
    if candidate.holds_load:
        fix = (
            f"fine while requests have about {fit.kv_cache_tokens // load:,} tokens or less, "
            "prompt and answer together; else lower --max-model-len or --concurrency"
        )
        yield note("cache-below-concurrency", "concurrency", message, fix)
        return
    fix = "; or ".join(_more_room(evaluator, candidate, fitting))
    yield warning("cache-below-concurrency", "concurrency", message, fix)


def _more_room(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[str]:
    """What gives the load room: another type, fewer requests, or shorter ones."""
    other = next((other for other in fitting if other.holds_load), None)
    if other is not None:
        cost = f" at {cost_text(other)}" if other.usd_per_hour is not None else ""
        yield f"use {other.instance.type}{cost}, which holds {HELD_SHARE_TEXT} of that load"
    fewer = math.floor(candidate.hosting.fit.max_concurrency / HELD_SHARE) * candidate.count
    yield f"lower --concurrency to {fewer}"
    shorter = longest_held(evaluator.work_on(candidate), candidate.instance, candidate.load)
    if shorter is not None:
        yield f"lower --max-model-len to {shorter}"


def _read_in_pieces(evaluator: CandidateEvaluator, candidate: Candidate) -> Iterator[Finding]:
    work, instance = evaluator.work_on(candidate), candidate.instance
    weights = (work.target.weight_bytes + drafter_bytes(work)) / GIB
    if weights > instance.memory_gib:
        message = (
            f"the weights have {weights:.1f} GiB and {instance.type} {instance.memory_gib} GiB of "
            "host memory, so they are read in pieces and the start takes longer"
        )
        fix = "if the start fails for want of memory, use the next larger size"
        yield note("host-memory-below-weights", "instance_type", message, fix)


def _idle(
    options: Options, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """A word on GPUs that are paid for and that nobody needs; a warning where planning chose them
    though they are not the cheapest."""
    fit = candidate.hosting.fit
    idle = fit.gpu_count - fit.tensor_parallel_size
    if not idle:
        return
    do = "does nothing and is" if idle == 1 else "do nothing and are"
    message = f"{idle} of the {fit.gpu_count} GPUs of {candidate.instance.type} {do} paid for"
    fix = "leave --instance-type out to get the cheapest that fits"
    if options.instance_type is not None:
        yield note("gpus-idle", "instance_type", message, fix)
        return
    if candidate.usd_per_hour is not None and candidate.cost <= fitting[0].cost:
        fix = "nothing is to be done: it is the cheapest that fits all the same"
        yield note("gpus-idle", "instance_type", message, fix)
        return
    busy = next((other for other in fitting if _all_busy(other)), None)
    fix = "no type of which all GPUs are used fits"
    if busy is not None:
        cost = f", at {cost_text(busy)}" if busy.usd_per_hour is not None else ""
        fix = f"all GPUs are used on {busy.instance.type}{cost}: name it with --instance-type"
        if options.min_tokens_per_second is not None and busy.tokens_per_second is None:
            fix += ", though nobody has measured its speed"
    yield warning("gpus-idle", "instance_type", message, fix)


def _all_busy(candidate: Candidate) -> bool:
    return candidate.hosting.fit.tensor_parallel_size == candidate.hosting.fit.gpu_count


def _larger(fitting: Sequence[Candidate]) -> str:
    """The types to take instead; "" when there is none."""
    if not fitting:
        return ""
    cheapest = fitting[0]
    smallest = min(
        fitting, key=lambda p: (p.instance.gpu_count * p.instance.gpu_memory_mib, *p.cost)
    ).instance.type
    cost = f" at {cost_text(cheapest)}" if cheapest.usd_per_hour is not None else ""
    if smallest == cheapest.instance.type:
        return f"use {smallest}, the smallest and cheapest that fits{cost}"
    return (
        f"use {smallest}, the smallest that fits, or {cheapest.instance.type}, the cheapest{cost}"
    )


def cost_text(candidate: Candidate) -> str:
    """``$4.20 an hour``, of all its instances."""
    together = f" for {candidate.count}" if candidate.count > 1 else ""
    return f"{dollars(candidate.usd_per_hour or 0.0)} an hour{together}"


def price_findings(
    options: Options, candidate: Candidate, fitting: Sequence[Candidate]
) -> Iterator[Finding]:
    """An error when the chosen candidate costs more than the limit, or nobody knows what."""
    limit = options.max_price_per_hour
    if limit is None or (candidate.usd_per_hour is not None and candidate.usd_per_hour <= limit):
        return
    if candidate.usd_per_hour is None:
        message = (
            f"the price of {words(candidate)} is unknown; the limit is {dollars(limit)} an hour"
        )
    else:
        price = dollars(candidate.usd_per_hour)
        message = f"{words(candidate)} costs {price} an hour; the limit is {dollars(limit)}"
    yield error(
        "price-above-limit", "max_price_per_hour", message, _cheaper(candidate, fitting, limit)
    )


def _cheaper(candidate: Candidate, fitting: Sequence[Candidate], limit: float) -> str:
    cheapest = next((other for other in fitting if other.usd_per_hour is not None), None)
    if cheapest is None or cheapest.usd_per_hour is None:
        return "leave --max-price-per-hour out: no price is known of what fits"
    price = f"{dollars(cheapest.usd_per_hour)} an hour"
    if cheapest.usd_per_hour <= limit:
        return f"use {words(cheapest)}, the cheapest that fits, at {price}"
    if cheapest.instance == candidate.instance:
        return f"it is the cheapest that fits: give --max-price-per-hour {cheapest.usd_per_hour:g}"
    return f"even the cheapest that fits, {words(cheapest)}, costs {price}"


def speed_findings(
    options: Options,
    evaluator: CandidateEvaluator,
    candidate: Candidate,
    fitting: Sequence[Candidate],
) -> Iterator[Finding]:
    """A warning when nobody knows whether the chosen candidate is fast enough, an error when it is
    known not to be."""
    wanted = options.min_tokens_per_second
    if wanted is None or reaches(candidate, wanted):
        return
    if candidate.tokens_per_second is None:
        yield _unverified(evaluator, candidate, fitting, wanted)
    else:
        yield _too_slow(options, evaluator, candidate, fitting, wanted)


def words(candidate: Candidate) -> str:
    """``ml.g6.xlarge``, or ``2 x ml.g6.xlarge``."""
    return (
        candidate.instance.type
        if candidate.count == 1
        else f"{candidate.count} x {candidate.instance.type}"
    )


def known(candidate: Candidate) -> str:
    """How its speed is known: what several make together is reckoned, not measured."""
    return "measured" if candidate.count == 1 else "reckoned from measurements"


def _unverified(
    evaluator: CandidateEvaluator, candidate: Candidate, fitting: Sequence[Candidate], wanted: float
) -> Finding:
    load, parallel = evaluator.work.concurrency, candidate.hosting.fit.tensor_parallel_size
    on = f"{parallel} x {candidate.instance.gpu}"
    message = (
        f"nobody has measured this pair on {on}, so it is not known whether "
        f"{words(candidate)} makes {wanted:,.0f} tokens/s"
    )
    loads = evaluator.loads(candidate)
    if loads:
        message = (
            f"on {on} this pair was measured with {loads[0]:,} to {at_a_time(loads[-1])}, "
            f"not with {load:,}, so it is not known whether {words(candidate)} makes {wanted:,.0f} "
            "tokens/s"
        )
    return warning(
        "speed-unverified", "min_tokens_per_second", message, _measured_elsewhere(fitting, wanted)
    )


def _measured_elsewhere(fitting: Sequence[Candidate], wanted: float) -> str:
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
    options: Options,
    evaluator: CandidateEvaluator,
    candidate: Candidate,
    fitting: Sequence[Candidate],
    wanted: float,
) -> Finding:
    most = f"{candidate.tokens_per_second:,.0f} tokens/s"
    load = at_a_time(evaluator.work.concurrency)
    message = f"{words(candidate)} makes {most} with {load}, not {wanted:,.0f} ({candidate.source})"
    if options.instance_type is None and options.instance_count is None:
        message = (
            f"nothing that fits is known to make {wanted:,.0f} tokens/s with {load}; the most is "
            f"{most}, of {words(candidate)} ({candidate.source})"
        )
    helps = [*_helps(options, evaluator, candidate, fitting, wanted)]
    fix = "; or ".join(helps) or f"ask for {candidate.tokens_per_second:,.0f} or less"
    return error("speed-below-wanted", "min_tokens_per_second", message, fix)


def _helps(
    options: Options,
    evaluator: CandidateEvaluator,
    candidate: Candidate,
    fitting: Sequence[Candidate],
    wanted: float,
) -> Iterator[str]:
    """What evidence knows to be fast enough: another type, K, number of instances, or load."""
    other = next((other for other in fitting if reaches(other, wanted)), None)
    if other is not None:
        yield f"use {words(other)}, {known(other)} to make {other.tokens_per_second:,.0f}"
    compared = candidate.speculation.compared
    if options.k is not None and compared is not None:
        times = min(candidate.count, evaluator.work.concurrency)
        if compared.fastest.tokens_per_second * times >= wanted:
            yield f"leave --k out: K={compared.fastest.k} is measured to make it"
    if options.instance_count is not None:
        most = min(evaluator.work.concurrency, options.instance_count + MOST_TRIED)
        for count in range(options.instance_count + 1, most + 1):
            if reaches(evaluator.shared(candidate.instance, count), wanted):
                yield f"use --instance-count {count}"
                break
    yield from _more_at_a_time(options, evaluator, candidate, wanted)


def _more_at_a_time(
    options: Options, evaluator: CandidateEvaluator, candidate: Candidate, wanted: float
) -> Iterator[str]:
    """The fewest instances that can make it, and the smallest measured load with which they do."""
    ones = {
        load: evaluator.shared(candidate.instance, 1, load) for load in evaluator.loads(candidate)
    }
    speeds = {load: one.tokens_per_second or 0.0 for load, one in ones.items()}
    count = options.instance_count or math.ceil(wanted / max(speeds.values()))
    load = next((load for load, speed in speeds.items() if speed * count >= wanted), None)
    if load is None or load * count <= evaluator.work.concurrency:
        return
    if not evaluator.starts(candidate.instance, load * count):
        return
    made = f"{speeds[load]:,.0f} tokens/s measured with {requests(load)}"
    if count == 1:
        yield f"send more at a time: --concurrency {load} ({made})"
    else:
        yield (
            f"send more at a time: --concurrency {load * count} on "
            f"{count} x {candidate.instance.type} (estimated: {count} times the {made} on one)"
        )
