"""Evaluates instance types for one load: drafters, K, and the numbers of GPUs and instances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from peagle.catalog.schema import Drafter
from peagle.catalog.tables import Instance
from peagle.fit.estimate import missing_bytes
from peagle.planning.candidates import (
    Candidate,
    InstanceFit,
    PairLoad,
    best_of,
    rank,
)
from peagle.planning.copies import copies_on, sizes_of_copies
from peagle.planning.drafter import SelectedPair
from peagle.planning.load_cache import LoadCache, cache_for, gpu_key, name_of
from peagle.planning.options import Options
from peagle.planning.prices import price_in
from peagle.planning.speculation import SpeedsByK, usual_k
from peagle.planning.start_time import start_time
from peagle.planning.weights import placed_sizes
from peagle.speed.decision import rank_settings
from peagle.speed.models import Performance
from peagle.speed.verdict import Setting
from peagle.vllm.gpus import needed_capability

MOST_INSTANCES = 100
"""How many instances of one type planning takes for a load, a speed or a time."""

SMALL_K = 3
"""Often the fastest, or close to it, with many concurrent requests, where a large K loses."""

FULLY_EVALUATED_TYPES = 4
"""The number of best types on which every drafter is evaluated with every K."""


@dataclass
class _CandidateCache:
    """The candidates of one set of options on a type, or on types with equal GPUs, with a
    drafter."""

    on_type: dict[tuple[str, str | None], list[Candidate]] = field(default_factory=dict)
    on_equal_gpus: dict[tuple[object, ...], list[Candidate]] = field(default_factory=dict)


class CandidateEvaluator:
    """Evaluates instance types for one load.

    ``work`` has the drafter of ``pair``, its usual K and the concurrency of the whole endpoint.
    ``others`` are compared with that drafter, ``None`` for the target alone. ``by_load`` caches
    fits and speeds, ``by_options`` the candidates of evaluators with the same options.
    """

    def __init__(
        self,
        options: Options,
        pair: SelectedPair,
        work: PairLoad,
        region: str,
        others: tuple[Drafter | None, ...],
        by_load: LoadCache | None = None,
        by_options: _CandidateCache | None = None,
    ) -> None:
        self.options, self.pair, self.work = options, pair, work
        self._region = region
        self._by_load = by_load or cache_for(work)
        self._by_options = by_options or _CandidateCache()
        self._others = others
        self._starts: dict[tuple[str, int, str | None], int] = {}

    def fitting(self, anywhere: bool = False) -> list[Candidate]:
        """The best candidate on each type that is recent and large enough, best first: without
        types that the region is known not to have, unless ``anywhere``.

        They are ranked by cost per token where the speed of all with a price is known, else by
        price per hour.
        """
        oldest = needed_capability(self.work.target.dtype, self.work.target.quantization)
        types = self.work.catalog.instances.instances
        by_type = [
            (instance, self._on(instance, self.pair.drafter))
            for instance in types
            if instance.capability >= oldest
            and (anywhere or instance.hosted_in(self._region) is not False)
        ]
        priced = [engine for _, engines in by_type for engine in engines if engine.usd_per_hour]
        by_cost = all(engine.tokens_per_second is not None for engine in priced)
        best: list[Candidate] = []
        for instance, engines in by_type:
            others = self._with_others(instance, engines, by_cost or bool(engines))
            best += best_of(self.options, engines, others)
        ranked = rank(self.options, best, by_cost)
        first = [self.candidate(engine.instance) for engine in ranked[:FULLY_EVALUATED_TYPES]]
        rest = ranked[FULLY_EVALUATED_TYPES:]
        ranked = [*rank(self.options, first, by_cost), *rest]
        if self.options.requests is not None:  # the lowest cost decides, be it of the rest
            ranked = rank(self.options, ranked, by_cost)
        return ranked

    def candidate(self, instance: Instance) -> Candidate:
        """The best on this type; where nothing fits, what lacks least memory."""
        of_pair = self._on(instance, self.pair.drafter)
        others = [*self._with_others(instance, of_pair, True)]
        engines = [*of_pair, *others]
        counted = (
            self._with_count(engine.on_instance, engine.drafter, self._ks(engine.drafter))
            for engine in engines
        )
        sizes = dict.fromkeys((engine.fit.tensor_parallel_size, engine.count) for engine in counted)
        drafters = (self.pair.drafter, *(self._others if others else ()))
        # In a batch the start counts, too, so the fastest drafter is not always the cheapest.
        by_cost = self.options.requests is not None
        sets = [(drafter,) for drafter in drafters] if by_cost else [drafters]
        decided = [self._decided(instance, *size, each) for size in sizes for each in sets]
        if engines:
            return rank(self.options, [engine for engine in decided if engine] or engines)[0]
        drafter = self.pair.drafter
        tried = self._fits_on(instance, drafter)
        least = min(tried, key=lambda on_instance: missing_bytes(on_instance.case))
        nearest = self.shared(least, drafter, self.options.instance_count or 1)
        none = Performance("unknown", nearest.performance.acceptance, "it does not fit")
        return replace(nearest, k=usual_k(self.options, drafter), performance=none)

    def largest(self) -> Candidate:
        """The candidate on the type with the most GPU memory, of those with a GPU for each copy."""
        shape = self.work.target.architecture
        every = self.work.catalog.instances.instances
        types = filter(lambda i: sizes_of_copies(self.options, shape, i), every)
        return self.candidate(max(types, key=lambda i: (i.gpu_count * i.gpu_memory_mib, i.type)))

    def with_drafter(self, drafter: Drafter | None) -> CandidateEvaluator:
        """The same evaluator for this drafter only, or for the target alone."""
        options = self.options
        if drafter is None:
            options = options.model_copy(update={"k": None})
        pair = replace(self.pair, drafter=drafter)
        work = replace(self.work, drafter=drafter, k=usual_k(self.options, drafter))
        return CandidateEvaluator(
            options, pair, work, self._region, (), self._by_load, self._by_options
        )

    def with_options(self, **changed: Any) -> CandidateEvaluator:
        """The same evaluator with other K, or another number of instances."""
        options = self.options.model_copy(update=changed)
        others, by_load = self._others, self._by_load
        return CandidateEvaluator(options, self.pair, self.work, self._region, others, by_load)

    def compared(self, candidate: Candidate) -> SpeedsByK:
        """The speeds with each drafter and K on the candidate's GPUs at its load."""
        instance, load = candidate.instance, self.work.concurrency / candidate.busy
        size = candidate.fit.tensor_parallel_size
        speeds: dict[tuple[str | None, int], Performance] = {}
        drafters = (self.pair.drafter, candidate.drafter, None, *self._others)
        for name, drafter in {name_of(drafter): drafter for drafter in drafters}.items():
            ks = {*self._by_load.ks(drafter), *self._ks(drafter)}
            on_instance = self._by_load.fit(instance, size, drafter, max(self._ranking_ks(drafter)))
            if drafter == candidate.drafter:
                on_instance = candidate.on_instance
            if on_instance.fit.fits:
                for k in sorted(ks):
                    speeds[name, k] = self._by_load.performance(
                        on_instance, drafter, k, load, candidate.busy
                    )
        return SpeedsByK(load, speeds)

    def work_on(self, candidate: Candidate) -> PairLoad:
        """The workload with this candidate's drafter and K."""
        return replace(self.work, drafter=candidate.drafter, k=candidate.k)

    def shared(
        self, on: InstanceFit, drafter: Drafter | None, count: int, ks: Sequence[int] = ()
    ) -> Candidate:
        """``count`` instances whose engines share the load evenly, with the best of ``ks``, by
        default the few by which candidates are ranked; the usual K where no speed is known."""
        tried = [self._sharing(on, drafter, count, k) for k in ks or self._ranking_ks(drafter)]
        if comparable := [engine for engine in tried if engine.performance.basis != "unknown"]:
            return min(
                _measured_first(comparable),
                key=lambda c: (not c.meets(self.options), -(c.tokens_per_second or 0)),
            )
        return self._sharing(on, drafter, count, usual_k(self.options, drafter))

    def _sharing(
        self,
        on: InstanceFit,
        drafter: Drafter | None,
        count: int,
        k: int,
        by_load: LoadCache | None = None,
    ) -> Candidate:
        """``count`` instances whose engines share the load evenly, with this K. ``by_load`` has
        ``on``."""
        copies, busy = self._engines(on.instance, on.fit.tensor_parallel_size, count)
        load = self.work.concurrency / busy
        usd = self._usd_per_hour(on.instance, count)
        performance = (by_load or self._by_load).performance(on, drafter, k, load, busy)
        start = 0
        if self.options.requests is not None:
            start = self._start_seconds(on, drafter)
        load = math.ceil(load)
        return Candidate(on, drafter, k, count, load, busy, usd, performance, copies, start)

    def _start_seconds(self, on: InstanceFit, drafter: Drafter | None) -> int:
        """Until a new instance answers; in a batch, where that is billed and part of the time."""
        key = (on.instance.gpu, on.fit.tensor_parallel_size, name_of(drafter))
        if key not in self._starts:
            work = replace(self.work, drafter=drafter)
            pair = replace(self.pair, drafter=drafter)
            sizes = placed_sizes(self.options, pair, work)
            gpus = on.fit.tensor_parallel_size
            self._starts[key] = start_time(self.options, sizes, gpus, work, on.instance).value
        return self._starts[key]

    def _engines(self, instance: Instance, size: int, count: int) -> tuple[int, int]:
        """The engines with ``size`` GPUs on one instance, and how many on ``count`` instances have
        requests."""
        copies = copies_on(self.options, instance, size, self.work.concurrency)
        return copies, min(count * copies, self.work.concurrency)

    def _decided(
        self, instance: Instance, size: int, count: int, drafters: Sequence[Drafter | None]
    ) -> Candidate | None:
        """``count`` instances with engines on ``size`` GPUs, with the drafter of these and the K
        that a verdict selects for the load of one engine (``rank_settings``): of those that hold
        the load and meet what is required, if any do. ``None`` where no speed is known."""
        _, busy = self._engines(instance, size, count)
        work = replace(self.work, concurrency=math.ceil(self.work.concurrency / busy))
        by_load = self._by_load if work == self.work else cache_for(work)
        settings: dict[Setting, Candidate] = {}
        for name, drafter in {name_of(drafter): drafter for drafter in drafters}.items():
            for k in self._ks(drafter):
                on, planned = (
                    cache.fit(instance, size, drafter, k) for cache in (by_load, self._by_load)
                )
                if on.fit.fits and planned.fit.fits:
                    engine = self._sharing(on, drafter, count, k, by_load)
                    if engine.tokens_per_second:
                        settings[Setting(drafter=name, k=k)] = engine
        settings = {
            key: engine for key, engine in settings.items() if engine.holds_load
        } or settings
        meeting = {key: engine for key, engine in settings.items() if engine.meets(self.options)}
        settings = meeting or settings
        speeds = {key: engine.performance for key, engine in settings.items()}
        tied = rank_settings(speeds, self.work.target.default_drafter).tied
        if not tied:
            return None
        best = settings[tied[0]]
        on = self._by_load.fit(instance, size, best.drafter, best.k)
        return self._sharing(on, best.drafter, count, best.k)

    def _with_others(
        self, instance: Instance, of_pair: list[Candidate], allowed: bool
    ) -> Iterator[Candidate]:
        """Candidates without speculation and with the target's other drafters, where speeds can be
        compared: with a measured one those that are measured, too."""
        if not allowed or any(engine.tokens_per_second is None for engine in of_pair):
            return
        measured = any(engine.performance.basis == "measured" for engine in of_pair)
        bases = ("measured",) if measured else ("measured", "estimated")
        for drafter in self._others:
            engines = self._on(instance, drafter)
            yield from (engine for engine in engines if engine.performance.basis in bases)

    def _on(self, instance: Instance, drafter: Drafter | None) -> list[Candidate]:
        """As ``_fits_on``, with as many instances as the load needs; only on GPUs that were
        measured, if any were. Types with equal GPUs differ in their prices only."""
        key = (instance.type, name_of(drafter))
        cache = self._by_options
        if key not in cache.on_type:
            equal = (*gpu_key(instance), instance.gpu_count, name_of(drafter))
            if equal not in cache.on_equal_gpus:
                fits = self._fits_on(instance, drafter)
                cache.on_equal_gpus[equal] = _measured_first(
                    [self._with_count(on, drafter) for on in fits if on.fit.fits]
                )
            candidates = cache.on_equal_gpus[equal]
            cache.on_type[key] = [self._moved(candidate, instance) for candidate in candidates]
        return cache.on_type[key]

    def _moved(self, candidate: Candidate, to: Instance) -> Candidate:
        """The candidate on another type with the same GPUs."""
        if to is candidate.instance:
            return candidate
        on_instance = replace(candidate.on_instance, instance=to)
        usd = self._usd_per_hour(to, candidate.count)
        return replace(candidate, on_instance=on_instance, usd_per_hour=usd)

    def _usd_per_hour(self, instance: Instance, count: int) -> float | None:
        """The price of ``count`` of these instances; ``None`` if it is unknown."""
        price = price_in(instance, self._region)
        return None if price is None else round(price.usd_per_hour * count, 4)

    def _with_count(
        self, on: InstanceFit, drafter: Drafter | None, ks: Sequence[int] = ()
    ) -> Candidate:
        """The instance count of the options, else the smallest that holds the load and meets what
        is required, within the bounds of scaling; if none is known to, the one that comes nearest.
        ``ks`` as in ``shared``."""
        if self.options.instance_count is not None:
            return self.shared(on, drafter, self.options.instance_count, ks)
        least, limit = self.options.min_instances or 1, self.options.max_instances or MOST_INSTANCES
        most = max(least, min(self.work.concurrency, limit))
        copies, _ = self._engines(on.instance, on.fit.tensor_parallel_size, 1)
        held = max(on.most_requests, 1) * copies
        low = min(most, math.ceil(self.work.concurrency / held))
        low = max(least, low)
        fewest = self.shared(on, drafter, low, ks)
        if fewest.meets(self.options) or fewest.excess(self.options) is None:
            return fewest
        enough = self.shared(on, drafter, most, ks)
        if not enough.meets(self.options):
            return min(fewest, enough, key=lambda engine: engine.excess(self.options) or math.inf)
        while enough.count - low > 1:
            middle = self.shared(on, drafter, (low + enough.count) // 2, ks)
            if middle.meets(self.options):
                enough = middle
            else:
                low = middle.count
        return enough

    def _fits_on(self, instance: Instance, drafter: Drafter | None) -> list[InstanceFit]:
        """On the fewest GPUs that hold the load and on all; copies on each number of GPUs."""
        k = max(self._ranking_ks(drafter))
        sizes = sizes_of_copies(self.options, self.work.target.architecture, instance)
        if self.options.copies is not None or not sizes:
            return [self._by_load.fit(instance, size, drafter, k) for size in sizes]
        *some, most = sizes
        fits: list[InstanceFit] = []
        for size in some:
            fits.append(self._by_load.fit(instance, size, drafter, k))
            if fits[-1].holds(self.work.concurrency):
                break
        return [*fits, self._by_load.fit(instance, most, drafter, k)]

    def _ks(self, drafter: Drafter | None) -> tuple[int, ...]:
        """The user's K, else all that are compared."""
        if self.options.k is not None and drafter is not None:
            return (self.options.k,)
        return self._by_load.ks(drafter)

    def _ranking_ks(self, drafter: Drafter | None) -> tuple[int, ...]:
        """A small and the recommended K: enough to rank, and cheap."""
        ks = self._ks(drafter)
        return tuple(k for k in ks if k == usual_k(self.options, drafter) or k == SMALL_K) or ks


def _measured_first(candidates: list[Candidate]) -> list[Candidate]:
    """The measured ones, if any: an estimate does not decide against a measurement."""
    return [engine for engine in candidates if engine.performance.basis == "measured"] or candidates
