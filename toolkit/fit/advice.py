"""What would make it fit: for every knob the smallest change that does, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from toolkit.catalog.tables import Instance, InstanceTable
from toolkit.fit.accounting import fit_of, without_speculation
from toolkit.fit.engine import default_batched_tokens, extra_slots
from toolkit.fit.gpus import can_compute, capability_of, visible_gib
from toolkit.fit.models import Advice, Engine, Fit, FitCase, TargetModel

Value = TypeVar("Value")

MOST_GPUS = 8
"""GPUs of the largest machine, where it is not known which one is meant."""

HIGHEST_UTILIZATION = 0.97
"""Above it, what other processes and late CUDA graphs take is missing."""


def advise(
    case: FitCase, table: InstanceTable | None = None, most_gpus: int = MOST_GPUS
) -> tuple[Advice, ...]:
    """One change for every knob that makes it fit by itself; none when it fits already.

    ``table`` are the instance types to look among, ``most_gpus`` what the machine has.
    """
    if fit_of(case).fits:
        return ()
    found = [
        _longest_context(case),
        _largest_k(case),
        _smaller_cache(case),
        _higher_utilization(case),
        _fewer_requests(case),
        _more_tokens(case),
        _more_gpus(case, most_gpus),
        _alone(case),
        _instance(case, table) if table else None,
    ]
    return tuple(advice for advice in found if advice)


def parallel_sizes(target: TargetModel, gpus: int) -> list[int]:
    """Powers of two up to ``gpus`` that divide the attention heads."""
    heads = target.architecture.query_heads
    key_value_heads = {group.kv_heads for group in target.architecture.attention}
    return [
        size
        for size in (2**power for power in range(gpus.bit_length()))
        if heads % size == 0 and all(max(n, size) % min(n, size) == 0 for n in key_value_heads)
    ]


def on_instance(case: FitCase, instance: Instance) -> Fit:
    """The case on this instance, over as few of its GPUs as fit, else over all that divide it."""
    fits = [
        fit_of(_with(case, **hardware_of(instance, case.engine), tensor_parallel_size=size))
        for size in parallel_sizes(case.target, instance.gpu_count)
    ]
    return next((fit for fit in fits if fit.fits), fits[-1])


def hardware_of(instance: Instance, engine: Engine) -> dict[str, object]:
    """The fields of ``Engine`` that the instance decides."""
    visible = visible_gib(instance.gpu, instance.gpu_memory_mib)
    tokens = engine.max_num_batched_tokens
    if tokens == default_batched_tokens(engine.gpu, engine.gpu_memory_gib, engine.vllm):
        tokens = default_batched_tokens(instance.gpu, visible, engine.vllm)
    return {
        "gpu": instance.gpu,
        "gpu_count": instance.gpu_count,
        "gpu_memory_gib": visible,
        "driver_gib": instance.gpu_memory_mib / 1024 - visible,
        "capability": capability_of(instance),
        "max_num_batched_tokens": tokens,
    }


def _longest_context(case: FitCase) -> Advice | None:
    """The longest context that fits; more context never takes less."""
    low, high = 1, case.engine.max_model_len - 1
    best = None
    while low <= high:
        middle = (low + high) // 2
        fit = fit_of(_with(case, max_model_len=middle))
        if fit.fits:
            best, low = (middle, fit), middle + 1
        else:
            high = middle - 1
    return _advice("max-model-len", f"{best[0]}", best[1]) if best else None


def _largest_k(case: FitCase) -> Advice | None:
    values = range(case.engine.k - 1, 0, -1) if case.drafter else ()
    return _first("k", values, lambda k: _with(case, k=k))


def _smaller_cache(case: FitCase) -> Advice | None:
    values = () if case.engine.kv_cache_dtype.startswith("fp8") else ("fp8",)
    return _first("kv-cache-dtype", values, lambda dtype: _with(case, kv_cache_dtype=dtype))


def _higher_utilization(case: FitCase) -> Advice | None:
    now, top = round(case.engine.gpu_memory_utilization * 100), round(HIGHEST_UTILIZATION * 100)
    values = (share / 100 for share in range(now + 1, top + 1))
    return _first(
        "gpu-memory-utilization", values, lambda share: _with(case, gpu_memory_utilization=share)
    )


def _fewer_requests(case: FitCase) -> Advice | None:
    """The largest half, quarter, ... of the requests at a time."""
    values = _halves(case.engine.max_num_seqs)
    return _first("max-num-seqs", values, lambda count: _with(case, max_num_seqs=count))


def _more_tokens(case: FitCase) -> Advice | None:
    """More tokens in a step, where K's slots leave none."""
    tokens, slots = case.engine.max_num_batched_tokens, extra_slots(case.engine, case.drafter)
    values = [1 << slots.bit_length()] if slots >= tokens else []
    return _first(
        "max-num-batched-tokens", values, lambda count: _with(case, max_num_batched_tokens=count)
    )


def _more_gpus(case: FitCase, most: int) -> Advice | None:
    sizes = parallel_sizes(case.target, most)
    values = [size for size in sizes if size > case.engine.tensor_parallel_size]
    return _first("tp", values, lambda size: _with(case, tensor_parallel_size=size))


def _alone(case: FitCase) -> Advice | None:
    values = ("no-speculation",) if case.drafter else ()
    return _first("no-speculation", values, lambda _: without_speculation(case))


def _instance(case: FitCase, table: InstanceTable) -> Advice | None:
    """The cheapest instance type that fits; those without a price come last."""
    target = case.target
    for instance in sorted(table.instances, key=_cost):
        if not can_compute(capability_of(instance), target.dtype, target.quantization):
            continue
        fit = on_instance(case, instance)
        if fit.fits:
            gpus = f"{fit.tensor_parallel_size} of its {instance.gpu_count} GPUs"
            text = instance.type if instance.gpu_count == 1 else f"{instance.type}, {gpus}"
            return _advice("instance-type", text, fit)
    return None


def _cost(instance: Instance) -> tuple[float, int, str]:
    price = min((p.usd_per_hour for p in instance.prices), default=float("inf"))
    return price, instance.gpu_count * instance.gpu_memory_mib, instance.type


def _halves(number: int) -> Iterator[int]:
    while number > 1:
        number //= 2
        yield number


def _first(knob: str, values: Iterable[Value], turned: Callable[[Value], FitCase]) -> Advice | None:
    for value in values:
        fit = fit_of(turned(value))
        if fit.fits:
            return _advice(knob, str(value), fit)
    return None


def _advice(knob: str, value: str, fit: Fit) -> Advice:
    return Advice(
        knob=knob,
        value=value,
        kv_cache_tokens=fit.kv_cache_tokens,
        max_concurrency=fit.max_concurrency,
    )


def _with(case: FitCase, **changes: object) -> FitCase:
    return replace(case, engine=replace(case.engine, **changes))  # type: ignore[arg-type]
