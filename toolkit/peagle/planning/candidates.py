"""A pair on an instance type: the memory fit, and instances that share the load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter

from peagle.case import CaseOptions, build_case
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.catalog.tables import Instance
from peagle.checkpoints.division import divisions, is_expert_parallel
from peagle.fit.building import draft_model, fit_case, gpu_of, target_model
from peagle.fit.estimate import (
    drafter_on_gpu,
    fit_of,
    missing_bytes,
    share_of_prefix,
    share_of_request,
)
from peagle.fit.models import Fit, FitCase
from peagle.planning.load import MIN_LOAD_SHARE, USUAL_WORKLOAD
from peagle.planning.options import Options
from peagle.planning.overrides import memory_settings
from peagle.planning.plan import Batch
from peagle.speed.models import SAME_SPEED_SHARE, Performance, Workload
from peagle.text import basis_text, format_concurrency, format_usd, usd_per_million
from peagle.vllm.environment import Value

PLANNED_GPU_MEMORY_UTILIZATION = 0.9
"""The share of a GPU's memory that vLLM may use; set explicitly, since its default has changed."""


SAME_COST_FACTOR = 1.15
"""Costs per token up to this factor above the lowest are equal, and the lowest price per hour wins:
the median error of an estimated speed is not smaller."""


TARGET_ALONE_COST_FACTOR = 0.97
"""The target alone is ranked as if its tokens cost this much less: a drafter must save more."""


@dataclass(frozen=True)
class PairLoad:
    """A pair and its load, independent of an instance. ``settings`` are the user's own arguments of
    vLLM; ``None`` leaves one of the catalogue out. ``own_head``: the drafter is the user's own,
    which runs name by its location only, even if it has the name of the catalogue's.
    ``of_one_size``: no request is longer than ``workload``, as in a batch."""

    target: Target
    drafter: Drafter | None
    k: int
    vllm: str
    max_model_len: int
    concurrency: int
    catalog: Catalog
    settings: Mapping[str, Value | None] = field(default_factory=dict)
    workload: Workload = USUAL_WORKLOAD
    own_head: bool = False
    of_one_size: bool = False

    @property
    def drafter_bytes(self) -> int:
        """Bytes of the drafter's weights on a single GPU; 0 without weights."""
        model = draft_model(self.drafter, target_model(self.target)) if self.drafter else None
        return drafter_on_gpu(model, 1) if model else 0

    @property
    def request_tokens(self) -> int:
        """Tokens of one request, prompt and output together."""
        return self.workload.prompt_tokens + self.workload.output_tokens

    def cache_shares(self, case: FitCase) -> tuple[float, float]:
        """What the KV cache of ``case`` must hold of each request and, once, of what all prompts
        share, as shares of one of max-model-len: in plans and in verdicts."""
        least = 0.0 if self.of_one_size else MIN_LOAD_SHARE
        tokens, length = self.request_tokens, self.max_model_len
        each = min(1.0, max(least, tokens / length, share_of_request(case, tokens)))
        shared = share_of_prefix(case, self.workload.shared_prompt_tokens)
        return each - shared, shared


@dataclass(frozen=True)
class InstanceFit:
    """The pair on an instance: input and result of the memory model.

    ``cache_share`` is what the cache must hold of each request of the load, ``shared`` what it
    holds once for all, in requests of max-model-len.
    """

    instance: Instance
    case: FitCase
    fit: Fit
    cache_share: float
    shared: float

    @property
    def most_requests(self) -> int:
        """The most concurrent requests for which the KV cache is large enough."""
        held = max(self.fit.max_concurrency - self.shared, 0.0) / self.cache_share
        return math.floor(held) if self.fit.fits else 0

    def holds(self, load: float) -> bool:
        """It fits, and its cache is large enough for ``load`` concurrent requests."""
        return load <= self.most_requests


def fit_on_instance(work: PairLoad, instance: Instance, load: int) -> InstanceFit:
    """The model on this instance, on the fewest GPUs that hold ``load`` concurrent requests; else
    on those that hold most, or that lack least memory."""
    tried: list[InstanceFit] = []
    for size in divisions(
        work.target.architecture, instance.gpu_count, is_expert_parallel(work.settings)
    ):
        tried.append(fit_on_gpus(work, instance, size))
        if tried[-1].fit.fits and tried[-1].holds(load):
            return tried[-1]
    fitting = [on_instance for on_instance in tried if on_instance.fit.fits]
    if fitting:
        return max(fitting, key=lambda on_instance: on_instance.fit.max_concurrency)
    return min(tried, key=lambda on_instance: missing_bytes(on_instance.case))


def fit_on_gpus(work: PairLoad, instance: Instance, tensor_parallel_size: int) -> InstanceFit:
    """The model on this many of the instance's GPUs."""
    case = planned_fit(work, instance, tensor_parallel_size)
    return InstanceFit(instance, case, fit_of(case), *work.cache_shares(case))


