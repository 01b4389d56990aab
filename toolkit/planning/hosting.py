"""A model on one instance type: over how many of its GPUs, and what is to be said of it."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.catalog.models import EngineSetting, Target
from toolkit.catalog.tables import Instance
from toolkit.findings import Finding, error, note
from toolkit.fit.models import Fit
from toolkit.planning.memory import GIB, Workload, drafter_bytes, memory_fit, missing_gib
from toolkit.planning.models import Reason
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


def host(work: Workload, instance: Instance) -> Hosting:
    """The model on this instance, over as few GPUs as fit; over those with most room if none do."""
    settings = engine_settings(work.target, work.drafter, instance.gpu_architecture, work.vllm)
    values = {name: setting.value for name, setting in settings.items()}
    fits: list[Fit] = []
    for size in _sizes(work.target, instance):
        fits.append(memory_fit(work, values, instance, size))
        if fits[-1].fits:
            return Hosting(instance, settings, fits[-1])
    return Hosting(instance, settings, min(fits, key=missing_gib))


def fit_key(instance: Instance) -> tuple[str, int, int, str]:
    """What the fit depends on: instance types that are alike in this fit alike."""
    return (
        instance.gpu,
        instance.gpu_count,
        instance.gpu_memory_mib,
        instance.gpu_architecture,
    )


def _sizes(target: Target, instance: Instance) -> list[int]:
    """Powers of two up to the GPU count that divide the attention heads."""
    heads = target.architecture.query_heads
    key_value_heads = {group.kv_heads for group in target.architecture.attention}
    return [
        size
        for size in (2**power for power in range(instance.gpu_count.bit_length()))
        if heads % size == 0 and all(max(n, size) % min(n, size) == 0 for n in key_value_heads)
    ]


def parallel_reason(hosting: Hosting) -> tuple[Reason, ...]:
    """Why it is divided over so many GPUs."""
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


def too_old(target: Target, instance: Instance) -> tuple[Finding, ...]:
    """An error when this GPU cannot compute as the target needs."""
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


def too_small(hosting: Hosting, work: Workload, fix: str) -> tuple[Finding, ...]:
    """An error when not one request of full length fits."""
    fit, instance = hosting.fit, hosting.instance
    if fit.fits:
        return ()
    message = (
        f"{instance.type} ({fit.gpu_count} x {fit.gpu}, {fit.gpu_memory_gib:.1f} GiB each) lacks "
        f"{missing_gib(fit):.1f} GiB on each GPU for one request of {work.max_model_len:,} tokens"
    )
    return (error("instance-too-small", "instance_type", message, fix),)


def remarks(hosting: Hosting, work: Workload, load: int) -> tuple[Finding, ...]:
    """What is good to know of a model that fits, with ``load`` requests at a time on it."""
    fit, instance = hosting.fit, hosting.instance
    if not fit.fits:
        return ()
    found: list[Finding] = []
    if fit.max_concurrency < load:
        message = (
            f"the cache holds {fit.max_concurrency:.1f} requests of {work.max_model_len:,} tokens, "
            f"and {load} are to run at the same time"
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


def idle(hosting: Hosting) -> tuple[Finding, ...]:
    """A word on GPUs of the user's instance that nobody needs."""
    fit = hosting.fit
    idle = fit.gpu_count - fit.tensor_parallel_size
    if not fit.fits or not idle:
        return ()
    message = f"{idle} of the {fit.gpu_count} GPUs of {hosting.instance.type} do nothing"
    fix = "leave --instance-type out to get the cheapest that fits"
    return (note("gpus-idle", "instance_type", message, fix),)
