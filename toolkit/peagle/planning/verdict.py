"""Which drafter and K on these GPUs, by load: the question of a verdict, and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar

from peagle.case import build_case
from peagle.catalog.find import find_drafter, find_instance, find_pair
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.catalog.tables import HERE, Instance
from peagle.checks import check
from peagle.errors import Fix, NotFound, OptionMissing, OptionsConflict, Refused, UserError
from peagle.findings import errors
from peagle.options import EngineOptions, Options, check_numbers, engine_option
from peagle.planning.load import (
    EngineFit,
    Load,
    choose_length,
    choose_size_of_requests,
    shorter_contexts,
    with_workload,
)
from peagle.planning.plan import Decisions
from peagle.planning.planner import select_candidate
from peagle.planning.runtime import choose_region, choose_runtime, find_price
from peagle.planning.speculation import likely_acceptance
from peagle.speed.acceptance import Acceptance, Performance
from peagle.speed.ranking import NO_SPECULATION, Setting
from peagle.speed.verdict import SettingResult, Verdict, WorkloadVerdict, decide_workload
from peagle.workload import WORKLOADS, Workload

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Concurrent requests of a verdict without others."""

FEWER = (256, 64, 16)
"""Requests that one engine runs at a time where it has no memory for those of the largest load."""


class VerdictOptions(EngineOptions):
    """What to compare. ``pair`` with a drafter compares that one alone, else all public ones.

    ``gpu`` is a name of the table of instances: the smallest and cheapest type that holds a drafter
    too is used, with the fewest such GPUs; an ``instance_type`` with those of a plan for each load.
    """

    TAKES: ClassVar[tuple[str, ...]] = (
        "gpu", "instance_type", "vllm", "region", "tensor_parallel_size", "workload",
        "prompt_tokens", "cached_prompt_tokens", "shared_prompt_tokens", "output_tokens", "loads",
    )  # fmt: skip

    gpu: str | None = engine_option("text", "GPU such as H200.")
    prompt_tokens: int | None = engine_option(
        "tokens", "Tokens of each prompt, with --output-tokens.  [default: three sizes]"
    )
    output_tokens: int | None = engine_option("tokens", "Tokens of each answer.")
    loads: tuple[int, ...] = engine_option(
        "loads",
        f"Concurrent requests to compare.  [default: {','.join(map(str, LOADS))}]",
        default=LOADS,
        name="concurrency",
    )