def planned_fit(work: PairLoad, on: Instance, tensor_parallel_size: int) -> FitCase:
    """The memory of one of ``tensor_parallel_size`` GPUs of this instance, as planned."""
    options = CaseOptions(
        k=work.k,
        max_model_len=work.max_model_len,
        concurrency=work.concurrency,
        vllm=work.vllm,
        instance_type=on.type,
        tensor_parallel_size=tensor_parallel_size,
        settings=memory_settings(work.settings),
    )
    case = build_case(work.catalog, work.target, work.drafter, options)
    planned = {"gpu-memory-utilization": PLANNED_GPU_MEMORY_UTILIZATION}
    return fit_case(replace(case, settings={**planned, **case.settings}), gpu_of(on))


@dataclass(frozen=True)
class Candidate:
    """``count`` instances of one type that share the load, with this drafter and K (0 without).

    Each runs ``copies`` engines. ``load`` is the most concurrent requests of one engine, ``busy``
    the number of engines that has any. ``usd_per_hour`` is of all instances, ``None`` if unknown;
    ``performance`` is of one engine, ``start_seconds`` the time until it answers, known in a batch.
    """

    on_instance: InstanceFit
    drafter: Drafter | None
    k: int
    count: int
    load: int
    busy: int
    usd_per_hour: float | None
    performance: Performance
    copies: int = 1
    start_seconds: int = 0

    @property
    def engines(self) -> int:
        """How many engines share the load."""
        return self.count * self.copies

    @property
    def idle_gpus(self) -> int:
        """The GPUs of an instance that no engine uses."""
        return self.fit.gpu_count - self.fit.tensor_parallel_size * self.copies

    @property
    def instance(self) -> Instance:
        """The instance type."""
        return self.on_instance.instance

    @property
    def fit(self) -> Fit:
        """The memory fit."""
        return self.on_instance.fit

    @property
    def holds_load(self) -> bool:
        """Whether the KV cache of each holds enough of the load, or was measured to serve it."""
        return self.performance.basis == "measured" or self.on_instance.holds(self.load)

    @cached_property
    def tokens_per_second(self) -> float | None:
        """Output tokens per second of all instances; ``None`` if unknown."""
        return self.total(self.performance.tokens_per_second)

    def total(self, of_one: float | None) -> float | None:
        """A speed of one instance, for all of them."""
        return None if of_one is None else round(of_one * self.busy, 1)

    @cached_property
    def usd_per_million_tokens(self) -> float | None:
        """USD per million output tokens under this load."""
        usd = usd_per_million(self.usd_per_hour, self.tokens_per_second)
        return None if usd is None else round(usd, 4)

    @property
    def source(self) -> str:
        """The origin of the speed as text."""
        if self.engines == 1:
            return self.performance.source
        unit = "instance" if self.copies == 1 else "copy"
        each = f"{self.engines} times one {unit} with {format_concurrency(self.load)}"
        return f"{self.performance.source}; {each}"

    @property
    def text(self) -> str:
        """``ml.g6.xlarge``, or ``2 x ml.g6.xlarge``."""
        return f"{self.count} x {self.instance.type}" if self.count > 1 else self.instance.type

    @property
    def cost_text(self) -> str:
        """``$4.20 an hour``, for all instances."""
        together = f" for {self.count}" if self.count > 1 else ""
        return f"{format_usd(self.usd_per_hour or 0.0)} an hour{together}"

    @property
    def at_cost(self) -> str:
        """The price after a space and "at"; empty if it is unknown."""
        return f" at {self.cost_text}" if self.usd_per_hour is not None else ""

    @property
    def speed_text(self) -> str:
        """``900 tokens/s measured``, ``900 tokens/s estimated (600 to 1,200)``; of several
        instances ``900 tokens/s, 2 times one measured instance``."""
        if self.tokens_per_second is None:
            return "speed unknown"
        unit = "instance" if self.copies == 1 else "copy"
        basis = basis_text(self.performance.basis, self.busy, unit)
        text = f"{self.tokens_per_second:,.0f} tokens/s{basis}"
        low, high = self.total(self.performance.low), self.total(self.performance.high)
        if self.performance.basis == "measured" or low is None or high is None:
            return text
        return f"{text} ({low:,.0f} to {high:,.0f})"

    def excess(self, options: Options) -> float | None:
        """How far it is from what the options require of speed and times: at most 1 where all is
        met, ``None`` if one is unknown, 0 without requirements."""
        required, ratios = options.min_tokens_per_second, [0.0]
        if required is None and options.slo is None and options.within is None:
            return 0.0
        if options.within is not None:
            batch = batch_on(self, options)
            if batch is None or batch.seconds is None:
                return None
            ratios.append(batch.seconds / options.within)
        if required is not None:
            speed = self.tokens_per_second
            if not speed:
                return None
            ratios.append(required / speed)
        if options.slo is not None:
            performance = self.performance
            times = options.slo.excess(performance.ttft_seconds, performance.itl_seconds)
            if times is None:
                return None
            ratios.append(times)
        return max(ratios)

    def meets(self, options: Options) -> bool:
        """Whether it is known to meet what the options require."""
        return _meets(self.excess(options))

    def within(self, usd_per_hour: float | None) -> bool:
        """Whether its price is known and at most this limit; true without a limit."""
        if usd_per_hour is None:
            return True
        return self.usd_per_hour is not None and self.usd_per_hour <= usd_per_hour


