"""Instances that share a load, how they compare, and what a batch takes on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from peagle.catalog.schema import Drafter
from peagle.catalog.tables import Instance
from peagle.fit.estimate import Fit
from peagle.options import AUTO, Options
from peagle.planning.load import USUAL_WORKLOAD, EngineFit, Load
from peagle.planning.plan import Alternative, Batch
from peagle.speed.acceptance import SAME_SPEED_SHARE, Basis, Performance
from peagle.text import format_concurrency, usd_per_million

SAME_COST_FACTOR = 1.15
"""Costs per token up to this factor above the lowest are equal, and the lowest price per hour wins:
the median error of an estimated speed is not smaller."""

SAME_BATCH_COST_FACTOR = 1.03
"""Batches whose total costs differ by less count as equally expensive: the estimate is coarser."""

TARGET_ALONE_COST_FACTOR = 0.97
"""The target alone is ranked as if its tokens cost this much less: a drafter must save more."""


@dataclass(frozen=True)
class Candidate:
    """``count`` instances of one type that share the load, with this drafter and K (0 without).

    ``options`` has what is required of speed, times and price. Each instance runs ``copies`` of
    ``engine``, and ``load`` has the number of them that have requests. ``performance`` is of one
    engine, ``start_seconds`` the time until it answers, known in a batch.
    """

    options: Options
    instance: Instance
    engine: EngineFit
    drafter: Drafter | None
    k: int
    count: int
    load: Load
    region: str
    performance: Performance
    copies: int = 1
    start_seconds: int = 0

    @property
    def engines(self) -> int:
        """How many engines share the load."""
        return self.count * self.copies

    @cached_property
    def usd_per_hour(self) -> float | None:
        """The price of all instances; ``None`` if unknown."""
        price = self.instance.price_in(self.region)
        return None if price is None else round(price.usd_per_hour * self.count, 4)

    @property
    def gpus(self) -> int:
        """The GPUs of one engine."""
        return self.engine.fit.tensor_parallel_size

    @property
    def idle_gpus(self) -> int:
        """The GPUs of an instance that no engine uses."""
        return self.instance.gpu_count - self.gpus * self.copies

    @property
    def has_copies(self) -> bool:
        """Whether its engines are an inference component, which a single one needs only to scale to
        zero."""
        copies = self.options.copies
        several = copies != AUTO or self.copies > 1 or self.options.scale_to_zero
        return copies is not None and several

    @cached_property
    def fit(self) -> Fit:
        """The memory fit."""
        return self.engine.fit.model_copy(update={"gpu_count": self.instance.gpu_count})

    @cached_property
    def holds_load(self) -> bool:
        """Whether the KV cache of each holds enough of the load, or was measured to serve it."""
        return (
            self.basis == "measured" or self.load.requests_per_engine <= self.engine.most_requests
        )

    @property
    def basis(self) -> Basis:
        """Whether its speed is measured, estimated or unknown."""
        return self.performance.basis

    @property
    def extrapolated(self) -> bool:
        """Whether no acceptance is known of this K or a larger one."""
        return self.performance.acceptance.extrapolated

    @property
    def low(self) -> float | None:
        """The low end of its speed's range."""
        return self.total(self.performance.low)

    @cached_property
    def tokens_per_second(self) -> float | None:
        """Output tokens per second of all instances; ``None`` if unknown."""
        return self.total(self.performance.tokens_per_second)

    def total(self, of_engine: float | None) -> float | None:
        """A speed of one engine, for all of them."""
        return None if of_engine is None else round(of_engine * self.load.engines, 1)

    @cached_property
    def usd_per_million_tokens(self) -> float | None:
        """USD per million output tokens under this load."""
        usd = usd_per_million(self.usd_per_hour, self.tokens_per_second)
        return None if usd is None else round(usd, 4)

    @cached_property
    def batch(self) -> Batch | None:
        """How long the batch takes on these instances, and what it costs."""
        options = self.options
        if options.requests is None:
            return None
        seconds, usd, output = None, None, options.output_tokens or USUAL_WORKLOAD.output_tokens
        if self.tokens_per_second:
            answering = options.requests * output / self.tokens_per_second
            seconds = round(self.start_seconds + answering, 1)
            if self.usd_per_hour is not None:
                usd = round(seconds / 3600 * self.usd_per_hour, 2)
        return Batch(
            requests=options.requests,
            within_seconds=options.within,
            start_seconds=self.start_seconds,
            seconds=seconds,
            usd=usd,
        )

    @cached_property
    def excess(self) -> float | None:
        """How far it is from what is required of speed and times: at most 1 where all is met,
        ``None`` if one is unknown, 0 without requirements."""
        options, speed = self.options, self.tokens_per_second
        ratios: list[float | None] = [0.0]
        if options.within is not None:
            seconds = self.batch.seconds if self.batch else None
            ratios.append(None if seconds is None else seconds / options.within)
        if options.min_tokens_per_second is not None:
            ratios.append(options.min_tokens_per_second / speed if speed else None)
        if options.slo is not None:
            times = self.performance
            ratios.append(options.slo.excess(times.ttft_seconds, times.itl_seconds))
        known_ratios = [ratio for ratio in ratios if ratio is not None]
        return max(known_ratios) if len(known_ratios) == len(ratios) else None

    @cached_property
    def meets(self) -> bool:
        """Whether it is known to meet what is required."""
        return self.excess is not None and self.excess <= 1

    @property
    def affordable(self) -> bool:
        """Whether its price is known and within the limit; true without a limit."""
        limit, usd = self.options.max_price_per_hour, self.usd_per_hour
        return limit is None or (usd is not None and usd <= limit)

    @property
    def source(self) -> str:
        """The origin of the speed as text."""
        if self.engines == 1:
            return self.performance.source
        unit = "instance" if self.copies == 1 else "copy"
        load = format_concurrency(self.load.requests_per_engine)
        return f"{self.performance.source}; {self.engines} times one {unit} with {load}"

    def to_alternative(self) -> Alternative:
        """The candidate as a plan records it."""
        speed, acceptance = self.performance, self.performance.acceptance
        ttft, itl = speed.ttft_seconds, speed.itl_seconds
        return Alternative(
            tokens_per_second=self.tokens_per_second,
            low=self.low,
            high=self.total(speed.high),
            basis=self.basis,
            ttft_seconds=None if ttft is None else round(ttft, 5),
            itl_seconds=None if itl is None else round(itl, 5),
            usd_per_million_tokens=self.usd_per_million_tokens,
            acceptance_length=None if acceptance.basis == "unknown" else acceptance.length,
            acceptance_basis=acceptance.basis,
            source=self.source,
            cached_prompt_tokens=speed.cached_prompt_tokens,
            conversations=speed.conversations,
            extrapolated=speed.extrapolated,
            instance_type=self.instance.type,
            instance_count=self.count,
            copies=self.copies if self.has_copies else None,
            gpu=self.instance.gpu,
            tensor_parallel_size=self.gpus,
            price_per_hour_usd=self.usd_per_hour,
            max_concurrency=self.fit.max_concurrency,
            kv_cache_tokens=self.fit.kv_cache_tokens,
            drafter=self.drafter.name if self.drafter else None,
            k=self.k,
            verified=self.tokens_per_second is not None and self.meets and self.affordable,
            speed_source=None if self.tokens_per_second is None else self.source,
            batch=self.batch,
        )