@dataclass
class _ComparedEngines:
    """A target on ``gpus`` GPUs of ``instance``, or as many as ``by_load`` has for a size of
    requests and a load where a plan has others: with each drafter and K, and alone.

    The concurrency of ``load`` is the largest one, which one engine serves. ``refused`` says by
    drafter why it cannot run. Fits and speeds are those of plans.
    """

    load: Load
    instance: Instance
    gpus: int
    by_load: dict[tuple[Workload, int], int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def settings(self, drafters: Sequence[Drafter]) -> tuple[Setting, ...]:
        """The target alone, and every drafter with each K that runs and fits."""
        settings = [NO_SPECULATION]
        for drafter in drafters:
            fitting, refusal = [], self.refusal(drafter)
            if refusal is None:
                ks = self.load.compared_ks(drafter)
                refusal = "does not fit in addition to the target"
                fitting = [
                    Setting(drafter=drafter.name, k=k)
                    for k in ks
                    if self.engine(drafter, k, self.load.workload, 1)[1].fit.fits
                ]
            if not fitting:
                self.refused[drafter.name] = refusal
            settings += fitting
        return tuple(settings)

    def refusal(self, drafter: Drafter | None) -> str | None:
        """The first error of a check of this drafter, or of the target alone, with this version on
        these GPUs."""
        load = self.load
        options = load.options(self.instance, drafter.k_recommended if drafter else None)
        case = build_case(
            load.catalog, load.target, drafter, options, tensor_parallel_size=self.gpus
        )
        findings = errors(check(case))
        return findings[0].message if findings else None

    def engine(
        self, drafter: Drafter | None, k: int, workload: Workload, requests: int
    ) -> tuple[Load, EngineFit]:
        """The load of an engine that is planned for it, and its memory."""
        concurrency = min(requests, self.load.concurrency)
        load = replace(self.load, workload=workload, concurrency=concurrency)
        gpus = self.by_load.get((workload, concurrency), self.gpus)
        return load, load.engine(self.instance, gpus, drafter, k)

    def compare(self, setting: Setting, workload: Workload, requests: int) -> SettingResult:
        """The speed of one engine, measured or estimated, also with a likely acceptance where none
        is known. Unknown where it does not fit, or does not draft for requests of this size."""
        drafter, k = None, setting.k
        if setting.drafter is not None:
            drafter = find_drafter(self.load.target, setting.drafter)
        load, engine = self.engine(drafter, k, workload, requests)
        tokens, most = workload.tokens, drafter.max_positions if drafter else None
        longer = drafter.long_context if drafter else None
        lacking, holds_load = None, requests <= engine.most_requests
        if not engine.fit.fits:
            lacking = "it does not fit"
        if drafter and most is not None and tokens > most:
            lacking = f"{drafter.name} drafts nothing in requests above {most:,} tokens"
        elif longer is not None and tokens >= longer.request_tokens:
            lacking = f"{longer.drafter} is the head for requests of {tokens:,} tokens"
        if lacking:
            unknown = Acceptance(1.0, "unknown", lacking)
            return SettingResult(Performance("unknown", unknown, lacking), holds_load)
        speed, assumed = load.performance(engine, drafter, k, requests), None
        if k and speed.basis == "unknown":
            likely = likely_acceptance(load.acceptance(drafter, k), k)
            assumed = load.performance(engine, drafter, k, requests, assumed=likely)
        return SettingResult(speed, holds_load or speed.basis == "measured", assumed)


def make_verdict(
    options: VerdictOptions, catalog: Catalog, workloads: Mapping[str, Workload] | None = None
) -> Verdict:
    """The verdict, on requests of these sizes, by default the user's or the measured ones. The same
    options and catalogue give the same one.

    Raises NotFound for unknown names, UserError for impossible requests, and Refused if not even
    the target alone fits.
    """
    check_numbers(options)
    pair = find_pair(catalog, options.pair)
    target, default = pair.target, pair.target.default_drafter
    unused = Decisions()  # a verdict gives no reasons
    region = choose_region(options, catalog.runtimes, unused)
    vllm = choose_runtime(options, catalog, target, None, unused, takes_image=False).vllm
    sizes = _choose_sizes(options, target, workloads)
    largest = max(sizes.values(), key=lambda size: size.tokens)
    drafters = [pair.drafter] if "+" in options.pair and pair.drafter else []
    drafters = drafters or [drafter for drafter in target.drafters if drafter.public]
    main = next((d for d in drafters if d.name == default), next(iter(drafters), None))
    # The target as one engine for all loads, from the most to the least memory: with the usual
    # context or one for the longest requests, and fewer requests at a time; more wait.
    usual = choose_length(_options_for(options, largest), target, unused)
    most = max(options.loads)
    loads = [
        Load(target, vllm, length, concurrency, catalog, workload=largest)
        for length in shorter_contexts(usual, largest.tokens)
        for concurrency in dict.fromkeys((most, *(n for n in FEWER if n < most)))
    ]
    compared = _choose_engine(options, loads, main, _instances(options, catalog, region))
    instance = compared.instance
    if options.instance_type and options.tensor_parallel_size is None and instance.gpu_count > 1:
        for size, requests in product(sizes.values(), options.loads):
            planned = _planned_gpus(options, size, requests, instance, catalog)
            if planned not in (None, compared.gpus):
                compared.by_load[size, requests] = planned
    if refusal := compared.refusal(None):
        fix = Fix("find types that fit", ("peagle", "plan", options.pair))
        raise Refused(refusal, fix, "does-not-fit")
    price, findings = find_price(instance, region)
    settings, usd = compared.settings(drafters), price.usd_per_hour if price else None
    decided = []
    for name, size in sizes.items():
        gpus = {n: compared.by_load.get((size, n)) for n in sorted(set(options.loads))}
        by_load = {
            requests: {setting: compared.compare(setting, size, requests) for setting in settings}
            for requests in gpus
        }
        # A plan fills the other GPUs with copies of the engine, which share the price.
        prices = {
            requests: usd and usd / (instance.gpu_count // (of_load or compared.gpus))
            for requests, of_load in gpus.items()
        }
        verdict = decide_workload(name, size, by_load, prices, default)
        loads_on_gpus = tuple(
            entry.model_copy(update={"tensor_parallel_size": gpus[entry.concurrency]})
            for entry in verdict.loads
        )
        decided.append(verdict.model_copy(update={"loads": loads_on_gpus}))
    return Verdict(
        target=target.id,
        gpu=instance.gpu,
        tensor_parallel_size=compared.gpus,
        vllm=vllm,
        max_model_len=compared.load.max_model_len,
        instance_type=instance.type,
        gpu_count=instance.gpu_count,
        region=price.region if price else region,
        usd_per_hour=usd,
        price_date=price.date.isoformat() if price else None,
        workloads=tuple(decided),
        changes=(
            *_changes(compared, settings, decided, usual),
            *(finding.message for finding in findings if instance.type != HERE),
        ),
    )


def _choose_sizes(
    options: VerdictOptions, target: Target, workloads: Mapping[str, Workload] | None
) -> Mapping[str, Workload]:
    """The sizes of requests by name: ``workloads``, the user's, or the measured ones that the
    target supports. Raises UserError for one that it does not, for a size without one of its
    numbers, and for a prompt that is all in the cache."""
    longest = target.architecture.max_positions
    prompt, output = options.prompt_tokens, options.output_tokens
    cached, shared = options.cached_prompt_tokens, options.shared_prompt_tokens
    if workloads:
        sizes = workloads
    elif options.workload is None and {prompt, output, cached, shared} == {None}:
        sizes = {name: size for name, size in WORKLOADS.items() if size.tokens <= longest}
    elif options.workload is None and (prompt is None or output is None):
        flag = "--prompt-tokens" if prompt is None else "--output-tokens"
        raise OptionMissing(f"{flag} is missing", "give the tokens of prompts and of answers")
    else:
        size = choose_size_of_requests(with_workload(options))
        sizes = {options.workload or "your requests": size}
    largest = max((size.tokens for size in sizes.values()), default=0)
    if largest == 0 or largest > longest:
        message = f"requests of {largest:,} tokens are longer than {target.id} supports"
        fix = f"use at most {longest:,} tokens of prompt and answer together"
        raise UserError(message, fix, "requests-above-context")
    return sizes


def _options_for(options: VerdictOptions, size: Workload, **changes: Any) -> Options:
    """The options of a plan for requests of this size."""
    return Options(
        pair=options.pair,
        prompt_tokens=size.prompt_tokens,
        cached_prompt_tokens=size.cached_prompt_tokens,
        shared_prompt_tokens=size.shared_prompt_tokens,
        output_tokens=size.output_tokens,
        vllm=options.vllm,
        region=options.region,
        **changes,
    )


def _planned_gpus(
    options: VerdictOptions, size: Workload, load: int, instance: Instance, catalog: Catalog
) -> int | None:
    """The GPUs per engine of a plan for this load; ``None`` where nothing fits."""
    planned = _options_for(
        options, size, instance_type=instance.type, instance_count=1, concurrency=load
    )
    fit = select_candidate(planned, catalog).fit
    return fit.tensor_parallel_size if fit.fits else None


def _instances(options: VerdictOptions, catalog: Catalog, region: str) -> list[Instance]:
    """The named type, or all with that GPU: the fewest GPUs first, then the cheapest; those with a
    price, be it of another region, before those without."""
    if options.instance_type is not None:
        instance = find_instance(catalog.instances, options.instance_type)
        if options.gpu is not None and options.gpu.lower() != instance.gpu.lower():
            message = f"{instance.place} has {instance.gpu} GPUs, not {options.gpu}"
            raise OptionsConflict(message, "leave out --gpu or --instance-type")
        return [instance]
    types, gpu = catalog.instances.instances, options.gpu or ""
    having = [instance for instance in types if instance.gpu.lower() == gpu.lower()]
    if not having:
        gpus = ", ".join(dict.fromkeys(instance.gpu for instance in types))
        message = f"the catalogue has no instance type with the GPU {gpu!r}"
        raise NotFound(message, f"one of {gpus}; another in this machine: --here", "unknown-gpu")

    def cost(on: Instance) -> tuple[int, bool, bool, float, str]:
        price = on.price_in(region)
        usd = price.usd_per_hour if price else 0.0
        return on.gpu_count, price is None, not on.prices, usd, on.type

    return sorted(having, key=cost)


def _choose_engine(
    options: VerdictOptions,
    loads: Sequence[Load],
    drafter: Drafter | None,
    instances: Sequence[Instance],
) -> _ComparedEngines:
    """The first instance on which one of ``loads`` fits, with the drafter if possible, and how many
    of its GPUs: the user's, else a plan's or the fewest for both. Raises UserError and Refused."""
    usual, size = loads[0], options.tensor_parallel_size
    # A plan has the usual context, so a shorter one is compared only where nothing else fits.
    lengths = dict.fromkeys(load.max_model_len for load in loads)
    places = []
    for instance in instances:
        planned = size
        if size is None and options.instance_type is not None:
            most = max(options.loads)
            planned = _planned_gpus(options, usual.workload, most, instance, usual.catalog)
        divisions = usual.divisions(instance.gpu_count)
        places += [(instance, gpus) for gpus in divisions if planned in (None, gpus)]
    for length, tried, (instance, gpus) in product(lengths, (drafter, None), places):
        for load in loads:
            engine = load.engine(instance, gpus, tried, tried.k_recommended if tried else 0)
            if load.max_model_len == length and engine.fit.fits:
                return _ComparedEngines(load, instance, gpus)
    target, largest = usual.target, instances[-1]
    possible = usual.divisions(largest.gpu_count)
    if size is not None and size not in possible:
        message = f"{target.id} cannot run on {size} of the GPUs of {largest.place}"
        fix = f"use --tensor-parallel-size {', '.join(map(str, possible))}"
        raise UserError(message, fix, code="tensor-parallel")
    on = f"{size or possible[-1]} x {largest.gpu} ({largest.place})"
    types = Fix("find types that fit", ("peagle", "plan", options.pair))
    raise Refused(f"{target.id} does not fit on {on}", types, "does-not-fit")


def _changes(
    compared: _ComparedEngines,
    settings: Sequence[Setting],
    decided: Sequence[WorkloadVerdict],
    usual_length: int,
) -> Iterator[str]:
    """What would change the verdict: the usual context and missing evidence, each in a sentence."""
    if (length := compared.load.max_model_len) < usual_length:
        yield f"{usual_length:,} tokens, the default, do not fit there; {length:,} are compared"
    unknown = set[str]()
    for size in decided:
        bests = {load.concurrency: load.speed(load.best) for load in size.loads}
        loads = [str(n) for n, speed in bests.items() if speed and speed.basis == "estimated"]
        if loads:
            yield f"{size.name}, {', '.join(loads)} at a time: estimated, not measured"
    for setting in settings:
        if setting.drafter:
            drafter = find_drafter(compared.load.target, setting.drafter)
            if compared.load.acceptance(drafter, setting.k).basis == "unknown":
                unknown.add(setting.drafter)
    if unknown:
        yield f"not compared, because the acceptance is unknown: {', '.join(sorted(unknown))}"
    speeds = [
        (size.name, speed) for size in decided for load in size.loads for speed in load.speeds
    ]
    yield from dict.fromkeys(
        f"{name}: {speed.source}"
        for name, speed in speeds
        if speed.basis == "unknown" and speed.setting.drafter not in unknown
    )
    if not compared.load.target.drafters:
        yield "it has no drafter in the catalogue: docs/no-head.md has what works without one"
    for refusal in dict.fromkeys(compared.refused.values()):
        names = ", ".join(name for name, why in compared.refused.items() if why == refusal)
        yield f"not compared: {names}; {refusal}"
