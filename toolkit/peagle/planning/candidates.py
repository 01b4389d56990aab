"""Every instance type as a candidate for the load: memory fit, speculation, speed and price."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from peagle.case import engine_settings
from peagle.catalog.schema import EngineSetting, SpeedRun, Target
from peagle.catalog.tables import Instance, InstanceTable, Price
from peagle.findings import Finding, warning
from peagle.fit.estimate import why_not
from peagle.fit.models import Fit, FitCase
from peagle.planning.engine_settings import (
    Workload,
    memory_fit,
    missing_gib,
    planned_fit,
)
from peagle.planning.plan import Decision, Options, Reason
from peagle.planning.speculation import DrafterRequest, SpeculationChoice, choose_speculation
from peagle.planning.speeds import measured_loads, names_of, runs_on
from peagle.text import format_concurrency, format_usd
from peagle.vllm.gpus import needed_capability, parallel_sizes

HELD_SHARE = 0.25
"""The share of the load, at full length, that the KV cache must hold. Most requests are much
shorter than the longest context, so a cache for all of them would mostly stay empty; with a
smaller one, vLLM queues or preempts requests."""

HELD_SHARE_TEXT = "a quarter"


@dataclass(frozen=True)
class Hosting:
    """An instance, the engine's settings for its GPU, and how the model fits."""

    instance: Instance
    settings: dict[str, EngineSetting]
    fit: Fit


def host(work: Workload, instance: Instance, load: int) -> Hosting:
    """The model on this instance, on the fewest GPUs that hold ``load`` concurrent requests; else
    on those that hold most, or that lack least memory."""
    settings = engine_settings(work.target, work.drafter, instance.gpu_architecture, work.vllm)
    fits: list[Fit] = []
    for size in _sizes(work.target, instance):
        fits.append(memory_fit(work, instance, size))
        if holds(fits[-1], load):
            return Hosting(instance, settings, fits[-1])
    fitting = [fit for fit in fits if fit.fits]
    if fitting:
        return Hosting(instance, settings, max(fitting, key=lambda fit: fit.max_concurrency))
    return Hosting(instance, settings, min(fits, key=missing_gib))


def holds(fit: Fit, load: float) -> bool:
    """Whether it fits, and the cache holds ``HELD_SHARE`` of ``load`` requests of full length."""
    return fit.fits and fit.max_concurrency >= HELD_SHARE * load


def case_of(work: Workload, hosting: Hosting) -> FitCase:
    """What the fit of this hosting was reckoned from."""
    return planned_fit(work, hosting.instance, hosting.fit.tensor_parallel_size)


def why_too_small(work: Workload, hosting: Hosting) -> str:
    """Why it does not fit, in one line; empty when it fits."""
    return why_not(case_of(work, hosting)) or ""


def fit_key(instance: Instance) -> tuple[str, int, int, str]:
    """What the fit depends on: instance types with equal keys have equal fits."""
    return (
        instance.gpu,
        instance.gpu_count,
        instance.gpu_memory_mib,
        instance.gpu_architecture,
    )


def _sizes(target: Target, instance: Instance) -> list[int]:
    shape = target.architecture
    kv_heads = (group.kv_heads for group in shape.attention)
    return parallel_sizes(shape.query_heads, kv_heads, instance.gpu_count)


def parallel_reason(hosting: Hosting, load: int) -> tuple[Reason, ...]:
    """Why it runs on this many GPUs, for ``load`` concurrent requests."""
    fit = hosting.fit
    size, count = fit.tensor_parallel_size, fit.gpu_count
    if count == 1:
        because = "the instance has one GPU"
    elif not fit.fits:
        because = "lacks the least memory"
    elif not holds(fit, load):
        because = f"holds the most requests on the {count} GPUs"
    elif size == 1:
        because = f"one of the {count} GPUs holds the load, and tensor parallelism costs time"
    else:
        because = (
            f"the fewest of the {count} GPUs that hold the load and divide the attention heads"
        )
    return (Reason(what="tensor_parallel_size", value=str(size), because=because),)


MOST_TRIED = 100
"""How many instance counts of one type are tried to reach a speed."""


