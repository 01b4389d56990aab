"""On which instance, over how many of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.catalog.models import EngineSetting, Instance, InstanceTable, Target
from toolkit.catalog.pairs import find_instance
from toolkit.errors import UserError
from toolkit.findings import Finding, error, note
from toolkit.fit.models import Fit
from toolkit.planning.choice import Choice, chosen
from toolkit.planning.memory import GIB, Workload, drafter_bytes, memory_fit, missing_gib
from toolkit.planning.models import Options, Reason
from toolkit.planning.prices import cost_order, price_of
from toolkit.planning.settings import engine_settings

OLDEST_GPU = 75
"""Oldest compute capability that vLLM runs on with CUDA 13, times ten."""

OLDEST_GPU_FOR_BFLOAT16 = 80
"""Oldest that computes in bfloat16, and that vLLM's kernels for 4-bit weights take."""


@dataclass(frozen=True)
class Hosting:
    """An instance, the engine's settings for its GPU, and how the model fits."""

    instance: Instance
    settings: dict[str, EngineSetting]
    fit: Fit


def choose_hosting(
    options: Options, table: InstanceTable, work: Workload, region: str
) -> Choice[Hosting]:
    """The user's instance, or the cheapest that fits. Too small or too old is a finding.

    Raises NotFound for an instance type that the catalogue does not have.
    """
    if options.instance_type is None:
        return _cheapest(table, work, region)
    instance = find_instance(table, options.instance_type)
    hosting = host(work, instance)
    findings = (
        *_too_old(work.target, instance),
        *_too_small(hosting, table, work, region),
        *_remarks(hosting, work),
        *_idle(hosting),
    )
    return Choice(hosting, _parallel_reason(hosting), findings)


def choose_count(options: Options) -> Choice[int]:
    """How many instances."""
    if options.instance_count is None:
        return chosen(1, "instance_count", "one instance answers; more share the load")
    if options.instance_count < 1:
        raise UserError(f"--instance-count {options.instance_count} is less than 1", "use 1")
    return Choice(options.instance_count)


def host(work: Workload, instance: Instance) -> Hosting:
    """The model on this instance, over as few GPUs as fit; over those with most room if none do."""
    settings = engine_settings(work.target, work.drafter, instance.gpu_architecture, work.vllm)
    values = {name: setting.value for name, setting in settings.items()}
    fits = [memory_fit(work, values, instance, size) for size in _sizes(work.target, instance)]
    best = next((fit for fit in fits if fit.fits), None) or min(fits, key=missing_gib)
    return Hosting(instance, settings, best)


def _sizes(target: Target, instance: Instance) -> list[int]:
    """Powers of two up to the GPU count that divide the attention heads."""
    heads = target.architecture.query_heads
    key_value_heads = {group.kv_heads for group in target.architecture.attention}
    return [
        size
        for size in (2**power for power in range(instance.gpu_count.bit_length()))
        if heads % size == 0 and all(max(n, size) % min(n, size) == 0 for n in key_value_heads)
    ]


def _fitting(table: InstanceTable, work: Workload) -> list[Hosting]:
    return [
        hosting
        for hosting in (
            host(work, instance)
            for instance in table.instances
            if not _too_old(work.target, instance)
        )
        if hosting.fit.fits
    ]


def _cheapest(table: InstanceTable, work: Workload, region: str) -> Choice[Hosting]:
    fitting = _fitting(table, work)
    if not fitting:
        largest = max(table.instances, key=lambda i: (i.gpu_count * i.gpu_memory_mib, i.type))
        hosting = host(work, largest)
        message = (
            f"no instance type holds it; {largest.type}, the largest, "
            f"lacks {missing_gib(hosting.fit):.1f} GiB on each GPU"
        )
        finding = error("instance-too-small", "instance_type", message, "lower --max-model-len")
        because = "the largest that the catalogue has, since none fits"
        reasons = chosen(largest, "instance_type", because, shown=largest.type).reasons
        return Choice(hosting, reasons, (finding,))
    best = min(fitting, key=lambda hosting: cost_order(hosting.instance, region))
    price = price_of(best.instance, region).value
    cost = f"at ${price.usd_per_hour:.2f} an hour" if price else "though its price is not known"
    because = f"the cheapest of {len(fitting)} types that fit, {cost}"
    reasons = chosen(best, "instance_type", because, shown=best.instance.type).reasons
    return Choice(best, (*reasons, *_parallel_reason(best)), _remarks(best, work))


