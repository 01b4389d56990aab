"""Advice for a pair that does not fit: for each option the smallest change that makes it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from peagle.catalog.tables import Instance, InstanceTable
from peagle.checkpoints.division import divisions
from peagle.fit.estimate import fit_of, is_multimodal
from peagle.fit.models import Advice, Fit, FitCase
from peagle.vllm.defaults import extra_slots
from peagle.vllm.gpus import needed_capability

ApplyChange = Callable[[str, object], FitCase | None]
"""(setting, new value) -> the case with that single change and its consequences, such as the
defaults of a different GPU. ``None`` for a change that is rejected, but not because of memory."""

MAX_GPUS = 8
"""GPUs of the largest instance type, used when none is given."""

_HIGHEST_PERCENT = 97
"""Of the GPU memory; above it, other processes and late CUDA graphs run out of memory."""

MAX_K_TRIED = 64
"""The largest K to try: the catalogue's heads are trained for at most 18. Every smaller K is tried,
since a larger K can take less memory: CUDA graphs are captured for whole steps of K + 1 tokens."""

_MILDEST_FIRST = (
    "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens", "max-model-len",
)  # fmt: skip
"""What to change first: these keep target, drafter, K, precision and GPUs. The context is the last
of them, since requests may need all of it."""

_VIDEO_TOKENS = 32 * 78
"""Tokens of Gemma-4's longest video, which a step must hold whole: 32 frames of 70 tokens and their
delimiters (get_mm_max_tokens_per_item of gemma4_mm.py; v1/core/encoder_cache_manager.py)."""


def advise(
    case: FitCase,
    apply_change: ApplyChange,
    table: InstanceTable | None = None,
    max_gpus: int = MAX_GPUS,
) -> tuple[Advice, ...]:
    """The changes that each make the case fit, one per setting; empty when it fits already.

    ``table`` lists the instance types to consider, ``max_gpus`` is the number of GPUs available.
    """
    if fit_of(case).fits:
        return ()
    engine, images = case.engine, case.engine.images and is_multimodal(case.target)
    shares = range(round(engine.gpu_memory_utilization * 100) + 1, _HIGHEST_PERCENT + 1)
    sizes = divisions(case.target.architecture, max_gpus, engine.expert_parallel)
    tried: dict[str, Iterable[object]] = {
        "k": range(min(engine.k - 1, MAX_K_TRIED), 0, -1),
        "kv-cache-dtype": [] if engine.kv_cache_dtype.startswith("fp8") else ["fp8"],
        "gpu-memory-utilization": (share / 100 for share in shares),
        "max-num-seqs": (
            engine.max_num_seqs >> n for n in range(1, engine.max_num_seqs.bit_length())
        ),
        "max-num-batched-tokens": _other_steps(case),
        "tp": [size for size in sizes if size > engine.tensor_parallel_size],
        "no-speculation": ["no-speculation"] if engine.k else [],
        "text-only": ["text-only"] if images else [],
        "enforce-eager": [] if engine.enforce_eager else ["enforce-eager"],
    }
    changes = (
        _longest_context(case, apply_change),
        *(_first(apply_change, setting, values) for setting, values in tried.items()),
        _instance(case, apply_change, table) if table else None,
    )
    return tuple(advice for advice in changes if advice)


def mildest(advice: Sequence[Advice]) -> Advice | None:
    """The change to suggest first; ``None`` without any."""
    order = {knob: place for place, knob in enumerate(_MILDEST_FIRST)}
    return min(advice, key=lambda change: order.get(change.knob, len(order)), default=None)


def _longest_context(case: FitCase, apply_change: ApplyChange) -> Advice | None:
    """The longest context that fits and that target and drafter support, by binary search."""
    supported = [case.target.architecture.max_positions]
    supported += [case.drafter.max_positions] if case.drafter else []
    low, high = 1, min(case.engine.max_model_len - 1, *supported)
    best = None
    while low <= high:
        middle = (low + high) // 2
        advice = _first(apply_change, "max-model-len", (middle,))
        if advice:
            best, low = advice, middle + 1
        else:
            high = middle - 1
    return best


def _other_steps(case: FitCase) -> list[int]:
    """Tokens per step: the required minimum, else fewer than now, largest first.

    vLLM needs a token per request, one in addition to the draft slots, and with images a whole
    video.
    """
    engine = case.engine
    images = _VIDEO_TOKENS if engine.images and is_multimodal(case.target) else 1
    least = max(extra_slots(engine, case.drafter) + 1, engine.max_num_seqs, images)
    now = engine.max_num_batched_tokens
    if least > now:
        return [1 << (least - 1).bit_length(), least]
    powers = (1 << power for power in range((now - 1).bit_length() - 1, -1, -1))
    return [step for step in powers if least < step < now] + ([least] if least < now else [])


def _instance(case: FitCase, apply_change: ApplyChange, table: InstanceTable) -> Advice | None:
    """The cheapest instance type that fits; types without a price come last."""
    target = case.target
    for instance in sorted(table.instances, key=_cost):
        if instance.capability < needed_capability(target.dtype, target.quantization):
            continue
        moved = apply_change("instance-type", instance.type)
        fit = fit_of(moved) if moved else None
        if fit and fit.fits:
            gpus = f"{fit.tensor_parallel_size} of its {instance.gpu_count} GPUs"
            text = instance.type if instance.gpu_count == 1 else f"{instance.type}, {gpus}"
            return _advice("instance-type", text, fit)
    return None


def _cost(instance: Instance) -> tuple[float, int, str]:
    price = min((p.usd_per_hour for p in instance.prices), default=float("inf"))
    return price, instance.gpu_count * instance.gpu_memory_mib, instance.type


def _first(apply_change: ApplyChange, setting: str, values: Iterable[object]) -> Advice | None:
    """Advice with the first value that makes the case fit."""
    for value in values:
        changed = apply_change(setting, value)
        fit = fit_of(changed) if changed else None
        if fit and fit.fits:
            return _advice(setting, str(value), fit)
    return None


def _advice(setting: str, value: str, fit: Fit) -> Advice:
    return Advice(
        knob=setting,
        value=value,
        kv_cache_tokens=fit.kv_cache_tokens,
        max_concurrency=fit.max_concurrency,
    )
