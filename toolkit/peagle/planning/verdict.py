"""The question of a verdict, and its answer: which drafter and K on these GPUs, by load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from peagle.catalog.find import find_instance, find_pair
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.catalog.tables import Instance
from peagle.checkpoints.division import divisions, is_expert_parallel
from peagle.errors import Fix, NotFound, OptionMissing, OptionsConflict, Refused, UserError, nearest
from peagle.options import Options
from peagle.planning.engines import Load
from peagle.planning.load import (
    choose_length,
    shorter_contexts,
    size_of_requests,
    with_workload,
)
from peagle.planning.planner import select_candidate
from peagle.planning.runtime import choose_region, choose_runtime, price_in, price_of
from peagle.planning.verdict_changes import ComparedSettings, changes_of
from peagle.speed.decision import Question, decide_workload
from peagle.speed.models import WORKLOADS, Workload, WorkloadName
from peagle.speed.verdict import Verdict, VerdictChange, WorkloadVerdict

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Concurrent requests of a verdict without others."""

FEWER = (256, 64, 16)
"""Requests that one engine runs at a time where it has no memory for those of the largest load."""


@dataclass(frozen=True)
class VerdictRequest:
    """What to compare. ``pair`` with a drafter compares that one alone, else all public ones.

    ``gpu`` is a name of the table of instances: its smallest and cheapest type that fits is used,
    with the fewest GPUs that fit. On an ``instance_type``, an engine has the GPUs of a plan for
    each load there, unless ``tensor_parallel_size`` says how many.
    """

    pair: str
    gpu: str | None = None
    instance_type: str | None = None
    tensor_parallel_size: int | None = None
    workloads: Mapping[str, Workload] | None = None
    loads: Sequence[int] = LOADS
    vllm: str | None = None
    region: str | None = None


_DOES_NOT_RUN = "does-not-run"
"""Not even the target alone runs on that GPU: it does not fit, or a rule rejects it."""


def sizes_of_requests(
    workload: WorkloadName | None,
    prompt_tokens: int | None,
    cached_prompt_tokens: int | None,
    output_tokens: int | None,
    shared_prompt_tokens: int | None = None,
) -> Mapping[str, Workload] | None:
    """The user's size of requests by its name, ``None`` without any. Raises UserError for a size
    without one of its numbers, and for a prompt that is all in the cache."""
    if workload is None:
        missing = prompt_tokens is None, output_tokens is None
        cached = cached_prompt_tokens is not None or shared_prompt_tokens is not None
        if any(missing) and (not all(missing) or cached):
            flag = "--prompt-tokens" if missing[0] else "--output-tokens"
            raise OptionMissing(f"{flag} is missing", "give the tokens of prompts and of answers")
        if all(missing):
            return None
    options = Options(
        pair="",
        workload=workload,
        prompt_tokens=prompt_tokens,
        cached_prompt_tokens=cached_prompt_tokens,
        shared_prompt_tokens=shared_prompt_tokens,
        output_tokens=output_tokens,
    )
    return {workload or "your requests": size_of_requests(with_workload(options))}


