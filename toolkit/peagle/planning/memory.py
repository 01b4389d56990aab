"""The memory fit as planning asks for it: a workload, vLLM's arguments, an instance.

The arithmetic is that of ``peagle.fit``, which ``peagle fit`` shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peagle.catalog.schema import Drafter, Target, Value
from peagle.catalog.tables import Instance
from peagle.fit.building import draft_model, target_model
from peagle.fit.estimate import GIB, INSIDE, drafter_on_gpu, fit_of
from peagle.fit.models import Engine, Fit, FitCase
from peagle.vllm.defaults import default_batched_tokens
from peagle.vllm.gpus import capability_of, visible_gib

__all__ = ["GIB", "Settings", "Workload", "drafter_bytes", "memory_fit", "missing_gib"]

GPU_MEMORY_UTILIZATION = 0.9
"""The share of a GPU's memory that vLLM may use; given to it, since its default has changed."""


@dataclass(frozen=True)
class Workload:
    """What is to be served, before it is known where."""

    target: Target
    drafter: Drafter | None
    k: int
    vllm: str
    max_model_len: int
    concurrency: int


Settings = Mapping[str, Value]
"""vLLM's arguments on one GPU architecture, without the dashes."""


def memory_fit(work: Workload, settings: Settings, on: Instance, tensor_parallel_size: int) -> Fit:
    """What one of ``tensor_parallel_size`` GPUs of this instance holds."""
    return fit_of(fit_case(work, settings, on, tensor_parallel_size))


def fit_case(
    work: Workload, settings: Settings, on: Instance, tensor_parallel_size: int
) -> FitCase:
    """The case that the fit reckons: the pair, and vLLM on this instance as planned."""
    target = target_model(work.target)
    if "dtype" in settings:
        target = target_model(work.target, str(settings["dtype"]))
    drafter = draft_model(work.drafter, target) if work.drafter else None
    visible = visible_gib(on.gpu, on.gpu_memory_mib)
    engine = Engine(
        gpu=on.gpu,
        gpu_count=on.gpu_count,
        gpu_memory_gib=visible,
        driver_gib=on.gpu_memory_mib / 1024 - visible,
        capability=capability_of(on),
        vllm=work.vllm,
        max_model_len=work.max_model_len,
        max_num_seqs=work.concurrency,
        max_num_batched_tokens=batched_tokens(settings, on, work.vllm),
        tensor_parallel_size=tensor_parallel_size,
        gpu_memory_utilization=float(
            settings.get("gpu-memory-utilization", GPU_MEMORY_UTILIZATION)
        ),
        kv_cache_dtype=str(settings.get("kv-cache-dtype", "auto")),
        k=work.k if work.drafter else 0,
        enforce_eager=bool(settings.get("enforce-eager")),
        draftless=work.drafter.method if work.drafter and drafter is None else None,
    )
    return FitCase(target, drafter, engine)


def missing_gib(fit: Fit) -> float:
    """GiB that one GPU lacks for a single request of full length; 0 when it fits."""
    outside = sum(gib for name, gib in fit.terms.items() if not name.startswith(INSIDE))
    return max(outside + fit.terms["cache_of_one_full_request"] - fit.gpu_memory_gib, 0.0)


def batched_tokens(settings: Settings, on: Instance, vllm: str) -> int:
    """Tokens of one step: as set, else vLLM's default for its server on that GPU."""
    given = settings.get("max-num-batched-tokens")
    if given is not None:
        return int(given)
    return default_batched_tokens(on.gpu, on.gpu_memory_mib / 1024, vllm)


def drafter_bytes(work: Workload) -> int:
    """Bytes of the drafter's weights on one GPU that holds it all."""
    target = target_model(work.target)
    drafter = draft_model(work.drafter, target) if work.drafter else None
    return drafter_on_gpu(drafter, 1) if drafter else 0
