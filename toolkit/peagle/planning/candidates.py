"""Every instance type as a candidate for the load: memory fit, speculation, speed and price."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from peagle.case import CaseOptions, build_case
from peagle.catalog.schema import Catalog, Drafter, SpeedRun, Target
from peagle.catalog.tables import Instance, Price, nearest_region
from peagle.findings import Finding, warning
from peagle.fit.advice import divisions
from peagle.fit.building import draft_model, fit_case, gpu_of, target_model
from peagle.fit.estimate import drafter_on_gpu, fit_of, missing_bytes
from peagle.fit.models import Fit, FitCase
from peagle.planning.drafter import SelectedPair
from peagle.planning.overrides import memory_settings
from peagle.planning.plan import Decision, Options, Reason
from peagle.planning.speculation import SpeculationChoice, choose_speculation, usual_k
from peagle.speed.evidence import measured_loads, names_in_runs, runs_on
from peagle.text import format_concurrency, format_usd
from peagle.vllm.environment import Value
from peagle.vllm.gpus import needed_capability

MIN_LOAD_SHARE = 0.25
"""Minimum share of the load, at full length, that the KV cache must hold. Most requests are much
shorter than the longest context, so a cache for all of them would mostly stay empty; with a
smaller one, vLLM queues or preempts requests."""

HELD_SHARE_TEXT = "a quarter"

PLANNED_GPU_MEMORY_UTILIZATION = 0.9
"""The share of a GPU's memory that vLLM may use; set explicitly, since its default has changed."""

MOST_TRIED = 100
"""How many instance counts of one type are tried to reach a speed."""


@dataclass(frozen=True)
class PairLoad:
    """A pair and its load, independent of an instance. ``settings`` are the user's own arguments of
    vLLM; ``None`` leaves one of the catalogue out."""

    target: Target
    drafter: Drafter | None
    k: int
    vllm: str
    max_model_len: int
    concurrency: int
    catalog: Catalog
    settings: Mapping[str, Value | None] = field(default_factory=dict)

    @property
    def drafter_bytes(self) -> int:
        """Bytes of the drafter's weights on a single GPU; 0 without weights."""
        model = draft_model(self.drafter, target_model(self.target)) if self.drafter else None
        return drafter_on_gpu(model, 1) if model else 0


@dataclass(frozen=True)
class InstanceFit:
    """The pair on an instance: input and result of the memory model."""

    instance: Instance
    case: FitCase
    fit: Fit

    def holds(self, load: float) -> bool:
        """It fits, and its cache holds ``MIN_LOAD_SHARE`` of ``load`` full-length requests."""
        return self.fit.fits and self.fit.max_concurrency >= MIN_LOAD_SHARE * load


def fit_on_instance(work: PairLoad, instance: Instance, load: int) -> InstanceFit:
    """The model on this instance, on the fewest GPUs that hold ``load`` concurrent requests; else
    on those that hold most, or that lack least memory."""
    tried: list[InstanceFit] = []
    for size in divisions(work.target.architecture, instance.gpu_count):
        case = planned_fit(work, instance, size)
        tried.append(InstanceFit(instance, case, fit_of(case)))
        if tried[-1].holds(load):
            return tried[-1]
    fitting = [on_instance for on_instance in tried if on_instance.fit.fits]
    if fitting:
        return max(fitting, key=lambda on_instance: on_instance.fit.max_concurrency)
    return min(tried, key=lambda on_instance: missing_bytes(on_instance.case))


def planned_fit(work: PairLoad, on: Instance, tensor_parallel_size: int) -> FitCase:
    """The memory of one of ``tensor_parallel_size`` GPUs of this instance, as planned."""
    options = CaseOptions(
        k=work.k,
        max_model_len=work.max_model_len,
        concurrency=work.concurrency,
        vllm=work.vllm,
        instance_type=on.type,
        tensor_parallel_size=tensor_parallel_size,
        settings=memory_settings(work.settings),
    )
    case = build_case(work.catalog, work.target, work.drafter, options)
    planned = {"gpu-memory-utilization": PLANNED_GPU_MEMORY_UTILIZATION}
    return fit_case(replace(case, settings={**planned, **case.settings}), gpu_of(on))


