"""Findings about an instance: too small, too full, idle, too expensive or too slow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.errors import Fix, combine_fixes
from peagle.findings import Finding, error, note, warning
from peagle.fit.estimate import GIB, refusal_reason, step_too_small
from peagle.options import AUTO, Options
from peagle.planning.candidates import SAME_COST_FACTOR, Candidate, rank
from peagle.planning.copies import without_copies
from peagle.planning.engines import Load
from peagle.planning.evaluation import MOST_INSTANCES, Evaluator
from peagle.planning.reasons import at_cost, instances_text, speed_text, token_cost_text
from peagle.planning.speculation import is_drafter_named
from peagle.speed.slo import Slo
from peagle.text import exact_duration, format_concurrency, format_requests, format_usd
from peagle.vllm.facts import facts_of

_SHORTEST = 1024
"""Tokens; a shorter context is not worth suggesting."""

_STEP = 256
"""Suggested contexts are multiples of this many tokens."""

_FALLBACKS = 2
"""How many other types are suggested for a scarce one."""

_SPEED_UNVERIFIED = "speed-unverified"
"""The speed is unknown, or its estimated range begins below --min-tokens-per-second.

Fix: measure it on this type, or use an instance type or pair whose speed is known
"""

_SPEED_BELOW_MINIMUM = "speed-below-minimum"
"""The speed at this load is below --min-tokens-per-second.

Fix: leave --instance-type or --instance-count out, or lower --min-tokens-per-second
"""

_SLO_UNVERIFIED = "slo-unverified"
"""The times of a request are unknown, or their estimated range reaches above --slo.

Fix: measure them on this type, or use an instance type or pair whose speed is known
"""

_SLO_MISSED = "slo-missed"
"""The times of a request at this load are above --slo.

Fix: leave --instance-type or --instance-count out, lower --concurrency, or relax --slo
"""

_QUEUE = "max-num-queued-reqs"
_QUEUE_UNBOUNDED = "queue-unbounded"
"""Excess requests queue without a limit, so that under overload all miss --slo.