def batch_on(candidate: Candidate, options: Options) -> Batch | None:
    """How long the batch of the options takes on this candidate, and what it costs."""
    if options.requests is None:
        return None
    batch = Batch(
        requests=options.requests,
        within_seconds=options.within,
        start_seconds=candidate.start_seconds,
    )
    output = options.output_tokens or USUAL_WORKLOAD.output_tokens
    return batch_at(batch, output, candidate.tokens_per_second, candidate.usd_per_hour)


def batch_at(
    batch: Batch, output_tokens: int, tokens_per_second: float | None, usd: float | None
) -> Batch:
    """The same batch at another speed and another price per hour."""
    seconds = None
    if tokens_per_second:
        answering = batch.requests * output_tokens / tokens_per_second
        seconds = round(batch.start_seconds + answering, 1)
    total = None if seconds is None or usd is None else round(seconds / 3600 * usd, 2)
    return batch.model_copy(update={"seconds": seconds, "usd": total})


SAME_BATCH_COST_FACTOR = 1.03
"""Batches whose total costs differ by less count as equally expensive: the estimate is coarser."""


def same_cost_factor(options: Options) -> float:
    """Up to which factor costs per token, or total costs of a batch, count as equal."""
    return SAME_COST_FACTOR if options.requests is None else SAME_BATCH_COST_FACTOR


def _meets(excess: float | None) -> bool:
    """Whether a candidate with this ``excess`` is known to meet what the options require."""
    return excess is not None and excess <= 1


def rank(
    options: Options, candidates: Iterable[Candidate], by_cost: bool = True
) -> list[Candidate]:
    """From best to worst: within the price limit, with a KV cache for the load, meeting what the
    options require, and by cost per token, in a batch by total cost, or without ``by_cost`` by
    price per hour. Of about the lowest cost (``same_cost_factor``), the lowest price per hour is
    first, in a batch the soonest end.

    Where some are known to meet the requirements, unknown ones come next; where none is, those
    that come nearest.
    """
    rated = [(candidate, candidate.excess(options)) for candidate in candidates]
    if len(rated) < 2:
        return [candidate for candidate, _ in rated]
    some_meet = any(_meets(excess) for _, excess in rated)

    def key(
        candidate: Candidate, excess: float | None
    ) -> tuple[bool, bool, int, float, float, float, float, int, str]:
        speed = candidate.tokens_per_second or 0.0
        price = math.inf if candidate.usd_per_hour is None else candidate.usd_per_hour
        cost = candidate.usd_per_million_tokens if by_cost else None
        factor = 1.0 if candidate.drafter else TARGET_ALONE_COST_FACTOR
        if batch := batch_on(candidate, options):
            cost, factor = batch.usd if by_cost else None, 1.0
        cost = math.inf if cost is None else cost * factor
        after = 1 if (excess is None) is some_meet else 2
        missed = 0 if _meets(excess) else after
        return (
            not candidate.within(options.max_price_per_hour),
            not candidate.holds_load,
            missed,
            (excess or 0.0) if missed else 0.0,
            cost,
            price,
            -speed,
            candidate.fit.tensor_parallel_size,
            candidate.instance.type,
        )

    ranked = sorted(((key(*pair), pair[0]) for pair in rated), key=itemgetter(0))
    if by_cost:
        (*first, least), tied = ranked[0][0][:5], 0
        while tied < len(ranked) and [*ranked[tied][0][:4]] == first:
            if ranked[tied][0][4] > same_cost_factor(options) * least:
                break
            tied += 1
        ranked[:tied] = sorted(
            ranked[:tied], key=lambda pair: (_among_equals(pair[1], options), pair[0])
        )
    return [candidate for _, candidate in ranked]


def _among_equals(candidate: Candidate, options: Options) -> float:
    """Of equally expensive candidates the smallest is best: in a batch the time, else the price."""
    batch = batch_on(candidate, options)
    if batch is not None and batch.seconds is not None:
        return batch.seconds
    return math.inf if candidate.usd_per_hour is None else candidate.usd_per_hour


def best_of(
    options: Options, of_pair: Sequence[Candidate], others: Iterable[Candidate]
) -> list[Candidate]:
    """The best on one type, if any fits; the pair's own drafter also where another one is faster
    by at most ``SAME_SPEED_SHARE``, with which verdicts count speeds as equal."""
    ranked = rank(options, [*of_pair, *others])[:1]
    if not ranked or not of_pair or ranked[0].drafter is None or options.requests is not None:
        return ranked
    first, usual = ranked[0], rank(options, of_pair)[0]
    least = (1 - SAME_SPEED_SHARE) * (first.tokens_per_second or 0.0)
    alike = usual.usd_per_hour == first.usd_per_hour and usual.holds_load == first.holds_load
    alike = alike and usual.meets(options) == first.meets(options)
    return [usual] if alike and (usual.tokens_per_second or 0.0) >= least else ranked
