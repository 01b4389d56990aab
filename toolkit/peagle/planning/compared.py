"""The settings of one target on one number of GPUs, and the speed of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from peagle.case import CaseOptions, build_case
from peagle.catalog.find import find_drafter
from peagle.catalog.schema import Drafter
from peagle.catalog.tables import Instance
from peagle.checks import check
from peagle.findings import errors
from peagle.planning.engines import EngineFit, Load
from peagle.planning.speculation import likely_acceptance
from peagle.speed.models import Acceptance, Performance, Workload
from peagle.speed.verdict import NO_SPECULATION, Setting


class ComparedSettings:
    """A target on ``gpus`` GPUs of ``instance``, or as many as ``by_load`` has for a size of
    requests and a load: with each drafter and K, and alone.

    The concurrency of ``load`` is the largest one, which one engine serves. ``refused`` says by
    drafter why it cannot run. Fits and speeds are those of plans.
    """

    def __init__(
        self,
        load: Load,
        instance: Instance,
        gpus: int,
        by_load: Mapping[tuple[Workload, int], int],
    ) -> None:
        self.load, self.instance, self.gpus = load, instance, gpus
        self._by_load = by_load
        self.refused: dict[str, str] = {}

    def settings(self, drafters: Iterable[Drafter]) -> tuple[Setting, ...]:
        """The target alone, and every drafter with each K that runs and fits."""
        settings = [NO_SPECULATION]
        for drafter in drafters:
            if reason := self.refusal(drafter):
                self.refused[drafter.name] = reason
                continue
            drafting = (Setting(drafter=drafter.name, k=k) for k in self.load.compared_ks(drafter))
            size = self.load.workload
            fitting = [one for one in drafting if self._engine(one, size, 1)[1].fit.fits]
            if not fitting:
                self.refused[drafter.name] = "does not fit in addition to the target"
            settings += fitting
        return tuple(settings)

    def performance(
        self, setting: Setting, workload: Workload, requests: float, assumed: bool = False
    ) -> Performance:
        """The speed of one engine, measured or estimated; if ``assumed``, with a likely acceptance
        where nobody has measured one. Unknown where it does not fit, or does not draft for requests
        of this size."""
        drafter = self._drafter(setting)
        load, engine = self._engine(setting, workload, requests)
        tokens, most = workload.tokens, drafter.max_positions if drafter else None
        longer = drafter.long_context if drafter else None
        lacking = None if engine.fit.fits else "it does not fit"
        if drafter and most is not None and tokens > most:
            lacking = f"{drafter.name} drafts nothing in requests above {most:,} tokens"
        elif longer is not None and tokens >= longer.request_tokens:
            lacking = f"{longer.drafter} is the head for requests of {tokens:,} tokens"
        if lacking:
            return Performance("unknown", Acceptance(1.0, "unknown", lacking), lacking)
        acceptance = None
        if assumed:
            acceptance = likely_acceptance(load.acceptance(drafter, setting.k), setting.k)
        return load.performance(engine, drafter, setting.k, requests, assumed=acceptance)

    def assumed(self, setting: Setting, workload: Workload, requests: float) -> Performance:
        """The speed if the drafter has a likely acceptance."""
        return self.performance(setting, workload, requests, assumed=True)

    def holds_load(self, setting: Setting, workload: Workload, requests: float) -> bool:
        """Whether the KV cache of one engine is large enough for the load, as a plan requires."""
        return requests <= self._engine(setting, workload, requests)[1].most_requests

    def acceptance(self, setting: Setting) -> Acceptance:
        """What is known of the setting's acceptance on these or other GPUs."""
        return self.load.acceptance(self._drafter(setting), setting.k)

    def gpus_at(self, workload: Workload, requests: int) -> int:
        """The GPUs of the engine for this load."""
        return self._by_load.get((workload, requests), self.gpus)

    def refusal(self, drafter: Drafter | None) -> str | None:
        """The first error of a check of this drafter, or of the target alone, with this version on
        these GPUs."""
        load = self.load
        options = CaseOptions(
            k=drafter.k_recommended if drafter else None,
            max_model_len=load.max_model_len,
            vllm=load.vllm,
            concurrency=load.concurrency,
            instance_type=self.instance.type,
            tensor_parallel_size=self.gpus,
        )
        findings = errors(check(build_case(load.catalog, load.target, drafter, options)))
        return findings[0].message if findings else None

    def _drafter(self, setting: Setting) -> Drafter | None:
        name = setting.drafter
        return None if name is None else find_drafter(self.load.target, name)

    def _engine(
        self, setting: Setting, workload: Workload, requests: float
    ) -> tuple[Load, EngineFit]:
        """The load of an engine that is planned for it, and its memory."""
        concurrency = min(math.ceil(requests), self.load.concurrency)
        load = self.load.changed(workload=workload, concurrency=concurrency)
        gpus = self.gpus_at(workload, concurrency)
        return load, load.engine(self.instance, gpus, self._drafter(setting), setting.k)