Fix: add --set max-num-queued-reqs=N: vLLM answers further requests with HTTP 503
"""


def queue_findings(options: Options, vllm: str, concurrency: int) -> Iterator[Finding]:
    """A note where an objective is given and this vLLM version can limit its queue."""
    facts = facts_of(vllm)
    if options.slo and facts.exact and _QUEUE in facts.arguments and _QUEUE not in options.settings:
        message = "vLLM's queue has no limit, so that under overload every request misses --slo"
        sentence = f"add --set {_QUEUE}={concurrency}: vLLM answers what is above with HTTP 503"
        fix = Fix(sentence, options=("--set", f"{_QUEUE}={concurrency}"))
        yield note(_QUEUE_UNBOUNDED, "slo", message, fix)


def none_fits(load: Load, largest: Candidate) -> Finding:
    """The error that the pair does not fit on any instance type."""
    message = (
        f"the pair does not fit on any instance type; on {largest.instance.type}, the largest: "
        f"{refusal_reason(largest.engine.case)}"
    )
    fixes = _fitting_options(load, largest)
    nothing = Fix("choose a smaller target: no single option makes it fit")
    if step_too_small(largest.engine.case):
        nothing = Fix("omit --set max-num-batched-tokens, or set it to several thousand")
    return error("instance-too-small", "instance_type", message, fixes[0] if fixes else nothing)


def costs_more(candidate: Candidate, alone: Sequence[Candidate]) -> Iterator[Finding]:
    """A warning when the target alone does the same for less, and the user named the drafter."""
    if candidate.drafter is None or not is_drafter_named(candidate.asked) or not alone:
        return
    best = alone[0]
    ours, theirs = candidate.usd_per_million_tokens, best.usd_per_million_tokens
    if ours is None or theirs is None or theirs >= ours or not best.holds_load:
        return
    if best.meets or not candidate.meets:
        message = (
            f"without speculation, {instances_text(best)}{at_cost(best)} costs "
            f"{token_cost_text(theirs)} ({speed_text(best)}); with {candidate.drafter.title}, "
            f"{instances_text(candidate)}{at_cost(candidate)} costs {format_usd(ours)} "
            f"({speed_text(candidate)})"
        )
        yield warning("speculation-costs-more", "drafter", message, "use --no-speculation")


@dataclass(frozen=True)
class Review:
    """The findings about one candidate; ``fitting`` are all that fit, best first."""

    evaluator: Evaluator
    candidate: Candidate
    fitting: Sequence[Candidate]

    def findings(self) -> Iterator[Finding]:
        """Errors, warnings and notes: memory, idle GPUs, price, speed, number of instances."""
        if self.candidate.fit.fits:
            yield from self._cache()
            yield from self._prefix_cache()
            yield from self._host_memory()
            yield from self._idle_gpus()
            yield from self._scarce()
        else:
            yield self._too_small()
        yield from self._price()
        yield from self._requirements()
        if self.evaluator.options.instance_count is None and self.candidate.count > 1:
            yield self._several()

    def _too_small(self) -> Finding:
        fit, instance = self.candidate.fit, self.candidate.instance
        message = (
            f"the pair does not fit on {instance.type} ({fit.gpu_count} x {fit.gpu}, "
            f"{fit.gpu_memory_gib:.1f} GiB each): {refusal_reason(self.candidate.engine.case)}"
        )
        # The type to use instead, within the limit of the price before others.
        larger = sorted(self.fitting, key=lambda other: not other.affordable)[:1]
        fixes = [_use_type(best, f", the best for this load{at_cost(best)}") for best in larger]
        fixes += _fitting_options(self.evaluator.load, self.candidate)
        nothing = Fix("no instance type and no single option makes it fit")
        fix = combine_fixes(fixes) if fixes else nothing
        return error("instance-too-small", "instance_type", message, fix)

    def _cache(self) -> Iterator[Finding]:
        """That the KV cache holds less than the load at full length; a warning if much less."""
        fit, load = self.candidate.fit, self.candidate.load
        if fit.max_concurrency >= load:
            return
        message = (
            f"the KV cache holds {fit.max_concurrency:.1f} requests of full length "
            f"({self.evaluator.load.max_model_len:,} tokens) of the planned "
            f"{format_requests(load)}; at full length, excess requests queue or are preempted"
        )
        if self.candidate.holds_load:
            fix = (
                "lower --max-model-len or --concurrency, unless requests have about "
                f"{fit.kv_cache_tokens // load:,} tokens or less, prompt and output together"
            )
            yield note("cache-below-concurrency", "concurrency", message, fix)
        else:
            larger = combine_fixes(self._larger_cache())
            yield warning("cache-below-concurrency", "concurrency", message, larger)

    def _larger_cache(self) -> Iterator[Fix]:
        """What makes the load fit in the cache: another type, fewer requests, or shorter ones."""
        candidate, load = self.candidate, self.evaluator.load
        other = next((other for other in self.fitting if other.holds_load), None)
        if other is not None and other.instance != candidate.instance:
            yield _use_type(other, f"{at_cost(other)}, which holds that load")
        held = candidate.engine.most_requests * candidate.copies
        enough = math.ceil(load.concurrency / max(held, 1))
        if held and candidate.count < enough <= MOST_INSTANCES:
            yield Fix(f"use --instance-count {enough}", options=("--instance-count", f"{enough}"))
        if held:
            yield _lower("--concurrency", held * candidate.count)

        def holds(length: int) -> bool:
            """Of one engine on the instance, or of a copy on its GPUs."""
            shorter, of = replace(load, max_model_len=length), (candidate.drafter, candidate.k)
            if self.evaluator.options.copies is None:
                engine = shorter.engine_on(candidate.instance, candidate.load, *of)
            else:
                engine = shorter.engine(candidate.instance, candidate.gpus, *of)
            return candidate.load <= engine.most_requests

        least = load.workload.tokens
        if length := _largest(max(_SHORTEST, least), load.max_model_len, holds):
            yield _lower("--max-model-len", _rounded(length, least))

    def _prefix_cache(self) -> Iterator[Finding]:
        """What keeps the prompts' cached tokens from being hits: caching is off, the KV cache is
        too small for the conversations, or several engines share them."""
        load, speed, busy = self.evaluator.load, self.candidate.performance, self.candidate.busy
        cached, where = load.workload.cached_prompt_tokens, "cached_prompt_tokens"
        if not cached:
            return
        if not self.candidate.engine.case.engine.prefix_caching:
            message = "prefix caching is off, so that each prompt is processed whole"
            fix = "use a vLLM version or a drafter with which prefix caching works"
            yield note("prefix-cache-off", where, message, fix)
        elif speed.conversations is not None and speed.conversations < load.concurrency:
            message = (
                f"the KV cache{' of each engine' if busy > 1 else ''} keeps {speed.conversations:,}"
                f" of {load.concurrency:,} conversations of {load.workload.tokens:,} tokens, so "
                f"that {speed.cached_prompt_tokens:,} instead of {cached:,} tokens of a prompt are "
                "hits"
            )
            fix = "use an instance with more GPU memory, or a lower --concurrency"
            yield warning("prefix-cache-too-small", where, message, fix)
        elif busy > 1:
            message = (
                f"{busy} engines share the conversations, and SageMaker routes by load: the next "
                f"turn finds {speed.cached_prompt_tokens:,} of {cached:,} cached tokens"
            )
            fix = "use one larger instance, where all turns meet the same cache"
            yield note("conversations-spread", where, message, fix)

    def _host_memory(self) -> Iterator[Finding]:
        load, candidate, instance = self.evaluator.load, self.candidate, self.candidate.instance
        size = load.target.weight_bytes + load.drafter_bytes(candidate.drafter)
        weights = size / GIB * candidate.copies
        if weights > instance.memory_gib:
            message = (
                f"the weights ({weights:.1f} GiB) exceed the host memory of {instance.type} "
                f"({instance.memory_gib} GiB), so they load in parts and startup takes longer"
            )
            fix = "if startup runs out of memory, use the next larger size"
            yield note("host-memory-below-weights", "instance_type", message, fix)

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
        # Those that serve the load as required before others, and known ones before scarce ones.
        others.sort(key=lambda c: (not c.holds_load, not c.meets, c.instance.scarce is not None))
        types = ",".join(other.instance.type for other in others[:_FALLBACKS])
        fix = Fix("choose another --instance-type")
        if types:
            sentence = f"deploy with --fallback-instance-types {types}, or {fix.sentence}"
            fix = Fix(sentence, options=("--fallback-instance-types", types))
        yield warning("instance-scarce", "instance_type", message, fix)

    def _price(self) -> Iterator[Finding]:
        """An error when the price is above the limit or unknown."""
        limit, candidate = self.evaluator.options.max_price_per_hour, self.candidate
        if limit is None or candidate.affordable:
            return
        message = f"the price of {instances_text(candidate)} is unknown"
        if candidate.usd_per_hour is not None:
            usd = format_usd(candidate.usd_per_hour)
            message = f"{instances_text(candidate)} costs {usd} an hour"
        message += f"; the limit is {format_usd(limit)}"
        yield error("price-above-limit", "max_price_per_hour", message, self._cheaper(limit))

    def _cheaper(self, limit: float) -> Fix:
        priced = (other for other in self.fitting if other.usd_per_hour is not None)
        cheapest = min(priced, key=lambda other: other.usd_per_hour or 0.0, default=None)
        if cheapest is None or cheapest.usd_per_hour is None:
            return Fix("leave --max-price-per-hour out: no price is known of any type that fits")
        if cheapest.usd_per_hour <= limit:
            usd = format_usd(cheapest.usd_per_hour)
            return _use_type(cheapest, f", the cheapest that fits, at {usd} an hour")
        enough = math.ceil(round(cheapest.usd_per_hour * 100, 6)) / 100
        is_chosen = cheapest.instance == self.candidate.instance
        which = "this is" if is_chosen else f"{instances_text(cheapest)} is"
        sentence = f"use --max-price-per-hour {enough:.2f}: {which} the cheapest that fits"
        options = ["--max-price-per-hour", f"{enough:.2f}"]
        if self.evaluator.options.instance_type and not is_chosen:
            options += ["--instance-type", cheapest.instance.type]
        return Fix(sentence, options=tuple(options))

    def _requirements(self) -> Iterator[Finding]:
        """What is required of speed and times, where it is not met or not certain."""
        asked = self.evaluator.options
        if asked.within is not None:
            batch = f"{asked.requests or 0:,} requests within {exact_duration(asked.within)}"
            yield from self._required("within", batch)
        if (least := asked.min_tokens_per_second) is not None:
            yield from self._required("min_tokens_per_second", f"{least:,.0f} tokens/s")
        if asked.slo is not None:
            yield from self._required("slo", asked.slo.text)

    def _required(self, where: str, required: str) -> Iterator[Finding]:
        """The finding about one requirement, apart from the others."""
        others = dict.fromkeys({"slo", "min_tokens_per_second", "within"} - {where})
        only = replace(self.candidate, asked=self.evaluator.options.model_copy(update=others))
        name, benchmark = instances_text(only), Fix("run a benchmark before you rely on it")
        if only.excess is None:
            message = f"the speed of {name} is unknown, so it may not reach {required}"
            fix = combine_fixes([*self._better(), benchmark])
            yield _unverified(where, message, fix)
        elif only.excess > 1:
            load = format_concurrency(self.evaluator.load.concurrency)
            message = f"with {load}, {name} does not reach {required}: {_reached(only)}"
            fix = combine_fixes([*self._better(), _as_reached(only)])
            yield _missed(where, message, fix)
        elif not _slowest(only).meets:
            message = (
                f"{required}: only the estimate reaches it, not the lower end of its range: "
                f"{_reached(only)}"
            )
            fix = combine_fixes([*self._better(certain=True), benchmark])
            yield _unverified(where, message, fix)

    def _better(self, certain: bool = False) -> Iterator[Fix]:
        """Options that meet what is required: another type, K, or more instances; with ``certain``
        also at the lower end of the range."""
        evaluator, candidate, options = self.evaluator, self.candidate, self.evaluator.options

        def enough(other: Candidate) -> bool:
            return (_slowest(other) if certain else other).meets and other.holds_load

        for other in self.fitting:
            if other.instance != candidate.instance and enough(other) and other.affordable:
                yield _use_type(other, f"{at_cost(other)} ({speed_text(other)})")
                break
        if options.k is not None:
            best = evaluator.with_options(k=None).candidate(candidate.instance)
            if enough(best) and best.drafter is not None:
                yield Fix(f"use --k {best.k} ({speed_text(best)})", options=("--k", f"{best.k}"))
        if options.instance_count is not None:
            more = evaluator.with_options(instance_count=None).candidate(candidate.instance)
            if enough(more) and more.count > options.instance_count:
                sentence = f"use --instance-count {more.count} ({speed_text(more)})"
                yield Fix(sentence, options=("--instance-count", f"{more.count}"))

    def _several(self) -> Finding:
        """The warning that several instances are planned and billed."""
        candidate, load = self.candidate, self.evaluator.load
        engine, asked = candidate.engine, format_concurrency(load.concurrency)
        held = engine.most_requests * candidate.copies
        because = f"one is not known to meet what is required with {asked}"
        if self.evaluator.options.within is not None:
            because = "fewer do not finish in time"
        elif held * (candidate.count - 1) < load.concurrency:
            because = f"the KV cache of one is enough for {format_requests(held)}, not for {asked}"
            share = engine.cache_share + engine.shared
            reserved = math.ceil(share * load.max_model_len)
            if reserved > 2 * load.workload.tokens:
                because += f", each with {reserved:,} tokens ({share:.0%} of the context)"
                because += "; lower --max-model-len to reserve less"
        count = str(candidate.count)
        message = f"{count} instances are planned and billed, because {because}"
        sentence = f"confirm the number with --instance-count {count}"
        fix = Fix(sentence, options=("--instance-count", count))
        return warning("several-instances", "instance_count", message, fix)

    def _idle_gpus(self) -> Iterator[Finding]:
        """A warning on idle GPUs that names the better plan for the same type, or a note where none
        is known to be better; a note where all work, and copies cost clearly less per token."""
        candidate, options, better = self.candidate, self.evaluator.options, self._with_copies()
        idle, comparison, fix = candidate.idle_gpus, "", Fix("")
        if better is not None:
            gpus = "1 GPU" if better.gpus == 1 else f"{better.gpus} GPUs"
            comparison = (
                f"{better.copies} copies of the engine with {gpus} each generate "
                f"{_speed_and_cost(better)}, {_speed_and_cost(candidate)} as planned"
            )
            sentence = f"use --copies {better.copies} (an inference component)"
            fix = Fix(sentence, options=("--copies", f"{better.copies}"))
            if excluding := without_copies(options):  # then other options have to go, too
                fix = Fix(f"{sentence}, without {' and '.join(excluding)}")
        message = (
            f"{idle} of the {candidate.instance.gpu_count} GPUs of {candidate.instance.type} "
            f"{'is' if idle == 1 else 'are'} idle but billed"
        )
        if not idle:
            ours = candidate.usd_per_million_tokens
            theirs = better.usd_per_million_tokens if better else None
            # By more than the error of an estimate.
            if ours is not None and theirs is not None and theirs * SAME_COST_FACTOR < ours:
                yield note("copies-cost-less", "copies", comparison, fix)
        elif better is not None:
            yield warning("gpus-idle", "instance_type", f"{message}; {comparison}", fix)
        elif options.instance_type is not None:
            leave_out = "leave --instance-type out to get the cheapest type that fits"
            yield note("gpus-idle", "instance_type", message, leave_out)
        else:
            message += "; the plan is the best for this load nevertheless"
            yield note("gpus-idle", "instance_type", message, "")

    def _with_copies(self) -> Candidate | None:
        """The best with copies on the same type, if that is known to be better than the candidate.
        A number of copies that the user chose stays unquestioned while it leaves no GPU idle."""
        candidate, chosen = self.candidate, self.evaluator.options.copies
        is_known = candidate.tokens_per_second is not None and candidate.instance.gpu_count > 1
        is_questioned = chosen is None or (chosen != AUTO and candidate.idle_gpus > 0)
        if not is_questioned or not is_known:
            return None
        allowed = self.evaluator.with_options(copies=AUTO, capture_data=None, rollout=None)
        better = allowed.candidate(candidate.instance)
        if better.tokens_per_second is None or better.copies == 1:
            return None
        return better if rank((candidate, better))[0] is better else None


def _unverified(where: str, message: str, fix: Fix) -> Finding:
    if where == "slo":
        return warning(_SLO_UNVERIFIED, where, message, fix)
    return warning(_SPEED_UNVERIFIED, where, message, fix)


def _missed(where: str, message: str, fix: Fix) -> Finding:
    if where == "slo":
        return error(_SLO_MISSED, where, message, fix)
    return error(_SPEED_BELOW_MINIMUM, where, message, fix)


def _use_type(other: Candidate, because: str) -> Fix:
    name = other.instance.type
    return Fix(f"use --instance-type {name}{because}", options=("--instance-type", name))


def _lower(flag: str, value: int) -> Fix:
    return Fix(f"lower {flag} to {value}", options=(flag, str(value)))


def _fitting_options(load: Load, candidate: Candidate) -> list[Fix]:
    """One fix with the single options that make it fit: ``lower --concurrency to 5461 or lower --k
    to 1``; empty without any."""
    drafter, k, fixes = candidate.drafter, candidate.k, []

    def fits(k: int = k, **changed: Any) -> bool:
        return replace(load, **changed).engine_on(candidate.instance, 0, drafter, k).fit.fits

    least, longest = load.workload.tokens, load.max_model_len
    if length := _largest(max(_SHORTEST, least), longest, lambda n: fits(max_model_len=n)):
        fixes.append(_lower("--max-model-len", _rounded(length, least)))
    if requests := _largest(1, load.concurrency, lambda n: fits(concurrency=n)):
        fixes.append(_lower("--concurrency", requests))
    if drafter is not None and (fewer := _largest(1, k, lambda n: fits(k=n))):
        fixes.append(_lower("--k", fewer))
    return [combine_fixes(fixes, " or ")] if fixes else []


def _rounded(length: int, least: int) -> int:
    """A context to suggest: a multiple of ``_STEP``, unless that is below ``least``."""
    rounded = length // _STEP * _STEP
    return rounded if rounded >= least else length


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


def _as_reached(only: Candidate) -> Fix:
    """The one requirement of ``only`` as the candidate meets it."""
    asked, times, speed = only.asked, only.performance, only.tokens_per_second
    if asked.within is not None and only.batch and speed:
        within = f"{math.ceil((only.batch.seconds or 0) / 3600)}h"
        return Fix(f"use --within {within}", options=("--within", within))
    if asked.slo is None:
        return _lower("--min-tokens-per-second", math.floor(speed or 0))
    reached = {
        name: max(limit, math.ceil(time * 1000) / 1000)
        for name, limit, time in (
            ("ttft", asked.slo.ttft, times.ttft_seconds),
            ("itl", asked.slo.itl, times.itl_seconds),
        )
        if limit is not None and time is not None
    }
    slo = Slo(**reached).text
    return Fix(f"use --slo {slo}", options=("--slo", slo))


def _reached(only: Candidate) -> str:
    """The speed, with its times if these are required, and with the source."""
    times, text = only.performance, speed_text(only)
    if only.asked.slo and times.ttft_seconds is not None and times.itl_seconds is not None:
        text += f", ttft={times.ttft_seconds:.3g}, itl={times.itl_seconds:.3g}"
    return f"{text} ({only.source})"


def _slowest(candidate: Candidate) -> Candidate:
    """The candidate at the lower end of its estimated range."""
    speed = candidate.performance
    if speed.basis != "estimated" or not speed.tokens_per_second or not speed.low:
        return candidate
    slower = speed.tokens_per_second / speed.low
    slow = replace(
        speed,
        tokens_per_second=speed.low,
        ttft_seconds=(speed.ttft_seconds or 0.0) * slower,
        itl_seconds=(speed.itl_seconds or 0.0) * slower,
    )
    return replace(candidate, performance=slow)


def _speed_and_cost(candidate: Candidate) -> str:
    usd = candidate.usd_per_million_tokens
    cost = "" if usd is None else f" at {token_cost_text(usd)}"
    return f"{candidate.tokens_per_second:,.0f} tokens/s{cost}"