@dataclass(frozen=True)
class Candidate:
    """``count`` instances of one type that share the load.

    ``load`` is the most concurrent requests of one of them. ``usd_per_hour`` and
    ``tokens_per_second`` are totals, ``None`` if unknown.
    """

    on_instance: InstanceFit
    speculation: SpeculationChoice
    count: int
    load: int
    usd_per_hour: float | None
    tokens_per_second: float | None

    @property
    def instance(self) -> Instance:
        """The instance type."""
        return self.on_instance.instance

    @property
    def fit(self) -> Fit:
        """The memory fit."""
        return self.on_instance.fit

    @property
    def holds_load(self) -> bool:
        """Whether the KV cache of each holds enough of the load."""
        return self.on_instance.holds(self.load)

    @property
    def usd_per_million_tokens(self) -> float | None:
        """USD per million output tokens under this load."""
        if self.usd_per_hour is None or self.tokens_per_second is None:
            return None
        return round(self.usd_per_hour / (self.tokens_per_second * 3600) * 1_000_000, 4)

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
        one = f"one instance with {format_concurrency(speed.load)}"
        return f"{speed.source}; {self.count} times {one}"

    @property
    def text(self) -> str:
        """``ml.g6.xlarge``, or ``2 x ml.g6.xlarge``."""
        return f"{self.count} x {self.instance.type}" if self.count > 1 else self.instance.type

    @property
    def cost_text(self) -> str:
        """``$4.20 an hour``, for all instances."""
        together = f" for {self.count}" if self.count > 1 else ""
        return f"{format_usd(self.usd_per_hour or 0.0)} an hour{together}"

    @property
    def at_cost(self) -> str:
        """The price after a space and "at"; empty if it is unknown."""
        return f" at {self.cost_text}" if self.usd_per_hour is not None else ""

    @property
    def speed_origin(self) -> str:
        """Whether the speed is measured, or estimated from one instance's."""
        return "measured" if self.count == 1 else "estimated from measurements"

    def reaches(self, tokens_per_second: float) -> bool:
        """Whether evidence shows that it reaches this speed."""
        known = self.tokens_per_second
        return known is not None and known >= tokens_per_second

    def within(self, usd_per_hour: float | None) -> bool:
        """Whether its price is known and at most this limit; true without a limit."""
        if usd_per_hour is None:
            return True
        return self.usd_per_hour is not None and self.usd_per_hour <= usd_per_hour

    def parallel_reason(self) -> Reason:
        """Why it runs on this many GPUs."""
        size, count = self.fit.tensor_parallel_size, self.fit.gpu_count
        if count == 1:
            because = "the instance has one GPU"
        elif not self.fit.fits:
            because = "needs the least additional memory"
        elif not self.holds_load:
            because = f"holds the most requests on the {count} GPUs"
        elif size == 1:
            because = (
                f"one of the {count} GPUs holds the load; tensor parallelism would add "
                "communication"
            )
        else:
            because = (
                f"the fewest of the {count} GPUs that hold the load and divide the attention heads"
            )
        return Reason(what="tensor_parallel_size", value=str(size), because=because)


