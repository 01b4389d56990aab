"""The settings of one target on one number of GPUs, and the speed of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from peagle.case import CaseOptions, build_case
from peagle.catalog.find import find_drafter
from peagle.catalog.schema import Drafter
from peagle.catalog.tables import Instance
from peagle.checks import check
from peagle.findings import errors
from peagle.planning.candidates import InstanceFit, PairLoad
from peagle.planning.load_cache import LoadCache, cache_for
from peagle.planning.pair_speed import likely_acceptance, pair_acceptance, pair_performance, runs_of
from peagle.speed.models import Acceptance, Performance, Workload
from peagle.speed.verdict import NO_SPECULATION, Setting


class ComparedSettings:
    """The target of ``work`` on ``gpus`` GPUs of ``instance``, or as many as ``by_load`` has for a
    size of requests and a load: with each drafter and K, and alone.

    ``work`` has no drafter; its concurrency is the largest load, which one engine serves.
    ``refused`` says by drafter why it cannot run. Fits and speeds are those of plans.
    """

    def __init__(
        self,
        work: PairLoad,
        instance: Instance,
        gpus: int,
        by_load: Mapping[tuple[Workload, int], int] | None = None,
    ) -> None:
        self.work, self.instance, self.gpus = work, instance, gpus
        self._by_load = by_load or {}
        self.refused: dict[str, str] = {}
        self.runs = runs_of(work)

    def settings(self, drafters: Iterable[Drafter]) -> tuple[Setting, ...]:
        """The target alone, and every drafter with each K that runs and fits."""
        settings = [NO_SPECULATION]
        for drafter in drafters:
            if reason := self.refusal(drafter):
                self.refused[drafter.name] = reason
                continue
            ks = cache_for(self.work).ks(drafter)
            drafting = [Setting(drafter=drafter.name, k=k) for k in ks]
            fitting = [
                setting
                for setting in drafting
                if self._engine(setting, self.work.workload, 1)[1].fit.fits
            ]
            if not fitting:
                self.refused[drafter.name] = "does not fit in addition to the target"
            settings += fitting
        return tuple(settings)

    def drafter(self, setting: Setting) -> Drafter | None:
        """The catalogue's entry."""
        name = setting.drafter
        return None if name is None else find_drafter(self.work.target, name)

    def performance(self, setting: Setting, workload: Workload, load: float) -> Performance:
        """The speed of one engine, measured or estimated."""
        drafter, (cache, on) = self.drafter(setting), self._engine(setting, workload, load)
        return _unknown(drafter, workload, on) or cache.performance(on, drafter, setting.k, load)

    def holds_load(self, setting: Setting, workload: Workload, load: float) -> bool:
        """Whether the KV cache of one engine is large enough for the load, as a plan requires."""
        return self._engine(setting, workload, load)[1].holds(load)

    def assumed(self, setting: Setting, workload: Workload, load: float) -> Performance:
        """The speed if the drafter has a likely acceptance, which nobody has measured."""
        on = self._engine(setting, workload, load)[1]
        work, likely = self._work(setting, workload), likely_acceptance(setting.k)
        return _unknown(work.drafter, workload, on) or pair_performance(
            work, on.case, load, acceptance=likely, fit=on.fit
        )

    def acceptance(self, setting: Setting) -> Acceptance:
        """What is known of the setting's acceptance on these or other GPUs."""
        return pair_acceptance(self._work(setting, self.work.workload))

    def _work(self, setting: Setting, workload: Workload) -> PairLoad:
        drafter = self.drafter(setting)
        return replace(self.work, drafter=drafter, k=setting.k, workload=workload)

    def _engine(
        self, setting: Setting, workload: Workload, load: float
    ) -> tuple[LoadCache, InstanceFit]:
        """What is computed for an engine that is planned for this load, and its memory."""
        concurrency = min(math.ceil(load), self.work.concurrency)
        cache = cache_for(replace(self.work, workload=workload, concurrency=concurrency))
        drafter = self.drafter(setting)
        gpus = self.gpus_at(workload, concurrency)
        return cache, cache.fit(self.instance, gpus, drafter, setting.k)

    def gpus_at(self, workload: Workload, load: int) -> int:
        """The GPUs of the engine for this load."""
        return self._by_load.get((workload, load), self.gpus)

    def refusal(self, drafter: Drafter | None) -> str | None:
        """The first error of a check of this drafter, or of the target alone, with this version on
        these GPUs."""
        work = self.work
        options = CaseOptions(
            k=drafter.k_recommended if drafter else None,
            max_model_len=work.max_model_len,
            vllm=work.vllm,
            concurrency=work.concurrency,
            instance_type=self.instance.type,
            tensor_parallel_size=self.gpus,
        )
        findings = errors(check(build_case(work.catalog, work.target, drafter, options)))
        return findings[0].message if findings else None


def _unknown(drafter: Drafter | None, workload: Workload, on: InstanceFit) -> Performance | None:
    """The unknown speed of what does not fit, or does not draft for requests of this size."""
    tokens = workload.prompt_tokens + workload.output_tokens
    most = drafter.max_positions if drafter else None
    longer = drafter.long_context if drafter else None
    if drafter and most is not None and tokens > most:
        lacking = f"{drafter.name} drafts nothing in requests above {most:,} tokens"
    elif longer is not None and tokens >= longer.request_tokens:
        lacking = f"{longer.drafter} is the head for requests of {tokens:,} tokens"
    elif not on.fit.fits:
        lacking = "it does not fit"
    else:
        return None
    return Performance("unknown", Acceptance(1.0, "unknown", lacking), lacking)
