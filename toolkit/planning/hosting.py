"""A model on one instance type: over how many of its GPUs, and whether its cache holds the load."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.catalog.models import EngineSetting, Target
from toolkit.catalog.tables import Instance
from toolkit.fit.accounting import why_not
from toolkit.fit.models import Fit, FitCase
from toolkit.planning.memory import Workload, fit_case, memory_fit, missing_gib
from toolkit.planning.models import Reason
from toolkit.planning.settings import engine_settings

HELD_SHARE = 0.25
"""What the cache must hold of the load, if all its requests had full length. Most requests are much
shorter than the longest context, so asking for all would pay for memory that stays empty; with
less, requests wait or are stopped for want of cache (vLLM preempts them)."""

HELD_WORDS = "a quarter"

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


def host(work: Workload, instance: Instance, load: int) -> Hosting:
    """The model on this instance, over as few GPUs as hold ``load`` requests at a time; else over
    those that hold most, or that lack least."""
    settings = engine_settings(work.target, work.drafter, instance.gpu_architecture, work.vllm)
    values = {name: setting.value for name, setting in settings.items()}
    fits: list[Fit] = []
    for size in _sizes(work.target, instance):
        fits.append(memory_fit(work, values, instance, size))
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
    values = {name: setting.value for name, setting in hosting.settings.items()}
    return fit_case(work, values, hosting.instance, hosting.fit.tensor_parallel_size)


def why_too_small(work: Workload, hosting: Hosting) -> str:
    """Why it does not fit, in one line; "" when it does."""
    return why_not(case_of(work, hosting)) or ""


def needed_capability(target: Target) -> int:
    """The compute capability that the target needs, times ten."""
    small_numbers = target.dtype == "bfloat16" or target.quantization in ("mxfp4", "nvfp4")
    return OLDEST_GPU_FOR_BFLOAT16 if small_numbers else OLDEST_GPU


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


def parallel_reason(hosting: Hosting, load: int) -> tuple[Reason, ...]:
    """Why it is divided over so many GPUs, for ``load`` requests at a time."""
    fit = hosting.fit
    size, count = fit.tensor_parallel_size, fit.gpu_count
    if count == 1:
        because = "the instance has one GPU"
    elif not fit.fits:
        because = "the division that lacks least"
    elif not holds(fit, load):
        because = f"of the {count} GPUs, so many hold most requests"
    elif size == 1:
        because = f"one of the {count} GPUs holds the load, and dividing a model costs time"
    else:
        because = f"the fewest of the {count} GPUs that hold the load and divide its heads"
    return (Reason(what="tensor_parallel_size", value=str(size), because=because),)
