"""Why a plan has its instances, GPUs, copies and speculation: of the candidates that were compared,
what decided; and the findings: too small, too full, idle, too expensive or too slow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from peagle.catalog.find import find_drafter
from peagle.errors import Fix, combine_fixes, use_option
from peagle.findings import Finding, Level, error, finding, note, warning
from peagle.fit.estimate import refusal_reason
from peagle.options import AUTO, Options
from peagle.planning.candidates import SAME_COST_FACTOR, Candidate, find_cheapest
from peagle.planning.operation import reserved
from peagle.planning.plan import Copies, Decisions, Reason, reason
from peagle.planning.search import Selection
from peagle.planning.speculation import SpeedsByK
from peagle.text import basis_text, exact_duration, format_concurrency, format_requests, format_usd


def selection_reasons(selection: Selection, compared: SpeedsByK) -> Iterator[Reason]:
    """Why this type, so many GPUs, and speculation or none."""
    candidate = selection.candidate
    if candidate.options.instance_type is None:
        yield _instance_reason(selection)
        if not selection.ranked:
            return
    yield _gpus_reason(candidate)
    if selection.unknown is not None or selection.search.pair.drafter is not None:
        yield _speculation_reason(selection, compared)


def _instance_reason(selection: Selection) -> Reason:
    """By cost per token or price, among those that are as good otherwise."""
    candidate, ranked, options = selection.candidate, selection.ranked, selection.candidate.options
    name, usd = candidate.instance.type, candidate.usd_per_million_tokens
    if not ranked:
        return reason("instance_type", name, "largest-instance")

    def apart_from_cost(peer: Candidate) -> tuple[bool, ...]:
        return peer.holds_load, peer.affordable, peer.meets, peer.excess is None

    peers = sum(apart_from_cost(other) == apart_from_cost(candidate) for other in ranked)
    speeds = [other.tokens_per_second for other in ranked if other.usd_per_hour is not None]
    costs = (other.usd_per_million_tokens for other in ranked)
    if candidate.excess is not None and not candidate.meets:
        code = "nearest-instance"
    elif peers == 1:
        code = "only-instance"
    elif usd is None or None in speeds:
        code = "cheapest-instance"  # by price per hour, since a speed is unknown
    elif all(cost is None or cost >= usd for cost in costs):
        code = "lowest-cost"
    else:
        code = "about-lowest-cost"
    return reason(
        "instance_type",
        name,
        code,
        types=peers,
        holds_load=candidate.holds_load,
        required=bool(options.min_tokens_per_second or options.slo or options.within),
        meets=candidate.meets,
        usd_per_million_tokens=usd,
        usd_per_hour=candidate.usd_per_hour,
        instances=candidate.count,
        tie_percent=round(SAME_COST_FACTOR * 100 - 100),
    )


def _gpus_reason(candidate: Candidate) -> Reason:
    count, basis = candidate.instance.gpu_count, candidate.performance.basis
    what, gpus = "tensor_parallel_size", candidate.gpus
    if count == 1:
        return reason(what, gpus, "one-gpu")
    if not candidate.fit.fits:
        return reason(what, gpus, "least-missing-memory")
    if basis != "unknown":
        return reason(what, gpus, "fastest-gpus", gpus=count, basis=basis)
    return reason(what, gpus, "fewest-gpus", gpus=count)


def _speculation_reason(selection: Selection, compared: SpeedsByK) -> Reason:
    """What speculation changes: the cost per output token, else the speed."""
    candidate, drafter, what = selection.candidate, selection.candidate.drafter, "speculation"
    value = f"{drafter.name}, K={candidate.k}" if drafter else "none"
    if selection.unknown is not None and selection.unknown.drafter is not None:
        return reason(what, value, "drafter-unknown", drafter=selection.unknown.drafter.name)
    others = selection.alone if drafter else selection.speculating
    best = others[0] if others and others[0].holds_load else None
    if best and (best.affordable, best.meets) < (candidate.affordable, candidate.meets):
        best = None
    usd = candidate.usd_per_million_tokens
    if best is not None and usd is not None and best.usd_per_million_tokens is not None:
        is_elsewhere = (best.count, best.instance) != (candidate.count, candidate.instance)
        return reason(
            what,
            value,
            "cost-with-drafter" if drafter else "cost-without-drafter",
            usd_per_million_tokens=usd,
            other_usd_per_million_tokens=best.usd_per_million_tokens,
            other_drafter=best.drafter.name if best.drafter else None,
            other_instance_count=best.count if is_elsewhere else None,
            other_instance_type=best.instance.type if is_elsewhere else None,
        )
    speeds = [
        (speed.tokens_per_second, name, k)
        for (name, k), speed in compared.items()
        if (name is None) is (drafter is not None) and speed.tokens_per_second is not None
    ]
    if candidate.tokens_per_second is not None and speeds:
        fastest, other, k = max(speeds, key=lambda speed: speed[0])
        of_other = find_drafter(candidate.load.target, other) if other else None
        engine = candidate.load.engine(candidate.instance, candidate.gpus, of_other, k)
        return reason(
            what,
            value,
            "speed-with-drafter" if drafter else "speed-without-drafter",
            tokens_per_second=candidate.tokens_per_second,
            other_tokens_per_second=candidate.total(fastest) or 0.0,
            other_drafter=other,
            other_holds_load=candidate.load.requests_per_engine <= engine.most_requests,
        )
    is_too_large = drafter is None and not selection.speculating
    return reason(what, value, "drafter-too-large" if is_too_large else "speed-unknown")


def choose_count(options: Options, candidate: Candidate, decisions: Decisions) -> int:
    """The number of instances."""
    count, held = candidate.count, candidate.engine.most_requests * candidate.copies
    if options.instance_count is not None:
        return options.instance_count
    what = "instance_count"
    if count == 1:
        decisions.explain(what, count, "one-serves")
    elif options.within is not None:
        decisions.explain(what, count, "done-in-time")
    elif count in (options.min_instances, options.max_instances):
        decisions.explain(what, count, "bound-of-scaling")
    elif held * (count - 1) < candidate.load.requests_per_engine * candidate.engines:
        decisions.explain(what, count, "cache-of-one", requests=held)
    else:
        decisions.explain(
            what,
            count,
            "fewer-too-slow",
            tokens_per_second=candidate.tokens_per_second,
            basis=candidate.performance.basis,
        )
    return count


def choose_copies(options: Options, candidate: Candidate, decisions: Decisions) -> Copies | None:
    """The engines on each instance and what each reserves; ``None`` without copies."""
    if not candidate.has_copies:
        return None
    copies, size = candidate.copies, candidate.gpus
    if options.copies == AUTO:
        decisions.explain(
            "copies",
            copies,
            "copies-share-gpus",
            gpus_each=size,
            used=copies * size,
            gpus=candidate.instance.gpu_count,
            usd_per_million_tokens=candidate.usd_per_million_tokens,
        )
    return reserved(candidate.instance, copies, size)


def instances_text(candidate: Candidate) -> str:
    """``ml.g6.xlarge``, ``2 x ml.g6.xlarge``, or this machine."""
    name = candidate.instance.place
    return f"{candidate.count} x {name}" if candidate.count > 1 else name


def at_cost(candidate: Candidate) -> str:
    """`` at $4.20 an hour``, for all instances; empty if the price is unknown."""
    if candidate.usd_per_hour is None:
        return ""
    together = f" for {candidate.count}" if candidate.count > 1 else ""
    return f" at {format_usd(candidate.usd_per_hour)} an hour{together}"


def speed_text(candidate: Candidate) -> str:
    """``900 tokens/s measured``, ``900 tokens/s estimated (600 to 1,200)``; of several instances
    ``900 tokens/s, 2 times one measured instance``."""
    if candidate.tokens_per_second is None:
        return "speed unknown"
    speed, unit = candidate.performance, "instance" if candidate.copies == 1 else "copy"
    text = f"{candidate.tokens_per_second:,.0f} tokens/s"
    text += basis_text(speed.basis, candidate.load.engines, unit)
    low, high = candidate.total(speed.low), candidate.total(speed.high)
    if speed.basis == "measured" or low is None or high is None:
        return text
    return f"{text} ({low:,.0f} to {high:,.0f})"


_FALLBACKS = 2
"""How many other types are suggested for a scarce one."""

_SPEED_UNVERIFIED = "speed-unverified"
"""The speed is unknown.

