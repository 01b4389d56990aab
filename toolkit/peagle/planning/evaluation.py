"""Evaluates instance types for one load: drafters, K, and the numbers of GPUs and instances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from peagle.catalog.schema import Drafter
from peagle.catalog.tables import Instance
from peagle.fit.advice import divisions
from peagle.fit.estimate import missing_bytes
from peagle.planning.candidates import (
    Candidate,
    InstanceFit,
    PairLoad,
    fit_on_gpus,
    price_of,
    rank,
)
from peagle.planning.drafter import SelectedPair
from peagle.planning.pair_speed import names_of, pair_acceptance, pair_performance, runs_of
from peagle.planning.plan import Options
from peagle.planning.speculation import SpeedsByK, compared_ks, other_drafters, usual_k
from peagle.speed.models import Performance
from peagle.vllm.gpus import needed_capability

MOST_INSTANCES = 100
"""How many instances of one type planning takes for a load, a speed or a time."""

SMALL_K = 3
"""The best or nearly so under many requests, where a large K loses."""

COMPARED = 4
"""On so many of the best types each drafter is evaluated with each K."""


class CandidateEvaluator:
    """Evaluates instance types for one load.

    ``work`` has the drafter of ``pair``, its usual K and the concurrency of the whole endpoint.
    """

    def __init__(self, options: Options, pair: SelectedPair, work: PairLoad, region: str) -> None:
        self.options, self.pair, self.work = options, pair, work
        self._region = region
        self._fits: dict[tuple[object, ...], InstanceFit] = {}
        self._speeds: dict[tuple[object, ...], Performance] = {}
        self._found: dict[tuple[str, str | None], list[Candidate]] = {}
        named = other_drafters(options, pair, work.vllm, work.max_model_len, work.request_tokens)
        self._others = tuple(one for one in named if self._may_be_known(one))

    def fitting(self, anywhere: bool = False) -> list[Candidate]:
        """The best candidate on each type that is recent and large enough, best first: without
        types that the region is known not to have, unless ``anywhere``.

        They are ranked by cost per token where the speed of all with a price is known, else by
        price per hour.
        """
        oldest = needed_capability(self.work.target.dtype, self.work.target.quantization)
        types = self.work.catalog.instances.instances
        own = [
            (type, self._on(type, self.pair.drafter))
            for type in types
            if type.capability >= oldest and (anywhere or type.hosted_in(self._region) is not False)
        ]
        priced = [one for _, found in own for one in found if one.usd_per_hour is not None]
        by_cost = all(one.tokens_per_second is not None for one in priced)
        best: list[Candidate] = []
        for type, found in own:
            others = self._with_others(type, found, by_cost or bool(found))
            best += rank(self.options, [*found, *others])[:1]
        ranked = rank(self.options, best, by_cost)
        first = [self.candidate(one.instance) for one in ranked[:COMPARED]]
        return [*rank(self.options, first, by_cost), *ranked[COMPARED:]]

    def candidate(self, instance: Instance) -> Candidate:
        """The best on this type; where nothing fits, what lacks least memory."""
        own = [self._as_planned(one) for one in self._on(instance, self.pair.drafter)]
        others = [self._as_planned(one) for one in self._with_others(instance, own, True)]
        if own or others:
            return rank(self.options, [*own, *others])[0]
        drafter = self.pair.drafter
        tried = self._fits_on(instance, drafter)
        least = min(tried, key=lambda on_instance: missing_bytes(on_instance.case))
        found = self.shared(least, drafter, self.options.instance_count or 1)
        none = Performance("unknown", found.performance.acceptance, "it does not fit")
        return replace(found, k=usual_k(self.options, drafter), performance=none)

    def largest(self) -> Candidate:
        """The candidate on the type with the most GPU memory."""
        types = self.work.catalog.instances.instances
        return self.candidate(max(types, key=lambda i: (i.gpu_count * i.gpu_memory_mib, i.type)))

    def with_drafter(self, drafter: Drafter | None) -> CandidateEvaluator:
        """The same evaluator for this drafter only, or for the target alone."""
        other = copy(self)
        if drafter is None:
            other.options = self.options.model_copy(update={"k": None})
        other.pair = replace(self.pair, drafter=drafter)
        other.work = replace(self.work, drafter=drafter, k=usual_k(self.options, drafter))
        other._others = ()
        return other

    def with_options(self, **changed: Any) -> CandidateEvaluator:
        """The same evaluator with other K, or another number of instances."""
        other = copy(self)
        other.options = self.options.model_copy(update=changed)
        other._found = {}  # depends on these options, unlike fits and speeds
        return other

    def compared(self, candidate: Candidate) -> SpeedsByK:
        """The speeds with each drafter and K on the candidate's GPUs at its load."""
        instance, load = candidate.instance, self.work.concurrency / candidate.busy
        size = candidate.fit.tensor_parallel_size
        found: dict[tuple[str | None, int], Performance] = {}
        drafters = (self.pair.drafter, candidate.drafter, None, *self._others)
        for name, drafter in {_name(one): one for one in drafters}.items():
            ks = {*self._compared_ks(drafter), *self._ks(drafter)}
            on_instance = self._fit(instance, size, drafter, max(self._ranking_ks(drafter)))
            if drafter == candidate.drafter:
                on_instance = candidate.on_instance
            if on_instance.fit.fits:
                for k in sorted(ks):
                    found[name, k] = self._performance(on_instance, drafter, k, load)
        return SpeedsByK(load, found)

    def work_on(self, candidate: Candidate) -> PairLoad:
        """The workload with this candidate's drafter and K."""
        return replace(self.work, drafter=candidate.drafter, k=candidate.k)

    def shared(
        self, on: InstanceFit, drafter: Drafter | None, count: int, ks: Sequence[int] = ()
    ) -> Candidate:
        """``count`` instances that share the load evenly, with the best of ``ks``, by default the
        few by which candidates are ranked; the usual K where no speed is known."""
        busy = min(count, self.work.concurrency)
        price = price_of(on.instance, self._region).value
        usd = None if price is None else round(price.usd_per_hour * count, 4)
        load, most = self.work.concurrency / busy, math.ceil(self.work.concurrency / busy)
        found = [
            Candidate(on, drafter, k, count, most, busy, usd, one)
            for k in ks or self._ranking_ks(drafter)
            if (one := self._performance(on, drafter, k, load)).basis != "unknown"
        ]
        if found:
            return min(
                _measured_first(found),
                key=lambda c: (not c.meets(self.options), -(c.tokens_per_second or 0)),
            )
        k = usual_k(self.options, drafter)
        unknown = self._performance(on, drafter, k, load)
        return Candidate(on, drafter, k, count, most, busy, usd, unknown)

    def _as_planned(self, candidate: Candidate) -> Candidate:
        """The candidate with the best K of all that are compared, and with the memory for it."""
        size, drafter = candidate.fit.tensor_parallel_size, candidate.drafter
        best = self._with_count(candidate.on_instance, drafter, self._ks(drafter))
        for one in (best, candidate):
            fitted = self._fit(candidate.instance, size, drafter, one.k)
            planned = replace(one, on_instance=fitted)
            if planned.holds_load or not candidate.holds_load:
                return planned
        return candidate

    def _with_others(
        self, instance: Instance, own: list[Candidate], allowed: bool
    ) -> Iterator[Candidate]:
        """Candidates without speculation and with the target's other drafters, where speeds can be
        compared: with a measured one those that are measured, too."""
        if not allowed or any(one.tokens_per_second is None for one in own):
            return
        measured = any(one.performance.basis == "measured" for one in own)
        bases = ("measured",) if measured else ("measured", "estimated")
        for drafter in self._others:
            found = self._on(instance, drafter)
            yield from (one for one in found if one.performance.basis in bases)

    def _on(self, instance: Instance, drafter: Drafter | None) -> list[Candidate]:
        """On the fewest GPUs that hold the load and on all, with as many instances as it needs;
        only on those that were measured, if any was."""
        key = (instance.type, _name(drafter))
        if key not in self._found:
            fits = self._fits_on(instance, drafter)
            self._found[key] = _measured_first(
                [self._with_count(one, drafter) for one in fits if one.fit.fits]
            )
        return self._found[key]

    def _with_count(
        self, on: InstanceFit, drafter: Drafter | None, ks: Sequence[int] = ()
    ) -> Candidate:
        """The instance count of the options, else the smallest that holds the load and meets what
        is required; if none is known to, the one that comes nearest. ``ks`` as in ``shared``."""
        if self.options.instance_count is not None:
            return self.shared(on, drafter, self.options.instance_count, ks)
        most = min(self.work.concurrency, MOST_INSTANCES)
        low = min(most, math.ceil(self.work.concurrency / max(on.most_requests, 1)))
        fewest = self.shared(on, drafter, low, ks)
        if fewest.meets(self.options) or fewest.excess(self.options) is None:
            return fewest
        enough = self.shared(on, drafter, most, ks)
        if not enough.meets(self.options):
            return min(fewest, enough, key=lambda one: one.excess(self.options) or math.inf)
        while enough.count - low > 1:
            middle = self.shared(on, drafter, (low + enough.count) // 2, ks)
            if middle.meets(self.options):
                enough = middle
            else:
                low = middle.count
        return enough

    def _fits_on(self, instance: Instance, drafter: Drafter | None) -> list[InstanceFit]:
        k = max(self._ranking_ks(drafter))
        *some, most = divisions(self.work.target.architecture, instance.gpu_count)
        found: list[InstanceFit] = []
        for size in some:
            found.append(self._fit(instance, size, drafter, k))
            if found[-1].holds(self.work.concurrency):
                break
        return [*found, self._fit(instance, most, drafter, k)]

    def _fit(self, instance: Instance, size: int, drafter: Drafter | None, k: int) -> InstanceFit:
        """The fit, computed once for types with equal GPUs."""
        gpu = (instance.gpu, instance.gpu_memory_mib, instance.gpu_architecture)
        key = (*gpu, size, _name(drafter), k)
        if key not in self._fits:
            work = replace(self.work, drafter=drafter, k=k)
            self._fits[key] = fit_on_gpus(work, instance, size)
        found = self._fits[key]
        fit = found.fit.model_copy(update={"gpu_count": instance.gpu_count})
        return replace(found, instance=instance, fit=fit)

    def _performance(
        self, on: InstanceFit, drafter: Drafter | None, k: int, load: float
    ) -> Performance:
        """The performance of one engine with ``load`` requests, computed once."""
        engine = on.case.engine
        gpus = engine.gpu, on.instance.gpu_memory_mib, engine.tensor_parallel_size
        key = (*gpus, _name(drafter), k, load)
        if key not in self._speeds:
            work = replace(self.work, drafter=drafter, k=k)
            case = replace(on.case, engine=replace(engine, k=k))
            self._speeds[key] = pair_performance(work, case, load, fit=on.fit)
        return self._speeds[key]

    def _ks(self, drafter: Drafter | None) -> tuple[int, ...]:
        """The user's K, else all that are compared."""
        if self.options.k is not None and drafter is not None:
            return (self.options.k,)
        return self._compared_ks(drafter)

    def _ranking_ks(self, drafter: Drafter | None) -> tuple[int, ...]:
        """A small and the recommended K: enough to rank, and cheap."""
        ks = self._ks(drafter)
        return tuple(k for k in ks if k == usual_k(self.options, drafter) or k == SMALL_K) or ks

    def _compared_ks(self, drafter: Drafter | None) -> tuple[int, ...]:
        work = replace(self.work, drafter=drafter)
        return compared_ks(drafter, runs_of(work), names_of(work))

    def _may_be_known(self, drafter: Drafter | None) -> bool:
        """Whether there can be a speed: measured, or from a known acceptance."""
        work = replace(self.work, drafter=drafter, k=1, own_head=False)
        names = names_of(work)
        measured = (row.drafter in names for run in runs_of(work) for row in run.speeds)
        return pair_acceptance(work).basis != "unknown" or any(measured)


def _measured_first(candidates: list[Candidate]) -> list[Candidate]:
    """The measured ones, if any: an estimate does not decide against a measurement."""
    return [one for one in candidates if one.performance.basis == "measured"] or candidates


def _name(drafter: Drafter | None) -> str | None:
    return drafter.name if drafter else None