def make_verdict(request: VerdictRequest, catalog: Catalog) -> Verdict:
    """The verdict: the same request and catalogue give the same one.

    Raises NotFound for unknown names, UserError for impossible requests, and Refused if not even
    the target alone fits.
    """
    pair = find_pair(catalog, request.pair)
    target, default = pair.target, pair.target.default_drafter
    options = Options(pair=request.pair, vllm=request.vllm, region=request.region)
    region = choose_region(options, catalog.runtimes).value
    runtime = choose_runtime(options, catalog, target, None, takes_image=False).value
    sizes = _sizes(request, target)
    drafters = [pair.drafter] if "+" in request.pair and pair.drafter else []
    drafters = drafters or [drafter for drafter in target.drafters if drafter.public]
    main = next((d for d in drafters if d.name == default), next(iter(drafters), None))
    loads = _loads(target, request, catalog, runtime.vllm, sizes.values())
    load, instance, gpus = _engine(request, loads, main, _instances(request, catalog, region))
    by_load: dict[tuple[Workload, int], int] = {}
    if request.instance_type is not None and request.tensor_parallel_size is None:
        several = instance.gpu_count > 1
        for size, requests in product(sizes.values(), request.loads if several else ()):
            by_load[size, requests] = (
                _planned_gpus(request, size, requests, instance, catalog) or gpus
            )
    compared = ComparedSettings(load, instance, gpus, by_load)
    if reason := compared.refusal(None):
        raise Refused(reason, Fix("find types that fit", _plan_of(target)), _DOES_NOT_RUN)
    priced = price_of(instance, region)
    price = priced.value
    usd = price.usd_per_hour if price else None
    settings, requested = compared.settings(drafters), tuple(sorted(set(request.loads)))
    question = Question(
        settings,
        requested,
        usd,
        default,
        compared.performance,
        compared.assumed,
        compared.holds_load,
    )
    decided = tuple(
        _with_gpus(decide_workload(question, name, size), compared) for name, size in sizes.items()
    )
    changes = [*changes_of(compared, question, decided, priced.findings)]
    if load.max_model_len < loads[0].max_model_len:
        text = (
            f"the default context of {loads[0].max_model_len:,} tokens does not fit there; engines "
            f"with {load.max_model_len:,} are compared"
        )
        changes.insert(0, VerdictChange(kind="context", text=text))
    return Verdict(
        target=target.id,
        gpu=instance.gpu,
        tensor_parallel_size=gpus,
        vllm=runtime.vllm,
        max_model_len=load.max_model_len,
        instance_type=instance.type,
        gpu_count=instance.gpu_count,
        region=price.region if price else region,
        usd_per_hour=usd,
        price_date=price.date.isoformat() if price else None,
        workloads=decided,
        changes=tuple(changes),
    )


def _sizes(request: VerdictRequest, target: Target) -> Mapping[str, Workload]:
    """The user's sizes of requests, or the usual ones that the target supports. Raises
    UserError."""
    most = target.architecture.max_positions
    sizes = request.workloads or {
        name: size for name, size in WORKLOADS.items() if size.tokens <= most
    }
    longest = max((size.tokens for size in sizes.values()), default=0)
    if not sizes or longest > most:
        message = f"requests of {longest:,} tokens are longer than {target.id} supports"
        raise UserError(
            message,
            f"use at most {most:,} tokens of prompt and answer together",
            code="requests-above-context",
        )
    return sizes


def _instances(request: VerdictRequest, catalog: Catalog, region: str) -> list[Instance]:
    """The named type, or all with that GPU: the fewest GPUs first, then the cheapest; those with a
    price, be it of another region, before those without."""
    if request.instance_type is not None:
        instance = find_instance(catalog.instances, request.instance_type)
        if request.gpu is not None and request.gpu.lower() != instance.gpu.lower():
            message = f"{instance.type} has {instance.gpu} GPUs, not {request.gpu}"
            raise OptionsConflict(message, "leave out --gpu or --instance-type")
        return [instance]
    types = catalog.instances.instances
    having = [instance for instance in types if instance.gpu.lower() == (request.gpu or "").lower()]
    if not having:
        gpus = list(dict.fromkeys(instance.gpu for instance in types))
        hint = nearest(request.gpu or "", gpus) or f"one of {', '.join(gpus)}"
        raise NotFound(
            f"the catalogue has no instance type with the GPU {request.gpu!r}",
            hint,
            code="unknown-gpu",
        )

    def cost(on: Instance) -> tuple[int, bool, bool, float, str]:
        price = price_in(on, region)
        usd = price.usd_per_hour if price else 0.0
        return on.gpu_count, price is None, not on.prices, usd, on.type

    return sorted(having, key=cost)