Fix: measure it on this type, or use an instance type or pair whose speed is known
"""

_SPEED_BELOW_MINIMUM = "speed-below-minimum"
"""The speed at this load, or the times of a request, do not reach what is required.

Fix: leave --instance-type or --instance-count out, lower --concurrency, or require less
"""


def review(selection: Selection) -> Iterator[Finding]:
    """Errors, warnings and notes about the selected candidate: memory, idle GPUs, price, speed and
    number of instances."""
    candidate, options = selection.candidate, selection.search.options
    if not selection.ranked and options.instance_type is None:
        yield _too_small(selection, "on any instance type; on {0}, the largest")
        return
    if candidate.fit.fits:
        yield from _cache(selection)
        yield from _idle_gpus(selection)
        yield from _scarce(selection)
    else:
        yield _too_small(selection, "on {0} ({1})")
    yield from _price(selection)
    if options.within is not None:
        batch = f"{format_requests(options.requests or 0)} within {exact_duration(options.within)}"
        yield from _required(selection, "within", batch)
    if (least := options.min_tokens_per_second) is not None:
        yield from _required(selection, "min_tokens_per_second", f"{least:,.0f} tokens/s")
    if options.slo is not None:
        yield from _required(selection, "slo", options.slo.text)
    if options.instance_count is None and candidate.count > 1:
        message = f"{candidate.count} instances are planned and billed"
        confirm = use_option("--instance-count", candidate.count, verb="confirm the number with")
        yield warning("several-instances", "instance_count", message, confirm)


def _too_small(selection: Selection, where: str) -> Finding:
    """The error that the pair does not fit, with the type to use instead: within the limit of the
    price before others."""
    candidate, fit = selection.candidate, selection.candidate.fit
    gpus = f"{fit.gpu_count} x {fit.gpu}, {fit.gpu_memory_gib:.1f} GiB each"
    message = f"the pair does not fit {where.format(candidate.instance.place, gpus)}: "
    message += f"{refusal_reason(candidate.engine.case)}"
    fix = Fix("lower --max-model-len or --concurrency, or choose a smaller target")
    best = min(selection.ranked, key=lambda other: not other.affordable, default=None)
    if best is not None:
        fix = _use_type(best, f", the best for this load{at_cost(best)}")
    return error("instance-too-small", "instance_type", message, fix)


def _cache(selection: Selection) -> Iterator[Finding]:
    """That the KV cache holds less than the load at full length, a warning if much less; and what
    keeps the prompts' cached tokens from being hits."""
    candidate, load = selection.candidate, selection.candidate.load
    fit, requests, busy = candidate.fit, load.requests_per_engine, load.engines
    if fit.max_concurrency < requests:
        message = (
            f"the KV cache holds {fit.max_concurrency:.1f} requests of full length "
            f"({load.max_model_len:,} tokens) of the planned {format_requests(requests)}; at full "
            "length, excess requests queue or are preempted"
        )
        if candidate.holds_load:
            fix = (
                "lower --max-model-len or --concurrency, unless requests have about "
                f"{fit.kv_cache_tokens // requests:,} tokens or less, prompt and output together"
            )
            yield note("cache-below-concurrency", "concurrency", message, fix)
        else:
            larger = Fix("lower --max-model-len or --concurrency")
            other = next((other for other in selection.ranked if other.holds_load), None)
            if other is not None and other.instance != candidate.instance:
                larger = _use_type(other, f"{at_cost(other)}, which holds that load")
            yield warning("cache-below-concurrency", "concurrency", message, larger)
    cached, conversations = load.workload.cached_prompt_tokens, candidate.performance.conversations
    if not cached:
        return
    level: Level = "note"
    if not candidate.engine.case.engine.prefix_caching:
        why, advice = "prefix caching is off", "use a vLLM version or a drafter with which it works"
    elif conversations is not None and conversations < load.concurrency:
        why = (
            f"an engine keeps {conversations:,} of {load.concurrency:,} conversations in its cache"
        )
        level, advice = "warning", "use an instance with more GPU memory, or a lower --concurrency"
    elif busy > 1:
        why = f"{busy} engines share the conversations, and SageMaker routes by load"
        advice = "use one larger instance, where all turns meet the same cache"
    else:
        return
    hits = f"{candidate.performance.cached_prompt_tokens:,} of {cached:,}"
    message = f"{hits} cached tokens of a prompt are expected to be hits: {why}"
    yield finding(level, "fewer-cache-hits", "cached_prompt_tokens", message, advice)