@dataclass(frozen=True)
class Candidate:
    """``count`` instances of one type that share the load.

    ``load`` is the most concurrent requests of one of them. ``usd_per_hour`` and
    ``tokens_per_second`` are totals, ``None`` if unknown.
    """

    hosting: Hosting
    speculation: SpeculationChoice
    count: int
    load: int
    usd_per_hour: float | None
    tokens_per_second: float | None

    @property
    def instance(self) -> Instance:
        """The instance type."""
        return self.hosting.instance

    @property
    def holds_load(self) -> bool:
        """Whether the KV cache of each holds enough of the load."""
        return holds(self.hosting.fit, self.load)

    @property
    def usd_per_million_tokens(self) -> float | None:
        """USD per million output tokens under this load."""
        return usd_per_million(self.usd_per_hour, self.tokens_per_second)

    @property
    def cost(self) -> tuple[bool, float, str]:
        """Sort key: the price; candidates without a price come last."""
        return (self.usd_per_hour is None, self.usd_per_hour or 0.0, self.instance.type)

    @property
    def source(self) -> str | None:
        """The origin of the speed as text; ``None`` if the speed is unknown."""
        speed = self.speculation.speed
        if speed is None or self.count == 1:
            return speed.source if speed else None
        return (
            f"{speed.source}; {self.count} times one instance with {format_concurrency(speed.load)}"
        )


class CandidateEvaluator:
    """Evaluates instance types for one workload.

    ``work`` has the drafter and K of ``request`` and the concurrency of the whole endpoint.
    """

    def __init__(
        self,
        options: Options,
        table: InstanceTable,
        runs: tuple[SpeedRun, ...],
        request: DrafterRequest,
        work: Workload,
        region: str,
    ) -> None:
        self.options, self.request, self.work = options, request, work
        self._table, self._runs, self._region = table, runs, region
        self._hosted: dict[tuple[object, ...], Hosting] = {}

    def fitting(self) -> list[Candidate]:
        """Candidates on all instance types that are recent and large enough, cheapest first."""
        oldest = needed_capability(self.work.target.dtype, self.work.target.quantization)
        candidates = (self.candidate(i) for i in self._table.instances if i.capability >= oldest)
        return sorted((c for c in candidates if c.hosting.fit.fits), key=lambda c: c.cost)

    def alone(self) -> CandidateEvaluator:
        """The same evaluator for the target without a drafter."""
        request = replace(self.request, drafter=None, k=None)
        work = replace(self.work, drafter=None, k=0)
        return CandidateEvaluator(
            self.options, self._table, self._runs, request, work, self._region
        )

    def largest(self) -> Candidate:
        """The candidate on the type with the most GPU memory."""
        types = self._table.instances
        return self.candidate(max(types, key=lambda i: (i.gpu_count * i.gpu_memory_mib, i.type)))

    def candidate(self, instance: Instance) -> Candidate:
        """The instance count from the options, else the smallest that reaches the required speed.

        If no count is known to reach it, the fastest.
        """
        if self.options.instance_count is not None:
            return self.shared(instance, self.options.instance_count)
        one, required = self.shared(instance, 1), self.options.min_tokens_per_second
        if required is None or reaches(one, required) or not self.runs(one.hosting):
            return one
        best = one
        for candidate in self._more(instance, one):
            if (candidate.tokens_per_second or 0) > (best.tokens_per_second or 0):
                best = candidate
            if reaches(candidate, required):
                break
        return best

    def shared(self, instance: Instance, count: int, load: int | None = None) -> Candidate:
        """``count`` instances that share the load evenly; ``load`` replaces the workload's."""
        load = self.work.concurrency if load is None else load
        busy = min(count, load)
        most = math.ceil(load / busy)
        hosting = self._host(instance, self.request.drafter is not None, self.request.usual_k, most)
        speculation = choose_speculation(self.request, self.runs(hosting), load / busy)
        if speculation.k != self.request.usual_k:
            again = self._host(instance, speculation.drafter is not None, speculation.k, most)
            if again.fit.tensor_parallel_size == hosting.fit.tensor_parallel_size:
                hosting = again
            else:  # the evidence is for another number of GPUs
                speculation = SpeculationChoice(self.request.drafter, self.request.usual_k)
        speed = speculation.speed
        return Candidate(
            hosting,
            speculation,
            count,
            most,
            price_of_all(instance, count, self._region),
            None if speed is None else round(speed.tokens_per_second * busy, 1),
        )

    def starts(self, instance: Instance, concurrency: int) -> bool:
        """Whether an engine with this ``--max-num-seqs`` fits."""
        return host(replace(self.work, concurrency=concurrency), instance, 0).fit.fits

    def work_on(self, candidate: Candidate) -> Workload:
        """The workload with this candidate's drafter and K."""
        return replace(self.work, drafter=candidate.speculation.drafter, k=candidate.speculation.k)

    def runs(self, hosting: Hosting) -> tuple[SpeedRun, ...]:
        """The evidence for this number and type of GPUs."""
        parallel = hosting.fit.tensor_parallel_size
        return runs_on(self._runs, hosting.instance.gpu, parallel, self.work.vllm)

    def loads(self, candidate: Candidate) -> tuple[int, ...]:
        """The measured loads of one engine on these GPUs with this drafter."""
        names = names_of(candidate.speculation.drafter, self.request.own)
        return measured_loads(self.runs(candidate.hosting), names)

    def _more(self, instance: Instance, one: Candidate) -> Iterator[Candidate]:
        """Two or more instances, starting where the load of each has been measured."""
        loads = self.loads(one)
        first = max(2, math.ceil(self.work.concurrency / loads[-1])) if loads else 2
        for count in range(first, min(self.work.concurrency, first + MOST_TRIED) + 1):
            candidate = self.shared(instance, count)
            if candidate.tokens_per_second is None:
                return
            yield candidate

    def _host(self, instance: Instance, drafts: bool, k: int, load: int) -> Hosting:
        """The fit, computed once per ``fit_key``."""
        key = (*fit_key(instance), drafts, k, load)
        if key not in self._hosted:
            drafter = self.request.drafter if drafts else None
            self._hosted[key] = host(replace(self.work, drafter=drafter, k=k), instance, load)
        return replace(self._hosted[key], instance=instance)


