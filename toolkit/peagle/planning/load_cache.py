"""What is computed once for a load: the memory fits of the pair on GPUs, and its speeds there.

Neither depends on prices, required times, numbers of instances or any option other than the load.
So all plans of a process for the same load share them: a comparison, a verdict, and a program that
plans again with other options.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from peagle.catalog.schema import Drafter
from peagle.catalog.tables import Instance
from peagle.fit.estimate import fit_of
from peagle.fit.models import FitCase
from peagle.planning.candidates import InstanceFit, PairLoad, planned_fit
from peagle.planning.pair_speed import names_of, pair_acceptance, pair_performance, runs_of
from peagle.planning.speculation import compared_ks
from peagle.speed.models import Acceptance, Performance

_LOADS = 32
"""The loads of which a process keeps what it has computed."""


class LoadCache:
    """Fits, speeds and values of K for one load, each computed at first use. A drafter is known by
    its name: it is that of the load, or one of the target's in the catalogue."""

    def __init__(self, load: PairLoad) -> None:
        self._load = load
        self._acceptances: dict[tuple[str | None, int], Acceptance] = {}
        self._cases: dict[tuple[object, ...], FitCase] = {}
        self._fits: dict[tuple[object, ...], InstanceFit] = {}
        self._speeds: dict[tuple[object, ...], Performance] = {}
        self._ks: dict[str | None, tuple[int, ...]] = {}

    def fit(self, instance: Instance, size: int, drafter: Drafter | None, k: int) -> InstanceFit:
        """The memory fit on ``size`` GPUs of this type, computed once for types with equal GPUs."""
        key = (*gpu_key(instance), size, name_of(drafter), k)
        on_instance = self._fits.get(key)
        if on_instance is None:
            case = self._case(instance, size, drafter, k)
            on_instance = InstanceFit(instance, case, fit_of(case), *self._load.cache_shares(case))
            self._fits[key] = on_instance
        if instance is on_instance.instance:
            return on_instance
        # Of a type with equal GPUs, and perhaps with another number of them.
        moved_key = (instance.type, *key)
        moved = self._fits.get(moved_key)
        if moved is None:
            fit = on_instance.fit.model_copy(update={"gpu_count": instance.gpu_count})
            moved = self._fits[moved_key] = replace(on_instance, instance=instance, fit=fit)
        return moved

    def performance(
        self, on: InstanceFit, drafter: Drafter | None, k: int, load: float, engines: int = 1
    ) -> Performance:
        """The performance of one of ``engines`` engines with ``load`` concurrent requests, in the
        memory that is left with the K of ``on``."""
        engine = on.case.engine
        gpus = engine.gpu, on.instance.gpu_memory_mib, engine.tensor_parallel_size
        key = (*gpus, name_of(drafter), engine.k, k, load, engines)
        speed = self._speeds.get(key)
        if speed is None:
            case = on.case
            if k != engine.k:
                case = replace(case, engine=replace(engine, k=k))
            acceptance = self._acceptance(drafter, k)
            work = self._work(drafter, k)
            speed = pair_performance(
                work, case, load, acceptance=acceptance, fit=on.fit, engines=engines
            )
            self._speeds[key] = speed
        return speed

    def ks(self, drafter: Drafter | None) -> tuple[int, ...]:
        """The values of K to compare."""
        name = name_of(drafter)
        if name not in self._ks:
            work = replace(self._load, drafter=drafter)
            acceptance = self._acceptance(drafter, drafter.k_recommended if drafter else 0)
            self._ks[name] = compared_ks(drafter, runs_of(work), names_of(work), acceptance)
        return self._ks[name]

    def _case(self, on: Instance, size: int, drafter: Drafter | None, k: int) -> FitCase:
        """The input of the fit; that of one GPU is built once."""
        key = (*gpu_key(on), name_of(drafter), k)
        if key not in self._cases:
            self._cases[key] = planned_fit(self._work(drafter, k), on, 1)
        case = self._cases[key]
        if (case.engine.gpu_count, size) == (on.gpu_count, 1):
            return case
        engine = replace(case.engine, gpu_count=on.gpu_count, tensor_parallel_size=size)
        return replace(case, engine=engine)

    def _acceptance(self, drafter: Drafter | None, k: int) -> Acceptance:
        key = (name_of(drafter), k)
        if key not in self._acceptances:
            self._acceptances[key] = pair_acceptance(self._work(drafter, k))
        return self._acceptances[key]

    def _work(self, drafter: Drafter | None, k: int) -> PairLoad:
        return replace(self._load, drafter=drafter, k=k)


def cache_for(load: PairLoad) -> LoadCache:
    """What this process has computed for this load."""
    return _cache(_Load(load))


def gpu_key(instance: Instance) -> tuple[object, ...]:
    """Equal for instance types with equal GPUs."""
    return instance.gpu, instance.gpu_memory_mib, instance.gpu_architecture


def name_of(drafter: Drafter | None) -> str | None:
    """The name of the drafter; ``None`` without one."""
    return drafter.name if drafter else None


@dataclass(frozen=True, eq=False)
class _Load:
    """A load as a key. Of the catalogue it compares what fits and speeds are computed from, by
    identity: a catalogue that is loaded again keeps what has not changed, and to compare all
    measured rows takes longer than to use them."""

    work: PairLoad

    def __hash__(self) -> int:
        load = self.work
        return hash(
            (load.target.id, load.vllm, load.max_model_len, load.concurrency, load.workload)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Load):
            return NotImplemented
        return _compared(self.work) == _compared(other.work)


def _compared(work: PairLoad) -> tuple[object, ...]:
    catalog = work.catalog
    tables = (catalog.runtimes, catalog.instances, catalog.version_rules, catalog.speed_model)
    same = [*map(id, (work.target, *tables, *runs_of(work)))]
    load = (work.vllm, work.max_model_len, work.concurrency, work.workload)
    settings = repr(work.settings)  # where true and 1 differ
    return same, *load, settings, work.own_head, work.drafter, work.of_one_size


@lru_cache(maxsize=_LOADS)
def _cache(load: _Load) -> LoadCache:
    return LoadCache(load.work)