def _scarce(selection: Selection) -> Iterator[Finding]:
    """A warning that AWS is reported to have no free instance of the type, with others."""
    scarce, name = selection.candidate.instance.scarce, selection.candidate.instance.type
    if scarce is None:
        return
    message = f"{name} is known to be scarce: {scarce.note} ({scarce.source})"
    others = [other for other in selection.ranked if other.instance.type != name]
    # Those that serve the load as required before others, and known ones before scarce ones.
    others.sort(key=lambda c: (not c.holds_load, not c.meets, c.instance.scarce is not None))
    types = ",".join(other.instance.type for other in others[:_FALLBACKS])
    another = Fix("choose another --instance-type")
    if types:
        more = f", or {another.sentence}"
        another = use_option("--fallback-instance-types", types, more, verb="deploy with")
    yield warning("instance-scarce", "instance_type", message, another)


def _price(selection: Selection) -> Iterator[Finding]:
    """An error when the price is above the limit or unknown."""
    candidate = selection.candidate
    limit = candidate.options.max_price_per_hour
    if limit is None or candidate.affordable:
        return
    message = f"the price of {instances_text(candidate)} is unknown"
    if candidate.usd_per_hour is not None:
        message = f"{instances_text(candidate)} costs {format_usd(candidate.usd_per_hour)} an hour"
    message += f"; the limit is {format_usd(limit)}"
    fix = Fix("leave --max-price-per-hour out: no price is known of any type for this load")
    cheapest = find_cheapest(selection.ranked)
    if cheapest and (usd := cheapest.usd_per_hour):
        fix = _use_type(cheapest, f", the cheapest for this load{at_cost(cheapest)}")
        if usd > limit:
            enough = f"{math.ceil(round(usd * 100, 6)) / 100:.2f}"
            which = f": {instances_text(cheapest)} is the cheapest for this load"
            fix = use_option("--max-price-per-hour", enough, which)
    yield error("price-above-limit", "max_price_per_hour", message, fix)