def _parallel_reason(hosting: Hosting) -> tuple[Reason, ...]:
    fit = hosting.fit
    size, count = fit.tensor_parallel_size, fit.gpu_count
    if count == 1:
        because = "the instance has one GPU"
    elif not fit.fits:
        because = "the division that lacks least"
    elif size == 1:
        because = f"it fits on one of the {count} GPUs, and dividing a model costs time"
    else:
        because = f"the fewest of the {count} GPUs on which it fits and which divide its heads"
    return (Reason(what="tensor_parallel_size", value=str(size), because=because),)


def _too_old(target: Target, instance: Instance) -> tuple[Finding, ...]:
    capability = int(instance.gpu_architecture.removeprefix("sm_"))
    small_numbers = target.dtype == "bfloat16" or target.quantization in ("mxfp4", "nvfp4")
    oldest = OLDEST_GPU_FOR_BFLOAT16 if small_numbers else OLDEST_GPU
    if capability >= oldest:
        return ()
    message = (
        f"{target.title} needs a GPU of compute capability {oldest / 10}, and the "
        f"{instance.gpu} of {instance.type} has {capability / 10}"
    )
    fix = "leave --instance-type out to get the cheapest that fits"
    return (error("gpu-too-old", "instance_type", message, fix),)


def _too_small(
    hosting: Hosting, table: InstanceTable, work: Workload, region: str
) -> tuple[Finding, ...]:
    fit, instance = hosting.fit, hosting.instance
    if fit.fits:
        return ()
    message = (
        f"{instance.type} ({fit.gpu_count} x {fit.gpu}, {fit.gpu_memory_gib:.1f} GiB each) lacks "
        f"{missing_gib(fit):.1f} GiB on each GPU for one request of {work.max_model_len:,} tokens"
    )
    return (error("instance-too-small", "instance_type", message, _larger(table, work, region)),)


def _larger(table: InstanceTable, work: Workload, region: str) -> str:
    fitting = [hosting.instance for hosting in _fitting(table, work)]
    if not fitting:
        return "lower --max-model-len: no instance type holds it"
    smallest = min(fitting, key=lambda i: (i.gpu_count * i.gpu_memory_mib, *cost_order(i, region)))
    cheapest = min(fitting, key=lambda i: cost_order(i, region))
    price = price_of(cheapest, region).value
    cost = f" at ${price.usd_per_hour:.2f} an hour" if price else ""
    if smallest.type == cheapest.type:
        return f"use {smallest.type}, the smallest and cheapest that fits{cost}"
    return f"use {smallest.type}, the smallest that fits, or {cheapest.type}, the cheapest{cost}"


def _remarks(hosting: Hosting, work: Workload) -> tuple[Finding, ...]:
    """What is good to know of a model that fits."""
    fit, instance = hosting.fit, hosting.instance
    if not fit.fits:
        return ()
    found: list[Finding] = []
    if fit.max_concurrency < work.concurrency:
        message = (
            f"the cache holds {fit.max_concurrency:.1f} requests of {work.max_model_len:,} tokens, "
            f"and {work.concurrency} are to run at the same time"
        )
        fix = "fine for shorter requests; else lower --max-model-len or use a larger instance"
        found.append(note("cache-below-concurrency", "concurrency", message, fix))
    weights = (work.target.weight_bytes + drafter_bytes(work)) / GIB
    if weights > instance.memory_gib:
        message = (
            f"the weights have {weights:.1f} GiB and {instance.type} {instance.memory_gib} GiB of "
            "host memory, so they are read in pieces and the start takes longer"
        )
        fix = "if the start fails for want of memory, use the next larger size"
        found.append(note("host-memory-below-weights", "instance_type", message, fix))
    return tuple(found)


def _idle(hosting: Hosting) -> tuple[Finding, ...]:
    """A word on GPUs of the user's instance that nobody needs."""
    fit = hosting.fit
    idle = fit.gpu_count - fit.tensor_parallel_size
    if not fit.fits or not idle:
        return ()
    message = f"{idle} of the {fit.gpu_count} GPUs of {hosting.instance.type} do nothing"
    fix = "leave --instance-type out to get the cheapest that fits"
    return (note("gpus-idle", "instance_type", message, fix),)