def reaches(candidate: Candidate, tokens_per_second: float) -> bool:
    """Whether evidence shows that the candidate reaches this speed."""
    known = candidate.tokens_per_second
    return known is not None and known >= tokens_per_second


def instances_text(candidate: Candidate) -> str:
    """``ml.g6.xlarge``, or ``2 x ml.g6.xlarge``."""
    many = f"{candidate.count} x " if candidate.count > 1 else ""
    return f"{many}{candidate.instance.type}"


def cost_text(candidate: Candidate) -> str:
    """``$4.20 an hour``, for all instances."""
    together = f" for {candidate.count}" if candidate.count > 1 else ""
    return f"{format_usd(candidate.usd_per_hour or 0.0)} an hour{together}"


def speed_origin(candidate: Candidate) -> str:
    """Whether the speed is measured, or estimated from one instance's."""
    return "measured" if candidate.count == 1 else "estimated from measurements"


REFERENCE_REGION = "us-east-1"
"""Its price is used where the catalogue has none for a region."""

_FIX = "check the price before you deploy: https://aws.amazon.com/sagemaker/ai/pricing/"


def price_unknown(message: str, fix: str) -> Finding:
    """The warning that the price of the instance type is unknown."""
    return warning("price-unknown", "price", message, fix)


def price_of(instance: Instance, region: str) -> Decision[Price | None]:
    """The hourly price of one instance in ``region``, else in us-east-1, else ``None``; the latter
    two come with a finding."""
    by_region = {price.region: price for price in instance.prices}
    if region in by_region:
        return Decision(by_region[region])
    if REFERENCE_REGION not in by_region:
        message = f"the catalogue has no price for {instance.type}"
        return Decision(None, findings=(price_unknown(message, _FIX),))
    message = f"the price of {instance.type} is for {REFERENCE_REGION}, not for {region}"
    finding = warning("price-of-another-region", "price", message, _FIX)
    return Decision(by_region[REFERENCE_REGION], findings=(finding,))


def price_of_all(instance: Instance, count: int, region: str) -> float | None:
    """USD per hour of ``count`` instances together; ``None`` if the price is unknown."""
    price = price_of(instance, region).value
    return None if price is None else round(price.usd_per_hour * count, 4)


def usd_per_million(usd_per_hour: float | None, tokens_per_second: float | None) -> float | None:
    """USD per million output tokens of a fully loaded endpoint."""
    if usd_per_hour is None or tokens_per_second is None:
        return None
    return round(usd_per_hour / (tokens_per_second * 3600) * 1_000_000, 4)
