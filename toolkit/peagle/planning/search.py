"""Finds the instances for a load: types, numbers of GPUs and instances, drafters and K.

The user's own type is taken as it is; else the best of all is planned, and the others are shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from peagle.catalog.find import find_instance
from peagle.catalog.schema import Drafter
from peagle.catalog.tables import HERE, Instance
from peagle.fit.estimate import missing_bytes
from peagle.options import AUTO, Options
from peagle.planning.candidates import Candidate, find_cheapest, rank, select_best
from peagle.planning.load import EngineFit, Load
from peagle.planning.plan import Decisions
from peagle.planning.speculation import SelectedPair, SpeedsByK, is_drafter_named, usual_k
from peagle.planning.weights import placed_sizes, start_time
from peagle.speed.acceptance import Performance
from peagle.speed.ranking import Setting, decisive, rank_settings
from peagle.vllm.gpus import needed_capability

MOST_INSTANCES = 100
"""How many instances of one type planning takes for a load, a speed or a time."""

SMALL_K = 3
"""Often the fastest, or close to it, with many concurrent requests, where a large K loses."""

FULLY_EVALUATED_TYPES = 4
"""The number of best types on which every drafter is evaluated with every K."""

BEST = 3
"""How many candidates of the ranking a plan shows, in addition to the best on another GPU and those
with the lowest price per hour and the lowest cost per token."""

BATCH_LOADS = tuple(8 * 2**power for power in range(11))
"""Concurrent requests of the whole endpoint that are compared for a batch."""


@dataclass(frozen=True)
class Search:
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

    def with_drafter(self, drafter: Drafter | None) -> Search:
        """The same for this drafter only, or for the target alone."""
        options = self.options
        if drafter is None:
            options = options.model_copy(update={"k": None})
        return replace(self, options=options, pair=replace(self.pair, drafter=drafter), others=())

    def named(self) -> Candidate | None:
        """The best on the user's instance type, whether it fits or not; ``None`` without a type."""
        named = self.options.instance_type
        table = self.load.catalog.instances
        return self.candidate(find_instance(table, named)) if named else None

    def possible(self) -> list[Candidate]:
        """The candidate on the user's instance type if it fits; without one, the ranking of all."""
        candidate = self.named()
        if candidate is None:
            return self.ranking()
        return [candidate] if candidate.fit.fits else []

    def ranking(self, anywhere: bool = False) -> list[Candidate]:
        """The best candidate on each type that is recent and large enough, best first: without
        types that the region is known not to have, unless ``anywhere``. A plan for this machine has
        no other.

        They are ranked by cost per token where the speed of all with a price is known, else by
        price per hour.
        """
        target = self.load.target
        oldest = needed_capability(target.dtype, target.quantization)
        by_type = [
            (instance, self._candidates_on(instance, self.pair.drafter))
            for instance in self.load.catalog.instances.instances
            if instance.capability >= oldest
            and (self.options.instance_type != HERE or instance.type == HERE)
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
            best += select_best(candidates, others)
        ranked = rank(best, by_cost)
        first = [self.candidate(candidate.instance) for candidate in ranked[:FULLY_EVALUATED_TYPES]]
        ranked = [*rank(first, by_cost), *ranked[FULLY_EVALUATED_TYPES:]]
        # In a batch the lowest cost decides, be it of the rest.
        return ranked if self.options.requests is None else rank(ranked, by_cost)

    def candidate(self, instance: Instance) -> Candidate:
        """The best on this type; where nothing fits, what lacks least memory."""
        drafter = self.pair.drafter
        of_pair = self._candidates_on(instance, drafter)
        others = [*self._others_on(instance, of_pair)]
        if not of_pair and not others:
            engines = self._engines_on(instance, drafter)
            lacking = min(engines, key=lambda engine: missing_bytes(engine.case))
            nearest = self._best_k(instance, lacking, drafter, self.options.instance_count or 1)
            none = Performance("unknown", nearest.performance.acceptance, "it does not fit")
            return replace(nearest, k=usual_k(self.options, drafter), performance=none)
        sizes: dict[tuple[int, int], None] = {}
        for engine in (*of_pair, *others):
            ks = self._ks(engine.drafter)
            counted = self._count_instances(instance, engine.engine, engine.drafter, ks)
            sizes[counted.gpus, counted.count] = None
        drafters = (drafter, *(self.others if others else ()))
        # In a batch the start counts, too, so the fastest drafter is not always the cheapest.
        apart = self.options.requests is not None
        sets = [(drafter,) for drafter in drafters] if apart else [drafters]
        decided = [self._select_setting(instance, *size, each) for size in sizes for each in sets]
        return rank([best for best in decided if best] or [*of_pair, *others])[0]

    def largest(self) -> Candidate:
        """The candidate on the type with the most GPU memory, of those with a GPU for each copy."""
        types = self.load.catalog.instances.instances
        possible = [instance for instance in types if self._sizes(instance)]
        return self.candidate(max(possible, key=lambda i: (i.gpu_count * i.gpu_memory_mib, i.type)))

    def compared(self, candidate: Candidate) -> SpeedsByK:
        """The speeds with each drafter and K on the candidate's GPUs at its load."""
        load = candidate.load
        requests = load.concurrency / load.engines
        speeds: dict[tuple[str | None, int], Performance] = {}
        drafters = (self.pair.drafter, candidate.drafter, None, *self.others)
        for name, drafter in {_name(drafter): drafter for drafter in drafters}.items():
            engine = candidate.engine
            if drafter != candidate.drafter:
                k = max(self._ranking_ks(drafter))
                engine = load.engine(candidate.instance, candidate.gpus, drafter, k)
            if engine.fit.fits:
                for k in sorted({*load.compared_ks(drafter), *self._ks(drafter)}):
                    speeds[name, k] = load.performance(engine, drafter, k, requests, load.engines)
        return speeds

    def _copies(self, instance: Instance, gpus: int) -> int:
        """How many engines with ``gpus`` GPUs run on one instance: one without copies, else the
        given number, or as many as fit and as get a request."""
        copies = self.options.copies
        if copies is None or copies != AUTO:
            return copies or 1
        requests = math.ceil(self.load.concurrency / (self.options.instance_count or 1))
        return max(1, min(instance.gpu_count // gpus, requests))

    def _sizes(self, instance: Instance) -> Sequence[int]:
        """The numbers of GPUs that one engine may have; empty where the copies do not fit."""
        copies = self.options.copies
        each = instance.gpu_count // (copies if isinstance(copies, int) else 1)
        return self.load.divisions(each) if each else ()

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
        tried = [
            self._make_candidate(self.load, instance, engine, drafter, count, k)
            for k in ks or self._ranking_ks(drafter)
        ]
        comparable = [engine for engine in tried if engine.basis != "unknown"]
        if not comparable:
            k = usual_k(self.options, drafter)
            return self._make_candidate(self.load, instance, engine, drafter, count, k)
        return min(decisive(comparable), key=lambda c: (not c.meets, -(c.tokens_per_second or 0)))

    def _make_candidate(
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
                decisions = Decisions()
                self._starts[key] = start_time(options, sizes, gpus, self.load, instance, decisions)
            start = self._starts[key]
        copies = self._copies(instance, gpus)
        busy = min(count * copies, requests)
        return Candidate(
            options=options,
            instance=instance,
            engine=engine,
            drafter=drafter,
            k=k,
            count=count,
            load=replace(self.load, engines=busy),
            region=self.region,
            performance=by_load.performance(engine, drafter, k, requests / busy, busy),
            copies=copies,
            start_seconds=start,
        )

    def _select_setting(
        self, instance: Instance, gpus: int, count: int, drafters: Sequence[Drafter | None]
    ) -> Candidate | None:
        """``count`` instances with engines on so many GPUs, with the drafter of these and the K
        that a verdict selects for the load of one engine (``rank_settings``): of those that hold
        the load and meet what is required, if any do. ``None`` where no speed is known."""
        requests, by_load = self.load.concurrency, self.load
        busy = min(count * self._copies(instance, gpus), requests)
        if busy > 1:
            by_load = replace(self.load, concurrency=math.ceil(requests / busy))
        settings: dict[Setting, Candidate] = {}
        for name, drafter in {_name(drafter): drafter for drafter in drafters}.items():
            for k in self._ks(drafter):
                engine = by_load.engine(instance, gpus, drafter, k)
                if engine.fit.fits and self.load.engine(instance, gpus, drafter, k).fit.fits:
                    candidate = self._make_candidate(by_load, instance, engine, drafter, count, k)
                    if candidate.tokens_per_second:
                        settings[Setting(drafter=name, k=k)] = candidate
        settings = {key: c for key, c in settings.items() if c.holds_load} or settings
        settings = {key: c for key, c in settings.items() if c.meets} or settings
        speeds = {key: candidate.performance for key, candidate in settings.items()}
        tied = rank_settings(speeds, self.load.target.default_drafter).tied
        if not tied:
            return None
        best = settings[tied[0]]
        engine = best.load.engine(instance, gpus, best.drafter, best.k)
        return self._make_candidate(best.load, instance, engine, best.drafter, count, best.k)

    def _others_on(self, instance: Instance, of_pair: list[Candidate]) -> Iterator[Candidate]:
        """Candidates without speculation and with the target's other drafters, where speeds can be
        compared: with a measured one those that are measured, too."""
        if any(candidate.tokens_per_second is None for candidate in of_pair):
            return
        measured = any(candidate.basis == "measured" for candidate in of_pair)
        bases = ("measured",) if measured else ("measured", "estimated")
        for drafter in self.others:
            for candidate in self._candidates_on(instance, drafter):
                if candidate.basis in bases:
                    yield candidate

    def _candidates_on(self, instance: Instance, drafter: Drafter | None) -> list[Candidate]:
        """As ``_engines_on``, with as many instances as the load needs; only on GPUs that were
        measured, if any were. Types with equal GPUs differ in their prices and, in a batch, in
        nothing else."""
        kind = instance.gpu, instance.gpu_memory_mib, instance.gpu_architecture
        key = *kind, instance.gpu_count, _name(drafter)
        if key not in self._candidates:
            engines = [each for each in self._engines_on(instance, drafter) if each.fit.fits]
            counted = [self._count_instances(instance, engine, drafter) for engine in engines]
            # Of numbers of GPUs, such as eight where one was measured.
            self._candidates[key] = decisive(counted)
        candidates = self._candidates[key]
        if not candidates or candidates[0].instance is instance:
            return candidates
        return [replace(candidate, instance=instance) for candidate in candidates]

    def _count_instances(
        self,
        instance: Instance,
        engine: EngineFit,
        drafter: Drafter | None,
        ks: Sequence[int] = (),
    ) -> Candidate:
        """The engine on the instance count of the options, else on the smallest that holds the load
        and meets what is required, within the bounds of scaling; if none is known to, on the one
        that comes nearest. ``ks`` as in ``_best_k``."""
        options, requests = self.options, self.load.concurrency
        if options.instance_count is not None:
            return self._best_k(instance, engine, drafter, options.instance_count, ks)
        least, limit = options.min_instances or 1, options.max_instances or MOST_INSTANCES
        most = max(least, min(requests, limit))
        copies = self._copies(instance, engine.fit.tensor_parallel_size)
        held = max(engine.most_requests, 1) * copies
        low = max(least, min(most, math.ceil(requests / held)))
        fewest = self._best_k(instance, engine, drafter, low, ks)
        if fewest.meets or fewest.excess is None:
            return fewest
        enough = self._best_k(instance, engine, drafter, most, ks)
        if not enough.meets:
            return min(fewest, enough, key=lambda candidate: candidate.excess or math.inf)
        while enough.count - low > 1:
            middle = self._best_k(instance, engine, drafter, (low + enough.count) // 2, ks)
            if middle.meets:
                enough = middle
            else:
                low = middle.count
        return enough

    def _engines_on(self, instance: Instance, drafter: Drafter | None) -> list[EngineFit]:
        """On the fewest GPUs that hold the load and on all; copies on each number of GPUs."""
        k, sizes = max(self._ranking_ks(drafter)), self._sizes(instance)
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


@dataclass(frozen=True)
class Selection:
    """The instances to plan, and what decided: ``ranked`` are all that fit, best first;
    ``speculating`` and ``alone`` those with a drafter and without, only the user's instance type if
    there is one. ``unknown`` is what was not planned since its speed is unknown; ``search`` reviews
    the candidate. Where nothing fits, the largest type is the candidate, and ``ranked`` is empty.
    """

    search: Search
    candidate: Candidate
    ranked: Sequence[Candidate] = ()
    speculating: Sequence[Candidate] = ()
    alone: Sequence[Candidate] = ()
    unknown: Candidate | None = None

    def shown(self) -> list[Candidate]:
        """The best, the best on another GPU, and those with the lowest price per hour and the
        lowest cost per token; none above the price limit or below what is required, unless all
        are."""
        allowed = [other for other in self.ranked if other.affordable] or self.ranked
        allowed = [other for other in allowed if other.meets] or allowed
        best = [*allowed[:BEST]]
        another = (other for other in allowed if other.instance.gpu != best[0].instance.gpu)
        holding = (other for other in allowed if other.usd_per_million_tokens and other.holds_load)
        least = min(holding, key=lambda other: other.usd_per_million_tokens or 0.0, default=None)
        for other in (next(another, None), find_cheapest(allowed), least):
            if other is not None and other not in best:
                best.append(other)
        return best


def select(search: Search, target_alone: Search | None = None) -> Selection:
    """The user's instance type, or the best of the ranking. ``target_alone`` evaluates the target
    without speculation, where its load is another one. Raises NotFound for an unknown type."""
    considered = search.named()
    ranked = search.ranking() or search.ranking(anywhere=True)
    if considered is None and not ranked:
        return Selection(search, search.largest())
    without = target_alone or search.with_drafter(None)
    alone = without.possible()
    is_named, considered = considered is not None, considered or ranked[0]
    drafter = considered.drafter or search.pair.drafter
    speculating = search.with_drafter(drafter).possible() if drafter else []
    if considered.drafter is None and not is_named:
        speculating = rank([*speculating, *(other for other in ranked if other.drafter)])
    candidate, unknown = prefer_known_speed(considered, alone), None
    if candidate is not considered:
        unknown, ranked, search = considered, without.ranking(), search.with_drafter(None)
    return Selection(search, candidate, ranked, speculating, alone, unknown)


def prefer_known_speed(candidate: Candidate, alone: Sequence[Candidate]) -> Candidate:
    """The candidate, or the target alone in its place: where the speed with its drafter is
    unknown, the user did not name it, and that of the target alone is known, costs less per
    hour, or meets what is required. A verdict, which selects known speeds only, is the same."""
    unknown = candidate.tokens_per_second is None and candidate.fit.fits
    if candidate.drafter is None or not unknown or is_drafter_named(candidate.options) or not alone:
        return candidate
    best, cheapest = alone[0], find_cheapest(alone) or alone[0]
    if candidate.holds_load and not best.holds_load:
        return candidate
    certain = best.tokens_per_second is not None or (best.meets and not candidate.meets)
    prices = [each.usd_per_hour or math.inf for each in (cheapest, candidate)]
    return best if certain or prices[0] < prices[1] else candidate