def rank(candidates: Iterable[Candidate], by_cost: bool = True) -> list[Candidate]:
    """From best to worst: within the price limit, with a KV cache for the load, meeting what is
    required (those of unknown speed before others only if some candidate meets it, else those that
    come nearest), and by cost per token, in a batch by total cost, or without ``by_cost`` by price
    per hour. Of about the lowest cost, the lowest price per hour is first, in a batch the soonest
    end.
    """
    unsorted = list(candidates)
    if len(unsorted) < 2:
        return unsorted
    some_meet = any(candidate.meets for candidate in unsorted)

    def standing(entry: Candidate) -> tuple[tuple[bool, bool, int, float], float, float]:
        excess = entry.excess
        missed = 0 if entry.meets else 1 if (excess is None) is some_meet else 2
        cost = entry.batch.usd if entry.batch else entry.usd_per_million_tokens
        if cost is not None and not entry.batch and entry.drafter is None:
            cost *= TARGET_ALONE_COST_FACTOR
        return (
            (not entry.affordable, not entry.holds_load, missed, (excess or 0.0) * bool(missed)),
            math.inf if cost is None or not by_cost else cost,
            math.inf if entry.usd_per_hour is None else entry.usd_per_hour,
        )

    def key(entry: Candidate) -> tuple[object, ...]:
        slowness = -(entry.tokens_per_second or 0.0)
        return *standing(entry), slowness, entry.gpus, entry.instance.type

    ranked = sorted(unsorted, key=key)
    if not by_cost:
        return ranked
    best_class, lowest, _ = standing(ranked[0])
    is_batch = ranked[0].options.requests is not None
    factor = SAME_BATCH_COST_FACTOR if is_batch else SAME_COST_FACTOR

    def tie(entry: Candidate) -> tuple[bool, float]:
        other_class, cost, usd_per_hour = standing(entry)
        if other_class != best_class or cost > factor * lowest:
            return True, 0.0
        return False, entry.batch.seconds if entry.batch and entry.batch.seconds else usd_per_hour

    return sorted(ranked, key=tie)


def select_best(of_pair: Sequence[Candidate], others: Iterable[Candidate]) -> list[Candidate]:
    """The best on one type, if any fits; the pair's own drafter also where another one is faster
    by at most ``SAME_SPEED_SHARE``, with which verdicts count speeds as equal."""
    ranked = rank([*of_pair, *others])[:1]
    if not ranked or not of_pair or not ranked[0].drafter or ranked[0].options.requests is not None:
        return ranked
    first, usual = ranked[0], rank(of_pair)[0]
    least = (1 - SAME_SPEED_SHARE) * (first.tokens_per_second or 0.0)
    alike = usual.usd_per_hour == first.usd_per_hour and usual.holds_load == first.holds_load
    alike = alike and usual.meets == first.meets
    return [usual] if alike and (usual.tokens_per_second or 0.0) >= least else ranked


def find_cheapest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The lowest price per hour of those that hold the load, and that meet what is required, if
    any does."""
    priced = [c for c in candidates if c.usd_per_hour is not None and c.holds_load]
    priced = [candidate for candidate in priced if candidate.meets] or priced
    return min(priced, key=lambda candidate: candidate.usd_per_hour or 0.0, default=None)
