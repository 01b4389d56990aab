"""Findings about what the options require of speed and times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from peagle.errors import Fix, combine_fixes
from peagle.findings import Finding, error, note, warning
from peagle.planning.batch import least_hours
from peagle.planning.candidates import Candidate
from peagle.planning.evaluation import CandidateEvaluator
from peagle.planning.options import Options
from peagle.speed.slo import Slo
from peagle.text import exact_duration, format_concurrency
from peagle.vllm.facts import facts_of


class _Requirement(NamedTuple):
    """The findings about one requirement: perhaps or certainly not met."""

    unverified: Callable[[str, Fix], Finding]
    missed: Callable[[str, Fix], Finding]


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

_SPEED = _Requirement(
    lambda text, fix: warning(_SPEED_UNVERIFIED, "min_tokens_per_second", text, fix),
    lambda text, fix: error(_SPEED_BELOW_MINIMUM, "min_tokens_per_second", text, fix),
)
_BATCH = _Requirement(
    lambda text, fix: warning(_SPEED_UNVERIFIED, "within", text, fix),
    lambda text, fix: error(_SPEED_BELOW_MINIMUM, "within", text, fix),
)
_SLO = _Requirement(
    lambda text, fix: warning(_SLO_UNVERIFIED, "slo", text, fix),
    lambda text, fix: error(_SLO_MISSED, "slo", text, fix),
)


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


@dataclass(frozen=True)
class RequirementReview:
    """The findings about what is required of one candidate; ``fitting`` are all that fit, best
    first."""

    evaluator: CandidateEvaluator
    candidate: Candidate
    fitting: Sequence[Candidate]

    def findings(self) -> Iterator[Finding]:
        """What the options require of speed and times, where it is not met or not certain."""
        options = self.evaluator.options
        others = {"slo": None, "min_tokens_per_second": None, "within": None}
        if options.within is not None:
            only = options.model_copy(update={**others, "within": options.within})
            batch = f"{options.requests or 0:,} requests within {exact_duration(options.within)}"
            yield from self._required(only, batch, _BATCH)
        if (least := options.min_tokens_per_second) is not None:
            only = options.model_copy(update={**others, "min_tokens_per_second": least})
            yield from self._required(only, f"{least:,.0f} tokens/s", _SPEED)
        if options.slo is not None:
            only = options.model_copy(update={**others, "slo": options.slo})
            yield from self._required(only, options.slo.text, _SLO)

    def _required(self, only: Options, asked: str, finds: _Requirement) -> Iterator[Finding]:
        """The finding about one requirement, that of ``only``."""
        candidate, excess = self.candidate, self.candidate.excess(only)
        benchmark = Fix("run a benchmark before you rely on it")
        if excess is None:
            message = f"the speed of {candidate.text} is unknown, so it may not reach {asked}"
            fix = combine_fixes([*self._better(), benchmark])
            yield finds.unverified(message, fix)
        elif excess > 1:
            load = format_concurrency(self.evaluator.work_on(candidate).concurrency)
            message = (
                f"with {load}, {candidate.text} does not reach {asked}: {_reached(candidate, only)}"
            )
            fix = combine_fixes([*self._better(), self._lower(only)])
            yield finds.missed(message, fix)
        elif not _slowest(candidate).meets(only):
            message = f"{asked}: only the estimate reaches it, not the lower end of its range: "
            message += _reached(candidate, only)
            fix = combine_fixes([*self._better(certain=True), benchmark])
            yield finds.unverified(message, fix)

    def _better(self, certain: bool = False) -> Iterator[Fix]:
        """Options that meet what is required: another type, K, or more instances; with ``certain``
        also at the lower end of the range."""
        evaluator, candidate, options = self.evaluator, self.candidate, self.evaluator.options

        def enough(other: Candidate) -> bool:
            return (_slowest(other) if certain else other).meets(options) and other.holds_load

        limit = options.max_price_per_hour
        for other in self.fitting:
            if other.instance != candidate.instance and enough(other) and other.within(limit):
                name = other.instance.type
                sentence = f"use --instance-type {name}{other.at_cost} ({other.speed_text})"
                yield Fix(sentence, options=("--instance-type", name))
                break
        if options.k is not None:
            best = evaluator.with_options(k=None).candidate(candidate.instance)
            if enough(best) and best.drafter is not None:
                yield Fix(f"use --k {best.k} ({best.speed_text})", options=("--k", f"{best.k}"))
        if options.instance_count is not None:
            more = evaluator.with_options(instance_count=None).candidate(candidate.instance)
            if enough(more) and more.count > options.instance_count:
                sentence = f"use --instance-count {more.count} ({more.speed_text})"
                yield Fix(sentence, options=("--instance-count", f"{more.count}"))

    def _lower(self, only: Options) -> Fix:
        """The requirement of ``only`` as the candidate meets it."""
        one, speed = self.candidate.performance, self.candidate.tokens_per_second
        if only.within is not None and speed:
            within = f"{least_hours(self.candidate, only)}h"
            return Fix(f"use --within {within}", options=("--within", within))
        if only.slo is None:
            reached = str(math.floor(speed or 0))
            return Fix(
                f"lower --min-tokens-per-second to {reached}",
                options=("--min-tokens-per-second", reached),
            )
        times = {
            name: max(limit, math.ceil(time * 1000) / 1000)
            for name, limit, time in (
                ("ttft", only.slo.ttft, one.ttft_seconds),
                ("itl", only.slo.itl, one.itl_seconds),
            )
            if limit is not None and time is not None
        }
        slo = Slo(**times).text
        return Fix(f"use --slo {slo}", options=("--slo", slo))


def _reached(candidate: Candidate, only: Options) -> str:
    """Speed of a candidate, with its times if these are required, and with the source."""
    one, text = candidate.performance, candidate.speed_text
    if only.slo and one.ttft_seconds is not None and one.itl_seconds is not None:
        text += f", ttft={one.ttft_seconds:.3g}, itl={one.itl_seconds:.3g}"
    return f"{text} ({candidate.source})"


def _slowest(candidate: Candidate) -> Candidate:
    """The candidate at the lower end of its estimated range."""
    one = candidate.performance
    if one.basis != "estimated" or not one.tokens_per_second or not one.low:
        return candidate
    slower = one.tokens_per_second / one.low
    first, between = (one.ttft_seconds or 0.0) * slower, (one.itl_seconds or 0.0) * slower
    slow = replace(one, tokens_per_second=one.low, ttft_seconds=first, itl_seconds=between)
    return replace(candidate, performance=slow)
