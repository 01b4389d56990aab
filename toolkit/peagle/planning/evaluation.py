"""Evaluates instance types for one load: drafters, K, and the numbers of GPUs and instances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from peagle.catalog.schema import Drafter
from peagle.catalog.tables import Instance
from peagle.fit.estimate import missing_bytes
from peagle.options import Options
from peagle.planning.candidates import Candidate, best_of, measured_first, rank
from peagle.planning.copies import copies_on, sizes_of_copies
from peagle.planning.drafter import SelectedPair
from peagle.planning.engines import EngineFit, Load
from peagle.planning.runtime import price_in
from peagle.planning.speculation import SpeedsByK, usual_k
from peagle.planning.start import start_time
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


@dataclass(frozen=True)
class Evaluator:
    """Evaluates instance types for one load, whose concurrency is that of the whole endpoint.

    The drafters of ``others`` are compared with that of ``pair``, ``None`` for the target alone.
    """

    options: Options
    pair: SelectedPair
    load: Load
    region: str
    others: tuple[Drafter | None, ...] = ()
    _candidates: dict[tuple[object, ...], list[Candidate]] = field(default_factory=dict)
    _starts: dict[tuple[object, ...], int] = field(default_factory=dict)

    def with_drafter(self, drafter: Drafter | None) -> Evaluator:
        """The same evaluator for this drafter only, or for the target alone."""
        options = self.options
        if drafter is None:
            options = options.model_copy(update={"k": None})
        pair = replace(self.pair, drafter=drafter)
        return replace(self, options=options, pair=pair, others=())

    def with_options(self, **changed: Any) -> Evaluator:
        """The same evaluator with other K, or another number of instances."""
        options = self.options.model_copy(update=changed)
        return replace(self, options=options, _candidates={})

    def fitting(self, anywhere: bool = False) -> list[Candidate]:
        """The best candidate on each type that is recent and large enough, best first: without
        types that the region is known not to have, unless ``anywhere``.

        They are ranked by cost per token where the speed of all with a price is known, else by
        price per hour.
        """
        target = self.load.target
        oldest = needed_capability(target.dtype, target.quantization)
        by_type = [
            (instance, self._on(instance, self.pair.drafter))
            for instance in self.load.catalog.instances.instances
            if instance.capability >= oldest
            and (anywhere or instance.hosted_in(self.region) is not False)
        ]
        by_cost = all(
            candidate.tokens_per_second is not None
            for _, candidates in by_type
            for candidate in candidates
            if candidate.usd_per_hour
        )
        best: list[Candidate] = []
        for instance, candidates in by_type:
            others = self._others_on(instance, candidates) if by_cost or candidates else ()
            best += best_of(candidates, others)
        ranked = rank(best, by_cost)
        first = [self.candidate(candidate.instance) for candidate in ranked[:FULLY_EVALUATED_TYPES]]
        ranked = [*rank(first, by_cost), *ranked[FULLY_EVALUATED_TYPES:]]
        if self.options.requests is not None:  # the lowest cost decides, be it of the rest
            ranked = rank(ranked, by_cost)
        return ranked

    def candidate(self, instance: Instance) -> Candidate:
        """The best on this type; where nothing fits, what lacks least memory."""
        drafter = self.pair.drafter
        of_pair = self._on(instance, drafter)
        others = [*self._others_on(instance, of_pair)]
        if not of_pair and not others:
            lacking = min(
                self._engines_on(instance, drafter), key=lambda engine: missing_bytes(engine.case)
            )
            count = self.options.instance_count or 1
            nearest = self._best_k(instance, lacking, drafter, count)
            none = Performance("unknown", nearest.performance.acceptance, "it does not fit")
            return replace(nearest, k=usual_k(self.options, drafter), performance=none)
        sizes: dict[tuple[int, int], None] = {}
        for engine in (*of_pair, *others):
            ks = self._ks(engine.drafter)
            counted = self._counted(instance, engine.engine, engine.drafter, ks)
            sizes[counted.gpus, counted.count] = None
        drafters = (drafter, *(self.others if others else ()))
        # In a batch the start counts, too, so the fastest drafter is not always the cheapest.
        by_cost = self.options.requests is not None
        sets = [(drafter,) for drafter in drafters] if by_cost else [drafters]
        decided = [self._decided(instance, *size, each) for size in sizes for each in sets]
        return rank([best for best in decided if best] or [*of_pair, *others])[0]

    def largest(self) -> Candidate:
        """The candidate on the type with the most GPU memory, of those with a GPU for each copy."""
        types = [
            instance
            for instance in self.load.catalog.instances.instances
            if sizes_of_copies(self.options, self.load.target.architecture, instance)
        ]
        return self.candidate(max(types, key=lambda i: (i.gpu_count * i.gpu_memory_mib, i.type)))

    def compared(self, candidate: Candidate) -> SpeedsByK:
        """The speeds with each drafter and K on the candidate's GPUs at its load."""
        requests = self.load.concurrency / candidate.busy
        speeds: dict[tuple[str | None, int], Performance] = {}
        drafters = (self.pair.drafter, candidate.drafter, None, *self.others)
        for name, drafter in {_name(drafter): drafter for drafter in drafters}.items():
            engine = candidate.engine
            if drafter != candidate.drafter:
                k = max(self._ranking_ks(drafter))
                engine = self.load.engine(candidate.instance, candidate.gpus, drafter, k)
            if engine.fit.fits:
                for k in sorted({*self.load.compared_ks(drafter), *self._ks(drafter)}):
                    speeds[name, k] = self.load.performance(
                        engine, drafter, k, requests, candidate.busy
                    )
        return SpeedsByK(requests, speeds)

    def _best_k(
        self,
        instance: Instance,
        engine: EngineFit,
        drafter: Drafter | None,
        count: int,
        ks: Sequence[int] = (),
    ) -> Candidate:
        """``count`` instances with the best of ``ks``, by default the few by which candidates are
        ranked; the usual K where no speed is known."""
        ks = ks or self._ranking_ks(drafter)
        tried = [self._sharing(self.load, instance, engine, drafter, count, k) for k in ks]
        comparable = [engine for engine in tried if engine.performance.basis != "unknown"]
        if not comparable:
            k = usual_k(self.options, drafter)
            return self._sharing(self.load, instance, engine, drafter, count, k)
        return min(
            measured_first(comparable), key=lambda c: (not c.meets, -(c.tokens_per_second or 0))
        )

    def _sharing(
        self,
        by_load: Load,
        instance: Instance,
        engine: EngineFit,
        drafter: Drafter | None,
        count: int,
        k: int,
    ) -> Candidate:
        """``count`` instances whose engines share the load evenly, with this K; their speed is that
        of an engine planned for ``by_load``."""
        options, requests, start = self.options, self.load.concurrency, 0
        gpus = engine.fit.tensor_parallel_size
        if options.requests is not None:
            # In a batch the start is billed, and part of the time.
            key = instance.gpu, gpus, _name(drafter)
            if key not in self._starts:
                sizes = placed_sizes(options, replace(self.pair, drafter=drafter), self.load)
                seconds = start_time(options, sizes, gpus, self.load, instance).value
                self._starts[key] = seconds
            start = self._starts[key]
        copies = copies_on(options, instance, gpus, requests)
        busy = min(count * copies, requests)
        price = price_in(instance, self.region)
        return Candidate(
            asked=options,
            instance=instance,
            engine=engine,
            drafter=drafter,
            k=k,
            count=count,
            load=math.ceil(requests / busy),
            busy=busy,
            usd_per_hour=None if price is None else round(price.usd_per_hour * count, 4),
            performance=by_load.performance(engine, drafter, k, requests / busy, busy),
            copies=copies,
            start_seconds=start,
        )

    def _decided(
        self, instance: Instance, gpus: int, count: int, drafters: Sequence[Drafter | None]
    ) -> Candidate | None:
        """``count`` instances with engines on so many GPUs, with the drafter of these and the K
        that a verdict selects for the load of one engine (``rank_settings``): of those that hold
        the load and meet what is required, if any do. ``None`` where no speed is known."""
        requests = self.load.concurrency
        busy = min(count * copies_on(self.options, instance, gpus, requests), requests)
        by_load = self.load
        if math.ceil(requests / busy) != requests:
            by_load = replace(self.load, concurrency=math.ceil(requests / busy))
        settings: dict[Setting, Candidate] = {}
        for name, drafter in {_name(drafter): drafter for drafter in drafters}.items():
            for k in self._ks(drafter):
                engine = by_load.engine(instance, gpus, drafter, k)
                if engine.fit.fits and self.load.engine(instance, gpus, drafter, k).fit.fits:
                    candidate = self._sharing(by_load, instance, engine, drafter, count, k)
                    if candidate.tokens_per_second:
                        settings[Setting(drafter=name, k=k)] = candidate
        holding = {key: candidate for key, candidate in settings.items() if candidate.holds_load}
        settings = holding or settings
        meeting = {key: candidate for key, candidate in settings.items() if candidate.meets}
        settings = meeting or settings
        speeds = {key: candidate.performance for key, candidate in settings.items()}
        tied = rank_settings(speeds, self.load.target.default_drafter).tied
        if not tied:
            return None
        best = settings[tied[0]]
        engine = self.load.engine(instance, gpus, best.drafter, best.k)
        return self._sharing(self.load, instance, engine, best.drafter, count, best.k)

    def _others_on(self, instance: Instance, of_pair: list[Candidate]) -> Iterator[Candidate]:
        """Candidates without speculation and with the target's other drafters, where speeds can be
        compared: with a measured one those that are measured, too."""
        if any(candidate.tokens_per_second is None for candidate in of_pair):
            return
        measured = any(candidate.performance.basis == "measured" for candidate in of_pair)
        bases = ("measured",) if measured else ("measured", "estimated")
        for drafter in self.others:
            for candidate in self._on(instance, drafter):
                if candidate.performance.basis in bases:
                    yield candidate

    def _on(self, instance: Instance, drafter: Drafter | None) -> list[Candidate]:
        """As ``_engines_on``, with as many instances as the load needs; only on GPUs that were
        measured, if any were. Types with equal GPUs differ in their prices and, in a batch, in
        nothing else."""
        kind = instance.gpu, instance.gpu_memory_mib, instance.gpu_architecture
        key = *kind, instance.gpu_count, _name(drafter)
        if key not in self._candidates:
            engines = self._engines_on(instance, drafter)
            self._candidates[key] = measured_first(
                [self._counted(instance, engine, drafter) for engine in engines if engine.fit.fits]
            )
        price, candidates = price_in(instance, self.region), self._candidates[key]
        if not candidates or candidates[0].instance is instance:
            return candidates
        return [
            replace(
                candidate,
                instance=instance,
                usd_per_hour=None
                if price is None
                else round(price.usd_per_hour * candidate.count, 4),
            )
            for candidate in candidates
        ]

    def _counted(
        self,
        instance: Instance,
        engine: EngineFit,
        drafter: Drafter | None,
        ks: Sequence[int] = (),
    ) -> Candidate:
        """The instance count of the options, else the smallest that holds the load and meets what
        is required, within the bounds of scaling; if none is known to, the one that comes nearest.
        ``ks`` as in ``_best_k``."""
        options, requests = self.options, self.load.concurrency

        def with_count(count: int) -> Candidate:
            return self._best_k(instance, engine, drafter, count, ks)

        if options.instance_count is not None:
            return with_count(options.instance_count)
        least, limit = options.min_instances or 1, options.max_instances or MOST_INSTANCES
        most = max(least, min(requests, limit))
        copies = copies_on(options, instance, engine.fit.tensor_parallel_size, requests)
        held = max(engine.most_requests, 1) * copies
        low = max(least, min(most, math.ceil(requests / held)))
        fewest = with_count(low)
        if fewest.meets or fewest.excess is None:
            return fewest
        enough = with_count(most)
        if not enough.meets:
            return min(fewest, enough, key=lambda candidate: candidate.excess or math.inf)
        while enough.count - low > 1:
            middle = with_count((low + enough.count) // 2)
            if middle.meets:
                enough = middle
            else:
                low = middle.count
        return enough

    def _engines_on(self, instance: Instance, drafter: Drafter | None) -> list[EngineFit]:
        """On the fewest GPUs that hold the load and on all; copies on each number of GPUs."""
        k = max(self._ranking_ks(drafter))
        sizes = sizes_of_copies(self.options, self.load.target.architecture, instance)
        engines: list[EngineFit] = []
        for size in sizes:
            enough = engines and self.load.concurrency <= engines[-1].most_requests
            if enough and self.options.copies is None and size != sizes[-1]:
                continue
            engines.append(self.load.engine(instance, size, drafter, k))
        return engines

    def _ks(self, drafter: Drafter | None) -> tuple[int, ...]:
        """The user's K, else all that are compared."""
        if self.options.k is not None and drafter is not None:
            return (self.options.k,)
        return self.load.compared_ks(drafter)

    def _ranking_ks(self, drafter: Drafter | None) -> tuple[int, ...]:
        """A small and the recommended K: enough to rank, and cheap."""
        ks, usual = self._ks(drafter), usual_k(self.options, drafter)
        return tuple(k for k in ks if k in (usual, SMALL_K)) or ks


def _name(drafter: Drafter | None) -> str | None:
    return drafter.name if drafter else None