def _loads(
    target: Target,
    request: VerdictRequest,
    catalog: Catalog,
    vllm: str,
    sizes: Iterable[Workload],
) -> list[Load]:
    """The target as one engine for all loads, from the most to the least memory: with the usual
    context or one for the longest requests, and fewer requests at a time; more wait."""
    size = max(sizes, key=lambda size: size.tokens)
    usual = choose_length(_options(request, size), target).value
    most = max(request.loads)
    return [
        Load(target, vllm, length, concurrency, catalog, workload=size)
        for length in shorter_contexts(usual, size.tokens)
        for concurrency in dict.fromkeys((most, *(n for n in FEWER if n < most)))
    ]


def _engine(
    request: VerdictRequest,
    loads: Sequence[Load],
    drafter: Drafter | None,
    instances: Sequence[Instance],
) -> tuple[Load, Instance, int]:
    """The first instance on which one of ``loads`` fits, with the drafter if possible, and the
    number of its GPUs: the user's, else a plan's or the fewest. Raises UserError and Refused."""
    usual, size = loads[0], request.tensor_parallel_size
    whole, target = is_expert_parallel(usual.settings), usual.target
    for instance in instances:
        planned = size
        if size is None and request.instance_type is not None:
            most = max(request.loads)
            planned = _planned_gpus(request, usual.workload, most, instance, usual.catalog)
        for gpus in divisions(target.architecture, instance.gpu_count, whole):
            if planned not in (None, gpus):
                continue
            # A plan has the usual context, so a shorter one is compared only where nothing else
            # fits.
            for length in dict.fromkeys(load.max_model_len for load in loads):
                for tried in (drafter, None):
                    k = tried.k_recommended if tried else 0
                    for load in loads:
                        engine = load.engine(instance, gpus, tried, k)
                        if load.max_model_len == length and engine.fit.fits:
                            return load, instance, gpus
    largest = instances[-1]
    possible = divisions(target.architecture, largest.gpu_count, whole)
    if size is not None and size not in possible:
        message = f"{target.id} cannot run on {size} of the GPUs of {largest.type}"
        fix = f"use --tensor-parallel-size {', '.join(map(str, possible))}"
        raise UserError(message, fix, code="tensor-parallel")
    raise Refused(
        f"{target.id} does not fit on {size or possible[-1]} x {largest.gpu} ({largest.type})",
        Fix("find types that fit", _plan_of(target)),
        code="does-not-fit",
    )


def _with_gpus(decided: WorkloadVerdict, compared: ComparedSettings) -> WorkloadVerdict:
    """The verdict with the number of GPUs at each load where that is not the verdict's own."""
    loads = []
    for load in decided.loads:
        gpus = compared.gpus_at(decided.workload, load.concurrency)
        size = gpus if gpus != compared.gpus else None
        loads.append(load.model_copy(update={"tensor_parallel_size": size}))
    return decided.model_copy(update={"loads": tuple(loads)})


def _options(request: VerdictRequest, size: Workload, **more: Any) -> Options:
    """The options of a plan for requests of this size."""
    return Options(
        pair=request.pair,
        prompt_tokens=size.prompt_tokens,
        cached_prompt_tokens=size.cached_prompt_tokens,
        shared_prompt_tokens=size.shared_prompt_tokens,
        output_tokens=size.output_tokens,
        vllm=request.vllm,
        region=request.region,
        **more,
    )


def _planned_gpus(
    request: VerdictRequest, size: Workload, load: int, instance: Instance, catalog: Catalog
) -> int | None:
    """The GPUs per engine of a plan for this load on this instance; ``None`` where nothing fits."""
    options = _options(
        request, size, instance_type=instance.type, instance_count=1, concurrency=load
    )
    fit = select_candidate(options, catalog).fit
    return fit.tensor_parallel_size if fit.fits else None


def _plan_of(target: Target) -> tuple[str, ...]:
    return ("peagle", "plan", target.short_name)
