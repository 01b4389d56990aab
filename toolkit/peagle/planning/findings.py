"""Findings about an instance: too small, too full, idle, too expensive or too slow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.catalog.tables import Instance
from peagle.findings import Finding, error, note, warning
from peagle.fit.estimate import GIB, refusal_reason
from peagle.planning.candidates import (
    HELD_SHARE_TEXT,
    MIN_LOAD_SHARE,
    MOST_TRIED,
    Candidate,
    CandidateEvaluator,
    PairLoad,
    fit_on_instance,
)
from peagle.text import format_concurrency, format_requests, format_usd

_SHORTEST = 1024
"""Tokens; a shorter context is not worth suggesting."""

_STEP = 256
"""Suggested contexts are multiples of this many tokens."""

_FALLBACKS = 2
"""How many other types are suggested for a scarce one."""

_CHEAPEST = "leave --instance-type out to get the cheapest type that fits"


def none_fits(work: PairLoad, largest: Candidate) -> Finding:
    """The error that the pair does not fit on any instance type."""
    message = (
        f"the pair does not fit on any instance type; on {largest.instance.type}, the largest: "
        f"{refusal_reason(largest.on_instance.case)}"
    )
    fix = _fitting_options(work, largest.instance)
    fix = fix or "choose a smaller target: no single option makes it fit"
    return error("instance-too-small", "instance_type", message, fix)


@dataclass(frozen=True)
class Review:
    """The findings about one candidate; ``fitting`` are all that fit, cheapest first."""

    evaluator: CandidateEvaluator
    candidate: Candidate
    fitting: Sequence[Candidate]

    def findings(self) -> Iterator[Finding]:
        """Errors, warnings and notes: memory, idle GPUs, price, speed, number of instances."""
        if self.candidate.fit.fits:
            yield from self._cache()
            yield from self._host_memory()
            yield from self._idle()
            yield from self._scarce()
        else:
            yield self._too_small()
        yield from self._price()
        required = self.evaluator.options.min_tokens_per_second
        if required is None:
            return
        if self.candidate.tokens_per_second is None:
            yield self._unverified(required)
        elif not self.candidate.reaches(required):
            yield self._too_slow(required)
        if self.evaluator.options.instance_count is None and self.candidate.count > 1:
            message = (
                f"{self.candidate.count} instances are planned and billed, because no "
                f"measurement shows that one reaches {required:,.0f} tokens/s"
            )
            fix = "set the number with --instance-count"
            yield warning("instances-for-speed", "instance_count", message, fix)

    @property
    def _work(self) -> PairLoad:
        return self.evaluator.work_on(self.candidate)

    def _too_small(self) -> Finding:
        fit, instance = self.candidate.fit, self.candidate.instance
        message = (
            f"the pair does not fit on {instance.type} ({fit.gpu_count} x {fit.gpu}, "
            f"{fit.gpu_memory_gib:.1f} GiB each): {refusal_reason(self.candidate.on_instance.case)}"
        )
        fixes = filter(None, (self._larger(), _fitting_options(self._work, instance)))
        fix = "; or ".join(fixes) or "no instance type and no single option makes it fit"
        return error("instance-too-small", "instance_type", message, fix)

    def _larger(self) -> str:
        """Types to use instead; empty when none fits."""
        if not self.fitting:
            return ""
        cheapest = self.fitting[0]
        smallest = min(
            self.fitting, key=lambda c: (c.instance.gpu_count * c.instance.gpu_memory_mib, *c.cost)
        ).instance.type
        if smallest == cheapest.instance.type:
            return f"use {smallest}, the smallest and cheapest that fits{cheapest.at_cost}"
        return (
            f"use {smallest}, the smallest that fits, or {cheapest.instance.type}, the cheapest"
            f"{cheapest.at_cost}"
        )

    def _cache(self) -> Iterator[Finding]:
        """That the KV cache holds less than the load at full length; a warning if much less."""
        fit, load = self.candidate.fit, self.candidate.load
        if fit.max_concurrency >= load:
            return
        message = (
            f"the KV cache holds {fit.max_concurrency:.1f} requests of full length "
            f"({self._work.max_model_len:,} tokens) of the planned {format_requests(load)}; at "
            "full length, excess requests queue or are preempted"
        )
        if self.candidate.holds_load:
            fix = (
                "lower --max-model-len or --concurrency, unless requests have about "
                f"{fit.kv_cache_tokens // load:,} tokens or less, prompt and output together"
            )
            yield note("cache-below-concurrency", "concurrency", message, fix)
        else:
            fix = "; or ".join(self._larger_cache())
            yield warning("cache-below-concurrency", "concurrency", message, fix)

    def _larger_cache(self) -> Iterator[str]:
        """What makes the load fit in the cache: another type, fewer requests, or shorter ones."""
        other = next((other for other in self.fitting if other.holds_load), None)
        if other is not None:
            holds = f"which holds {HELD_SHARE_TEXT} of that load"
            yield f"use {other.instance.type}{other.at_cost}, {holds}"
        held = math.floor(self.candidate.fit.max_concurrency / MIN_LOAD_SHARE)
        yield f"lower --concurrency to {held * self.candidate.count}"
        work, instance, load = self._work, self.candidate.instance, self.candidate.load
        length = _largest(
            _SHORTEST,
            work.max_model_len,
            lambda n: fit_on_instance(replace(work, max_model_len=n), instance, load).holds(load),
        )
        if length:
            yield f"lower --max-model-len to {length // _STEP * _STEP}"

    def _host_memory(self) -> Iterator[Finding]:
        work, instance = self._work, self.candidate.instance
        weights = (work.target.weight_bytes + work.drafter_bytes) / GIB
        if weights > instance.memory_gib:
            message = (
                f"the weights ({weights:.1f} GiB) exceed the host memory of {instance.type} "
                f"({instance.memory_gib} GiB), so they load in parts and startup takes longer"
            )
            fix = "if startup runs out of memory, use the next larger size"
            yield note("host-memory-below-weights", "instance_type", message, fix)

    def _idle(self) -> Iterator[Finding]:
        """A note on idle GPUs; a warning if planning chose them though they are not cheapest."""
        fit, options = self.candidate.fit, self.evaluator.options
        idle = fit.gpu_count - fit.tensor_parallel_size
        if not idle:
            return
        message = (
            f"{idle} of the {fit.gpu_count} GPUs of {self.candidate.instance.type} "
            f"{'is' if idle == 1 else 'are'} idle but billed"
        )
        if options.instance_type is not None:
            yield note("gpus-idle", "instance_type", message, _CHEAPEST)
            return
        if self.candidate.usd_per_hour is not None and self.candidate.cost <= self.fitting[0].cost:
            yield note("gpus-idle", "instance_type", f"{message}; nothing cheaper fits", "")
            return
        busy = (c for c in self.fitting if c.fit.tensor_parallel_size == c.fit.gpu_count)
        other = next(busy, None)
        fix = "every type that fits leaves GPUs idle"
        if other is not None:
            type = other.instance.type
            fix = f"use --instance-type {type}{other.at_cost}, which uses all of its GPUs"
            if options.min_tokens_per_second is not None and other.tokens_per_second is None:
                fix += "; its speed is not measured"
        yield warning("gpus-idle", "instance_type", message, fix)

    def _scarce(self) -> Iterator[Finding]:
        """A warning that AWS is reported to have no free instance of the type, with others."""
        instance = self.candidate.instance
        if instance.scarce is None:
            return
        message = (
            f"{instance.type} is known to be scarce: {instance.scarce.note} "
            f"({instance.scarce.source})"
        )
        others = [other for other in self.fitting if other.instance.type != instance.type]
        # Those that hold the load before those that do not, and known ones before scarce ones.
        others.sort(key=lambda c: (not c.holds_load, c.instance.scarce is not None))
        types = ",".join(other.instance.type for other in others[:_FALLBACKS])
        fix = "choose another --instance-type"
        if types:
            fix = f"deploy with --fallback-instance-types {types}, or {fix}"
        yield warning("instance-scarce", "instance_type", message, fix)

    def _price(self) -> Iterator[Finding]:
        """An error when the price is above the limit or unknown."""
        limit, candidate = self.evaluator.options.max_price_per_hour, self.candidate
        if limit is None or candidate.within(limit):
            return
        message = f"the price of {candidate.text} is unknown"
        if candidate.usd_per_hour is not None:
            message = f"{candidate.text} costs {format_usd(candidate.usd_per_hour)} an hour"
        message += f"; the limit is {format_usd(limit)}"
        yield error("price-above-limit", "max_price_per_hour", message, self._cheaper(limit))

    def _cheaper(self, limit: float) -> str:
        cheapest = next((other for other in self.fitting if other.usd_per_hour is not None), None)
        if cheapest is None or cheapest.usd_per_hour is None:
            return "leave --max-price-per-hour out: no price is known of any type that fits"
        price = f"{format_usd(cheapest.usd_per_hour)} an hour"
        if cheapest.usd_per_hour <= limit:
            return f"use {cheapest.text}, the cheapest that fits, at {price}"
        if cheapest.instance == self.candidate.instance:
            limit = math.ceil(round(cheapest.usd_per_hour * 100, 6)) / 100
            return f"use --max-price-per-hour {limit:.2f}: it is the cheapest that fits"
        return f"even the cheapest that fits, {cheapest.text}, costs {price}"

    def _unverified(self, required: float) -> Finding:
        """The warning that the required speed is not measured."""
        candidate = self.candidate
        gpus = f"{candidate.fit.tensor_parallel_size} x {candidate.instance.gpu}"
        measured = f"this pair has not been measured on {gpus}"
        loads = self.evaluator.loads(candidate)
        if loads:
            measured = (
                f"on {gpus} this pair is measured with {loads[0]:,} to "
                f"{format_concurrency(loads[-1])}, not with {self._work.concurrency:,}"
            )
        message = (
            f"{measured}, so it is unknown whether {candidate.text} reaches "
            f"{required:,.0f} tokens/s"
        )
        fix = "run a benchmark before you rely on it"
        enough = next((other for other in self.fitting if other.reaches(required)), None)
        if enough is not None:
            known = enough.usd_per_hour is not None
            cost = f"{format_usd(enough.usd_per_hour or 0)} an hour" if known else "unknown price"
            fix += (
                f"; {enough.text} is {enough.speed_origin} to reach "
                f"{enough.tokens_per_second:,.0f} ({cost})"
            )
        return warning("speed-unverified", "min_tokens_per_second", message, fix)

    def _too_slow(self, required: float) -> Finding:
        """The error that the measured speed is below the required one."""
        options, candidate = self.evaluator.options, self.candidate
        most = f"{candidate.tokens_per_second:,.0f} tokens/s"
        load = format_concurrency(self._work.concurrency)
        if options.instance_type is None and options.instance_count is None:
            message = (
                f"no type that fits is known to reach {required:,.0f} tokens/s with {load}; the "
                f"fastest, {candidate.text}, reaches {most} ({candidate.source})"
            )
        else:
            message = (
                f"{candidate.text} reaches {most} with {load}, not {required:,.0f} "
                f"({candidate.source})"
            )
        fix = "; or ".join(self._faster(required)) or (
            f"lower --min-tokens-per-second to {candidate.tokens_per_second:,.0f} or less"
        )
        return error("speed-below-wanted", "min_tokens_per_second", message, fix)

    def _faster(self, required: float) -> Iterator[str]:
        """What reaches the speed according to evidence: another type, K, more instances or load."""
        evaluator, instance = self.evaluator, self.candidate.instance
        options, load_of_all = evaluator.options, evaluator.work.concurrency
        other = next((other for other in self.fitting if other.reaches(required)), None)
        if other is not None:
            speed = f"{other.tokens_per_second:,.0f}"
            yield f"use {other.text}, {other.speed_origin} to reach {speed}"
        compared = self.candidate.speculation.compared
        if options.k is not None and compared is not None:
            busy = min(self.candidate.count, load_of_all)
            if compared.fastest.tokens_per_second * busy >= required:
                yield f"omit --k: measured with K={compared.fastest.k}, the speed is reached"
        if options.instance_count is not None:
            most = min(load_of_all, options.instance_count + MOST_TRIED)
            for count in range(options.instance_count + 1, most + 1):
                if evaluator.shared(instance, count).reaches(required):
                    yield f"use --instance-count {count}"
                    break
        # The fewest instances that can reach it, and the smallest measured load at which they do.
        loads = {
            load: evaluator.shared(instance, 1, load).tokens_per_second or 0.0
            for load in evaluator.loads(self.candidate)
        }
        count = options.instance_count or math.ceil(required / max(loads.values()))
        load = next((load for load, speed in loads.items() if speed * count >= required), None)
        if load is None or load * count <= load_of_all:
            return
        if not evaluator.starts(instance, load * count):
            return
        measured = f"{loads[load]:,.0f} tokens/s measured with {format_requests(load)}"
        more = f"send more concurrent requests: --concurrency {load * count}"
        if count == 1:
            yield f"{more} ({measured})"
        else:
            on = f"{count} x {instance.type}"
            yield f"{more} on {on} (estimated: {count} times {measured} on one)"


def _fitting_options(work: PairLoad, instance: Instance) -> str:
    """The single options that make it fit: ``lower --concurrency to 5461 or lower --k to 1``."""

    def largest(low: int, field: str) -> int | None:
        def fits(value: int) -> bool:
            changed: dict[str, Any] = {field: value}
            return fit_on_instance(replace(work, **changed), instance, 0).fit.fits

        return _largest(low, getattr(work, field), fits)

    found = []
    if length := largest(_SHORTEST, "max_model_len"):
        found.append(f"lower --max-model-len to {length // _STEP * _STEP}")
    if load := largest(1, "concurrency"):
        found.append(f"lower --concurrency to {load}")
    if work.drafter is not None and (k := largest(1, "k")):
        found.append(f"lower --k to {k}")
    return " or ".join(found)


def _largest(low: int, high: int, works: Callable[[int], bool]) -> int | None:
    """The largest number from ``low`` to below ``high`` that works, by binary search."""
    best, high = None, high - 1
    while low <= high:
        middle = (low + high) // 2
        if works(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best