class CandidateEvaluator:
    """Evaluates instance types for one workload.

    ``work`` has the drafter of ``pair``, its usual K and the concurrency of the whole endpoint.
    """

    def __init__(self, options: Options, pair: SelectedPair, work: PairLoad, region: str) -> None:
        self.options, self.pair, self.work = options, pair, work
        self._region = region
        self._fits: dict[tuple[object, ...], InstanceFit] = {}

    def fitting(self, anywhere: bool = False) -> list[Candidate]:
        """Candidates on all instance types that are recent and large enough, cheapest first:
        without those that the region is known not to have, unless ``anywhere``."""
        oldest = needed_capability(self.work.target.dtype, self.work.target.quantization)
        types = self.work.catalog.instances.instances
        candidates = (
            self.candidate(type)
            for type in types
            if type.capability >= oldest and (anywhere or type.hosted_in(self._region) is not False)
        )
        return sorted((c for c in candidates if c.fit.fits), key=lambda c: c.cost)

    def without_drafter(self) -> CandidateEvaluator:
        """The same evaluator for the target without a drafter."""
        pair, work = replace(self.pair, drafter=None), replace(self.work, drafter=None, k=0)
        return CandidateEvaluator(self.options, pair, work, self._region)

    def largest(self) -> Candidate:
        """The candidate on the type with the most GPU memory."""
        types = self.work.catalog.instances.instances
        return self.candidate(max(types, key=lambda i: (i.gpu_count * i.gpu_memory_mib, i.type)))

    def candidate(self, instance: Instance) -> Candidate:
        """The instance count from the options, else the smallest that reaches the required speed.

        If no count is known to reach it, the fastest.
        """
        if self.options.instance_count is not None:
            return self.shared(instance, self.options.instance_count)
        one, required = self.shared(instance, 1), self.options.min_tokens_per_second
        if required is None or one.reaches(required) or not self._runs(one.on_instance):
            return one
        best = one
        for candidate in self._more(instance, one):
            if (candidate.tokens_per_second or 0) > (best.tokens_per_second or 0):
                best = candidate
            if candidate.reaches(required):
                break
        return best

    def shared(self, instance: Instance, count: int, load: int | None = None) -> Candidate:
        """``count`` instances that share the load evenly; ``load`` replaces the workload's."""
        load = self.work.concurrency if load is None else load
        busy = min(count, load)
        most = math.ceil(load / busy)
        usual = SpeculationChoice(self.pair.drafter, usual_k(self.options, self.pair.drafter))
        on_instance = self._fit_on(instance, usual, most)
        chosen = choose_speculation(self.options, self.pair, self._runs(on_instance), load / busy)
        if chosen.k != usual.k:
            again = self._fit_on(instance, chosen, most)
            if again.fit.tensor_parallel_size == on_instance.fit.tensor_parallel_size:
                on_instance = again
            else:  # the evidence is for another number of GPUs
                chosen = usual
        price, speed = price_of(instance, self._region).value, chosen.speed
        return Candidate(
            on_instance,
            chosen,
            count,
            most,
            None if price is None else round(price.usd_per_hour * count, 4),
            None if speed is None else round(speed.tokens_per_second * busy, 1),
        )

    def starts(self, instance: Instance, concurrency: int) -> bool:
        """Whether an engine with this ``--max-num-seqs`` fits."""
        return fit_on_instance(replace(self.work, concurrency=concurrency), instance, 0).fit.fits

    def work_on(self, candidate: Candidate) -> PairLoad:
        """The workload with this candidate's drafter and K."""
        return replace(self.work, drafter=candidate.speculation.drafter, k=candidate.speculation.k)

    def loads(self, candidate: Candidate) -> tuple[int, ...]:
        """The measured loads of one engine on these GPUs with this drafter."""
        names = names_in_runs(candidate.speculation.drafter, self.pair.own is not None)
        return measured_loads(self._runs(candidate.on_instance), names)

    def _runs(self, on_instance: InstanceFit) -> tuple[SpeedRun, ...]:
        """The evidence for this number and type of GPUs."""
        runs = self.work.catalog.speeds.get(self.work.target.id, ())
        size = on_instance.fit.tensor_parallel_size
        return runs_on(runs, on_instance.instance.gpu, size, self.work.vllm)

    def _more(self, instance: Instance, one: Candidate) -> Iterator[Candidate]:
        """Two or more instances, starting where the load of each has been measured."""
        loads = self.loads(one)
        first = max(2, math.ceil(self.work.concurrency / loads[-1])) if loads else 2
        for count in range(first, min(self.work.concurrency, first + MOST_TRIED) + 1):
            candidate = self.shared(instance, count)
            if candidate.tokens_per_second is None:
                return
            yield candidate

    def _fit_on(self, instance: Instance, chosen: SpeculationChoice, load: int) -> InstanceFit:
        """The fit, computed once for types with equal GPUs."""
        gpus = (instance.gpu, instance.gpu_count, instance.gpu_memory_mib)
        key = (*gpus, instance.gpu_architecture, chosen.drafter is not None, chosen.k, load)
        if key not in self._fits:
            work = replace(self.work, drafter=chosen.drafter, k=chosen.k)
            self._fits[key] = fit_on_instance(work, instance, load)
        return replace(self._fits[key], instance=instance)


REFERENCE_REGION = "us-east-1"
"""Its price is used where the catalogue has none for a region."""

_FIX = "check the price before you deploy: https://aws.amazon.com/sagemaker/ai/pricing/"


def price_unknown(message: str, fix: str) -> Finding:
    """The warning that the price of the instance type is unknown."""
    return warning("price-unknown", "price", message, fix)


def price_of(instance: Instance, region: str) -> Decision[Price | None]:
    """The hourly price of one instance in ``region``, else in us-east-1, else ``None``; the latter
    two come with a finding. A price of another region is named, not used."""
    by_region = {price.region: price for price in instance.prices}
    if region in by_region:
        return Decision(by_region[region])
    if REFERENCE_REGION not in by_region:
        message = f"the catalogue has no price for {instance.type}"
        if by_region:
            other = nearest_region(region, by_region)
            price = format_usd(by_region[other].usd_per_hour)
            message += f" in {region}; in {other} it is {price} an hour"
        return Decision(None, findings=(price_unknown(message, _FIX),))
    message = f"the price of {instance.type} is for {REFERENCE_REGION}, not for {region}"
    finding = warning("price-of-another-region", "price", message, _FIX)
    return Decision(by_region[REFERENCE_REGION], findings=(finding,))