def _required(selection: Selection, where: str, required: str) -> Iterator[Finding]:
    """The finding about one requirement, apart from the others, where it is not met or unknown,
    with the best type that is known to meet what is required."""
    others = dict.fromkeys({"slo", "min_tokens_per_second", "within"} - {where})
    candidate, options = selection.candidate, selection.search.options.model_copy(update=others)
    only = replace(candidate, options=options)
    if only.meets:
        return
    name, times, fixes = instances_text(only), only.performance, list[Fix]()
    for other in selection.ranked:
        is_enough = other.meets and other.holds_load and other.affordable
        if other.instance != candidate.instance and is_enough:
            fixes.append(_use_type(other, f"{at_cost(other)} ({speed_text(other)})"))
            break
    if only.excess is None:
        message = f"the speed of {name} is unknown, so it may not reach {required}"
        fixes.append(Fix("run a benchmark before you rely on it"))
        yield warning(_SPEED_UNVERIFIED, where, message, combine_fixes(fixes))
        return
    reached = speed_text(only)
    if options.slo and times.ttft_seconds is not None and times.itl_seconds is not None:
        reached += f", ttft={times.ttft_seconds:.3g}, itl={times.itl_seconds:.3g}"
    load = format_concurrency(selection.search.load.concurrency)
    message = f"with {load}, {name} does not reach {required}: {reached} ({only.source})"
    yield error(_SPEED_BELOW_MINIMUM, where, message, combine_fixes([*fixes, Fix("require less")]))


def _idle_gpus(selection: Selection) -> Iterator[Finding]:
    """A note on idle GPUs."""
    candidate, instance = selection.candidate, selection.candidate.instance
    if candidate.idle_gpus:
        idle = f"{candidate.idle_gpus} of the {instance.gpu_count} GPUs of {instance.place}"
        fix = "use --copies auto, or leave --instance-type out to get the cheapest type that fits"
        yield note("gpus-idle", "instance_type", f"{idle} are idle", fix)


def _use_type(other: Candidate, because: str) -> Fix:
    return use_option("--instance-type", other.instance.type, because)
