"""The settings of one target on one number of GPUs, and the speed of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from peagle.case import CaseOptions, build_case
from peagle.catalog.find import find_drafter
from peagle.catalog.schema import Drafter
from peagle.catalog.tables import Instance
from peagle.checks import check
from peagle.findings import errors
from peagle.fit.estimate import fit_of
from peagle.fit.models import Fit, FitCase
from peagle.planning.candidates import InstanceFit, PairLoad, planned_fit
from peagle.planning.pair_speed import (
    likely_acceptance,
    names_of,
    pair_acceptance,
    pair_performance,
    runs_of,
)
from peagle.planning.speculation import compared_ks
from peagle.speed.models import Acceptance, Performance, Workload
from peagle.speed.verdict import NO_SPECULATION, Setting


class ComparedSettings:
    """The target of ``work`` on ``gpus`` GPUs of ``instance``: with each drafter and K, and alone.

    ``work`` has no drafter; its concurrency is the largest load, which one engine serves.
    ``refused`` says by drafter why it cannot run.
    """

    def __init__(self, work: PairLoad, instance: Instance, gpus: int) -> None:
        self.work, self.instance, self.gpus = work, instance, gpus
        self.refused: dict[str, str] = {}
        self.runs = runs_of(work)
        self._cases: dict[tuple[Setting, int], tuple[FitCase, Fit]] = {}

    def settings(self, drafters: Iterable[Drafter]) -> tuple[Setting, ...]:
        """The target alone, and every drafter with each K that runs and fits."""
        found = [NO_SPECULATION]
        for drafter in drafters:
            if reason := self.refusal(drafter):
                self.refused[drafter.name] = reason
                continue
            own = [Setting(drafter=drafter.name, k=k) for k in self._ks(drafter)]
            fitting = [one for one in own if self._fitted(one, 1)[1].fits]
            if not fitting:
                self.refused[drafter.name] = "does not fit in addition to the target"
            found += fitting
        return tuple(found)

    def is_compared(self, setting: Setting) -> bool:
        """Whether the setting is one of those that run and fit."""
        case = self._cases.get((setting, 1))
        return case is not None and case[1].fits

    def drafter(self, setting: Setting) -> Drafter | None:
        """The catalogue's entry."""
        name = setting.drafter
        return None if name is None else find_drafter(self.work.target, name)

    def performance(self, setting: Setting, workload: Workload, load: float) -> Performance:
        """The speed of one engine, measured or estimated."""
        return self._performance(setting, workload, load, self.acceptance(setting))

    def holds_load(self, setting: Setting, workload: Workload, load: float) -> bool:
        """Whether the KV cache of one engine is large enough for the load, as a plan requires."""
        case, fit = self._fitted(setting, load)
        share = replace(self.work, workload=workload).cache_share
        return InstanceFit(self.instance, case, fit, share).holds(load)

    def assumed(self, setting: Setting, workload: Workload, load: float) -> Performance:
        """The speed if the drafter has a likely acceptance, which nobody has measured."""
        return self._performance(setting, workload, load, likely_acceptance(setting.k))

    def acceptance(self, setting: Setting) -> Acceptance:
        """What is known of the setting's acceptance on these or other GPUs."""
        return pair_acceptance(self._work(setting))

    def _work(self, setting: Setting) -> PairLoad:
        """The pair and its load with this setting."""
        return replace(self.work, drafter=self.drafter(setting), k=setting.k)

    def _performance(
        self, setting: Setting, workload: Workload, load: float, acceptance: Acceptance
    ) -> Performance:
        drafter = self.drafter(setting)
        most = drafter.max_positions if drafter else None
        tokens = workload.prompt_tokens + workload.output_tokens
        if most is not None and tokens > most:
            lacking = f"{setting.drafter} drafts nothing in requests above {most:,} tokens"
            return Performance("unknown", Acceptance(1.0, "unknown", lacking), lacking)
        longer = drafter.long_context if drafter else None
        if longer is not None and tokens >= longer.request_tokens:
            lacking = f"{longer.drafter} is the head for requests of {tokens:,} tokens"
            return Performance("unknown", Acceptance(1.0, "unknown", lacking), lacking)
        case, fit = self._fitted(setting, load)
        if not fit.fits:
            lacking = "it does not fit"
            return Performance("unknown", Acceptance(1.0, "unknown", lacking), lacking)
        work = self._work(setting)
        return pair_performance(work, case, load, workload=workload, acceptance=acceptance, fit=fit)

    def _fitted(self, setting: Setting, load: float) -> tuple[FitCase, Fit]:
        """The memory of an engine that is planned for this load, as a plan has it."""
        concurrency = min(math.ceil(load), self.work.concurrency)
        key = setting, concurrency
        if key not in self._cases:
            work = replace(self._work(setting), concurrency=concurrency)
            case = planned_fit(work, self.instance, self.gpus)
            self._cases[key] = case, fit_of(case)
        return self._cases[key]

    def _ks(self, drafter: Drafter) -> Sequence[int]:
        recommended = Setting(drafter=drafter.name, k=drafter.k_recommended)
        names = names_of(self._work(recommended))
        return compared_ks(drafter, self.runs, names, self.acceptance(recommended))

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
        found = errors(check(build_case(work.catalog, work.target, drafter, options)))
        return found[0].message if found else None
