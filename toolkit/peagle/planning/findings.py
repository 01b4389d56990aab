"""Findings about an instance: too small, too full, idle, too expensive or too slow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.catalog.tables import Instance
from peagle.errors import Fix, combine_fixes
from peagle.findings import Finding, error, note, warning
from peagle.fit.estimate import GIB, refusal_reason, step_too_small
from peagle.planning.candidates import (
    SAME_COST_FACTOR,
    Candidate,
    InstanceFit,
    PairLoad,
    fit_on_gpus,
    fit_on_instance,
    rank,
)
from peagle.planning.copies import without_copies
from peagle.planning.evaluation import MOST_INSTANCES, CandidateEvaluator
from peagle.planning.options import AUTO
from peagle.planning.requirements import RequirementReview
from peagle.text import format_concurrency, format_requests, format_usd

_SHORTEST = 1024
"""Tokens; a shorter context is not worth suggesting."""

_STEP = 256
"""Suggested contexts are multiples of this many tokens."""

_FALLBACKS = 2
"""How many other types are suggested for a scarce one."""

_FIX_OF_IDLE = "leave --instance-type out to get the cheapest type that fits"
"""What helps against idle GPUs of an instance type that the user chose."""


def none_fits(work: PairLoad, largest: Candidate) -> Finding:
    """The error that the pair does not fit on any instance type."""
    message = (
        f"the pair does not fit on any instance type; on {largest.instance.type}, the largest: "
        f"{refusal_reason(largest.on_instance.case)}"
    )
    fixes = _fitting_options(work, largest.instance)
    nothing = Fix("choose a smaller target: no single option makes it fit")
    if step_too_small(largest.on_instance.case):
        nothing = Fix("omit --set max-num-batched-tokens, or set it to several thousand")
    fix = fixes[0] if fixes else nothing
    return error("instance-too-small", "instance_type", message, fix)


@dataclass(frozen=True)
class Review:
    """The findings about one candidate; ``fitting`` are all that fit, best first."""

    evaluator: CandidateEvaluator
    candidate: Candidate
    fitting: Sequence[Candidate]

    def findings(self) -> Iterator[Finding]:
        """Errors, warnings and notes: memory, idle GPUs, price, speed, number of instances."""
        if self.candidate.fit.fits:
            yield from self._cache()
            yield from self._prefix_cache()
            yield from self._host_memory()
            yield from idle_gpus(self.evaluator, self.candidate)
            yield from self._scarce()
        else:
            yield self._too_small()
        yield from self._price()
        required = RequirementReview(self.evaluator, self.candidate, self.fitting)
        yield from required.findings()
        options, candidate = self.evaluator.options, self.candidate
        if options.instance_count is None and candidate.count > 1:
            yield self._several()

    @property
    def _work(self) -> PairLoad:
        return self.evaluator.work_on(self.candidate)

    def _too_small(self) -> Finding:
        fit, instance = self.candidate.fit, self.candidate.instance
        message = (
            f"the pair does not fit on {instance.type} ({fit.gpu_count} x {fit.gpu}, "
            f"{fit.gpu_memory_gib:.1f} GiB each): {refusal_reason(self.candidate.on_instance.case)}"
        )
        fixes = [*self._larger(), *_fitting_options(self._work, instance)]
        nothing = Fix("no instance type and no single option makes it fit")
        fix = combine_fixes(fixes) if fixes else nothing
        return error("instance-too-small", "instance_type", message, fix)

    def _larger(self) -> Iterator[Fix]:
        """The type to use instead, if one fits; within the limit of the price before others."""
        limit = self.evaluator.options.max_price_per_hour
        for best in sorted(self.fitting, key=lambda other: not other.within(limit))[:1]:
            name = best.instance.type
            sentence = f"use --instance-type {name}, the best for this load{best.at_cost}"
            yield Fix(sentence, options=("--instance-type", name))

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
            fix = Fix(
                "lower --max-model-len or --concurrency, unless requests have about "
                f"{fit.kv_cache_tokens // load:,} tokens or less, prompt and output together"
            )
            yield note("cache-below-concurrency", "concurrency", message, fix)
        else:
            fix = combine_fixes(self._larger_cache())
            yield warning("cache-below-concurrency", "concurrency", message, fix)

    def _larger_cache(self) -> Iterator[Fix]:
        """What makes the load fit in the cache: another type, fewer requests, or shorter ones."""
        other = next((other for other in self.fitting if other.holds_load), None)
        if other is not None and other.instance != self.candidate.instance:
            name = other.instance.type
            sentence = f"use --instance-type {name}{other.at_cost}, which holds that load"
            yield Fix(sentence, options=("--instance-type", name))
        count, copies = self.candidate.count, self.candidate.copies
        held = self.candidate.on_instance.most_requests * copies
        enough = math.ceil(self.evaluator.work.concurrency / max(held, 1))
        if held and count < enough <= MOST_INSTANCES:
            yield Fix(f"use --instance-count {enough}", options=("--instance-count", f"{enough}"))
        if held:
            yield _lower("--concurrency", held * count)
        work, load = self._work, self.candidate.load
        length = _largest(
            max(_SHORTEST, work.request_tokens),
            work.max_model_len,
            lambda n: self._fit_at(n).holds(load),
        )
        if length:
            yield _lower("--max-model-len", _rounded(length, work.request_tokens))

    def _fit_at(self, length: int) -> InstanceFit:
        """The fit with that context: of one engine on the instance, or of a copy on its GPUs."""
        candidate, work = self.candidate, replace(self._work, max_model_len=length)
        if self.evaluator.options.copies is None:
            return fit_on_instance(work, candidate.instance, candidate.load)
        return fit_on_gpus(work, candidate.instance, candidate.fit.tensor_parallel_size)

    def _prefix_cache(self) -> Iterator[Finding]:
        """What keeps the prompts' cached tokens from being hits: caching is off, the KV cache is
        too small for the conversations, or several engines share them."""
        work, speed = self._work, self.candidate.performance
        cached = work.workload.cached_prompt_tokens
        if not cached:
            return
        where, busy = "cached_prompt_tokens", self.candidate.busy
        if not self.candidate.on_instance.case.engine.prefix_caching:
            message = "prefix caching is off, so that each prompt is processed whole"
            fix = "use a vLLM version or a drafter with which prefix caching works"
            yield note("prefix-cache-off", where, message, fix)
        elif speed.conversations is not None and speed.conversations < work.concurrency:
            message = (
                f"the KV cache{' of each engine' if busy > 1 else ''} keeps {speed.conversations:,}"
                f" of {work.concurrency:,} conversations of {work.request_tokens:,} tokens, so that"
                f" {speed.cached_prompt_tokens:,} instead of {cached:,} tokens of a prompt are hits"
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
        work, instance = self._work, self.candidate.instance
        weights = (work.target.weight_bytes + work.drafter_bytes) / GIB * self.candidate.copies
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
        options = self.evaluator.options
        # Those that serve the load as required before others, and known ones before scarce ones.
        others.sort(
            key=lambda c: (not c.holds_load, not c.meets(options), c.instance.scarce is not None)
        )
        types = ",".join(other.instance.type for other in others[:_FALLBACKS])
        other = "choose another --instance-type"
        fix = Fix(other)
        if types:
            sentence = f"deploy with --fallback-instance-types {types}, or {other}"
            fix = Fix(sentence, options=("--fallback-instance-types", types))
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

    def _cheaper(self, limit: float) -> Fix:
        priced = (other for other in self.fitting if other.usd_per_hour is not None)
        cheapest = min(priced, key=lambda other: other.usd_per_hour or 0.0, default=None)
        if cheapest is None or cheapest.usd_per_hour is None:
            return Fix("leave --max-price-per-hour out: no price is known of any type that fits")
        if cheapest.usd_per_hour <= limit:
            name, usd = cheapest.instance.type, format_usd(cheapest.usd_per_hour)
            sentence = f"use --instance-type {name}, the cheapest that fits, at {usd} an hour"
            return Fix(sentence, options=("--instance-type", name))
        enough = math.ceil(round(cheapest.usd_per_hour * 100, 6)) / 100
        is_chosen = cheapest.instance == self.candidate.instance
        which = "this is" if is_chosen else f"{cheapest.text} is"
        sentence = f"use --max-price-per-hour {enough:.2f}: {which} the cheapest that fits"
        options = ["--max-price-per-hour", f"{enough:.2f}"]
        if self.evaluator.options.instance_type and not is_chosen:
            options += ["--instance-type", cheapest.instance.type]
        return Fix(sentence, options=tuple(options))

    def _several(self) -> Finding:
        """The warning that several instances are planned and billed."""
        candidate = self.candidate
        held = candidate.on_instance.most_requests * candidate.copies
        load = format_concurrency(self._work.concurrency)
        because = f"one is not known to meet what is required with {load}"
        count, work = str(candidate.count), self._work
        sentence = f"confirm the number with --instance-count {count}"
        if self.evaluator.options.within is not None:
            because = "fewer do not finish in time"
        elif held * (candidate.count - 1) < work.concurrency:
            because = f"the KV cache of one is enough for {format_requests(held)}, not for {load}"
            share = candidate.on_instance.cache_share + candidate.on_instance.shared
            reserved = math.ceil(share * work.max_model_len)
            if reserved > 2 * work.request_tokens:
                because += f", each with {reserved:,} tokens ({share:.0%} of the context)"
                because += "; lower --max-model-len to reserve less"
        message = f"{count} instances are planned and billed, because {because}"
        fix = Fix(sentence, options=("--instance-count", count))
        return warning("several-instances", "instance_count", message, fix)


def _lower(flag: str, value: int) -> Fix:
    return Fix(f"lower {flag} to {value}", options=(flag, str(value)))


def _fitting_options(work: PairLoad, instance: Instance) -> list[Fix]:
    """One fix with the single options that make it fit: ``lower --concurrency to 5461 or lower --k
    to 1``; empty without any."""

    def largest(low: int, field: str) -> int | None:
        def fits(value: int) -> bool:
            changed: dict[str, Any] = {field: value}
            return fit_on_instance(replace(work, **changed), instance, 0).fit.fits

        return _largest(low, getattr(work, field), fits)

    fixes = []
    if length := largest(max(_SHORTEST, work.request_tokens), "max_model_len"):
        fixes.append(_lower("--max-model-len", _rounded(length, work.request_tokens)))
    if load := largest(1, "concurrency"):
        fixes.append(_lower("--concurrency", load))
    if work.drafter is not None and (k := largest(1, "k")):
        fixes.append(_lower("--k", k))
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


def idle_gpus(evaluator: CandidateEvaluator, candidate: Candidate) -> Iterator[Finding]:
    """A warning on idle GPUs that names the better plan for the same type, or a note where none is
    known to be better; a note where all work, and copies cost clearly less per token."""
    idle, options = candidate.idle_gpus, evaluator.options
    better = _with_copies(evaluator, candidate)
    fix = Fix("")
    if better is not None:
        sentence = f"use --copies {better.copies} (an inference component)"
        fix = Fix(sentence, options=("--copies", f"{better.copies}"))
        if excluding := without_copies(options):  # then other options have to go, too
            fix = Fix(f"{sentence}, without {' and '.join(excluding)}")
    if not idle:
        if better is not None and _costs_clearly_less(better, candidate):
            message = f"{_described(better)}, {_speed(candidate)} as planned"
            yield note("copies-cost-less", "copies", message, fix)
        return
    message = (
        f"{idle} of the {candidate.fit.gpu_count} GPUs of {candidate.instance.type} "
        f"{'is' if idle == 1 else 'are'} idle but billed"
    )
    if better is not None:
        message += f"; {_described(better)}, {_speed(candidate)} as planned"
        yield warning("gpus-idle", "instance_type", message, fix)
    elif options.instance_type is not None:
        yield note("gpus-idle", "instance_type", message, _FIX_OF_IDLE)
    else:
        message += "; the plan is the best for this load nevertheless"
        yield note("gpus-idle", "instance_type", message, "")


def _costs_clearly_less(better: Candidate, candidate: Candidate) -> bool:
    """Whether it costs less per token by more than the error of an estimate."""
    ours, theirs = candidate.usd_per_million_tokens, better.usd_per_million_tokens
    return ours is not None and theirs is not None and theirs * SAME_COST_FACTOR < ours


def _with_copies(evaluator: CandidateEvaluator, candidate: Candidate) -> Candidate | None:
    """The best with copies on the same type, if that is known to be better than the candidate. A
    number of copies that the user chose stays unquestioned while it leaves no GPU idle."""
    is_known = candidate.tokens_per_second is not None and candidate.fit.gpu_count > 1
    chosen = evaluator.options.copies
    is_questioned = chosen is None or (chosen != AUTO and candidate.idle_gpus > 0)
    if not is_questioned or not is_known:
        return None
    allowed = evaluator.with_options(copies=AUTO, capture_data=None, rollout=None)
    better = allowed.candidate(candidate.instance)
    if better.tokens_per_second is None or better.copies == 1:
        return None
    ranked = rank(evaluator.options, (candidate, better))
    return better if ranked[0] is better else None


def _described(better: Candidate) -> str:
    """``4 copies of the engine with 2 GPUs each would generate 900 tokens/s ...``."""
    size = better.fit.tensor_parallel_size
    gpus = "1 GPU" if size == 1 else f"{size} GPUs"
    return f"{better.copies} copies of the engine with {gpus} each generate {_speed(better)}"


def _speed(candidate: Candidate) -> str:
    """The speed, and the cost per token where it is known."""
    usd = candidate.usd_per_million_tokens
    cost = "" if usd is None else f" at {format_usd(usd)} per million output tokens"
    return f"{candidate.tokens_per_second:,.0f} tokens/s{cost}"
