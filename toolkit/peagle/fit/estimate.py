"""The memory fit of one GPU rank: what vLLM subtracts before it allocates the KV cache.

    cache = gpu_memory x gpu_memory_utilization - weights - working memory - graphs - libraries

as in determine_available_memory of vLLM's GPU worker; ``kv_cache`` divides the cache into blocks.
The engine starts when one request of max-model-len fits (check_enough_kv_cache_memory).

Quantizations of unknown size are rejected or marked in the findings; layers whose cache is not
modelled count as full attention, and cache-estimated names them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from peagle.checkpoints.architecture import quantization_settings, read_quantization
from peagle.checkpoints.layer_kinds import quantized_weights
from peagle.checkpoints.models import Checkpoint
from peagle.errors import CheckpointError
from peagle.fit.activations import buffer_bytes, graph_bytes, library_bytes, working_memory
from peagle.fit.kv_cache import Layout, Recurrent, layout_of
from peagle.fit.models import Comparison, DraftModel, Fit, FitCase, TargetModel
from peagle.fit.weights import (
    QUANTIZED_BYTES,
    bytes_from_headers,
    checkpoint_bytes,
    draft_rotary_bytes,
    drafter_bytes,
    rotary_bytes,
    stored_parameters,
    target_bytes,
    vision_bytes,
)
from peagle.vllm.defaults import (
    EngineConfig,
    cache_element_bytes,
    extra_slots,
    in_flight_tokens,
    padding_ratio,
    reserves_all_slots,
)

GIB = 1 << 30

INSIDE = "cache_"
"""Terms with this prefix are parts of the cache; the others and the cache fill the GPU's memory."""


@lru_cache(maxsize=1024)  # the plans of a process compare the same instance types
def fit_of(case: FitCase) -> Fit:
    """The memory of one GPU. The case fits when one request of max-model-len fits the cache."""
    engine = case.engine
    taken = bytes_taken(case)
    available = engine.gpu_memory_gib * GIB - sum(taken.values())
    layout, in_flight = cache_layout(case), in_flight_tokens(engine, case.drafter)
    request_bytes = layout.request_bytes(engine.max_model_len, in_flight)
    inside: dict[str, float] = {
        "cache_of_one_full_request": request_bytes,
        "cache_padding_in_it": request_bytes - layout.used_bytes(engine.max_model_len, in_flight),
    }
    if case.drafter:
        alone = cache_layout(replace(case, drafter=None))
        inside["cache_of_drafter_in_it"] = request_bytes - alone.request_bytes(
            engine.max_model_len, in_flight
        )
        slots = engine.k * engine.max_num_seqs
        inside["cache_of_draft_slots"] = slots * (request_bytes / engine.max_model_len)
    tokens, concurrency = layout.capacity(int(available), engine.max_model_len, in_flight)
    driver = {"kept_by_driver": engine.driver_gib} if engine.driver_gib else {}
    terms = driver | {name: size / GIB for name, size in {**taken, **inside}.items()}
    return Fit(
        fits=available >= request_bytes and not step_too_small(case),
        gpu=engine.gpu,
        gpu_count=engine.gpu_count,
        gpu_memory_gib=round(engine.gpu_memory_gib + engine.driver_gib, 3),
        tensor_parallel_size=engine.tensor_parallel_size,
        weights_gib=round(taken["target_weights"] / GIB, 3),
        drafter_gib=round(taken["drafter_weights"] / GIB, 3),
        kv_cache_gib=round(max(available, 0) / GIB, 3),
        kv_cache_tokens=tokens,
        max_concurrency=round(concurrency, 3),
        terms={name: round(size, 3) for name, size in terms.items()},
    )


def compare(case: FitCase, fit: Fit) -> Comparison | None:
    """The same engine without its drafter; ``None`` when there is none."""
    if case.drafter is None and case.engine.draftless is None:
        return None
    alone = fit_of(without_speculation(case))
    kept = fit.max_concurrency / alone.max_concurrency if alone.max_concurrency else None
    return Comparison(
        kv_cache_gib=alone.kv_cache_gib,
        kv_cache_tokens=alone.kv_cache_tokens,
        max_concurrency=alone.max_concurrency,
        concurrency_kept=None if kept is None else round(kept, 3),
    )


def without_speculation(case: FitCase) -> FitCase:
    """The case with the target alone."""
    return replace(case, drafter=None, engine=replace(case.engine, k=0, draftless=None))


def refusal_reason(case: FitCase) -> str | None:
    """Why vLLM would not start, in one line; ``None`` if it starts."""
    engine, missing = case.engine, missing_bytes(case)
    too_small = step_too_small(case)
    if too_small or not missing:
        return too_small
    each = " per GPU" if engine.tensor_parallel_size > 1 else ""
    return (
        f"one request of {engine.max_model_len:,} tokens needs {max(missing / GIB, 0.01):.2f} GiB "
        f"more GPU memory{each}"
    )


def step_too_small(case: FitCase) -> str | None:
    """Why vLLM rejects the number of tokens per step, if it does (_set_max_num_scheduled_tokens and
    SchedulerConfig.verify_max_model_len)."""
    engine, slots = case.engine, extra_slots(case.engine, case.drafter)
    step = f"a step has {engine.max_num_batched_tokens:,}"
    requests = f"{engine.max_num_seqs:,} concurrent requests"
    if slots >= engine.max_num_batched_tokens:
        whose = requests if reserves_all_slots(engine) else "a request"
        return (
            f"parallel drafting with K={engine.k} reserves {slots:,} tokens of a step for {whose}; "
            f"{step}"
        )
    if engine.max_num_seqs > engine.max_num_batched_tokens:
        return f"{requests} need one token each per step; {step}"
    return None


def missing_bytes(case: FitCase) -> int:
    """Bytes that one GPU lacks for a request of max-model-len; 0 when it fits."""
    engine = case.engine
    request_bytes = cache_layout(case).request_bytes(
        engine.max_model_len, in_flight_tokens(engine, case.drafter)
    )
    available = engine.gpu_memory_gib * GIB - sum(bytes_taken(case).values())
    return max(int(request_bytes - available), 0)


def bytes_taken(case: FitCase) -> dict[str, int]:
    """Bytes that are used before the KV cache is allocated, by term."""
    engine, tp = case.engine, case.engine.tensor_parallel_size
    working = working_memory(case)
    steps = max(size for name, size in working.phases.items() if name != "sampling")
    return {
        "kept_free": int(engine.gpu_memory_gib * GIB * (1 - engine.gpu_memory_utilization)),
        "target_weights": target_on_gpu(case.target, engine),
        "drafter_weights": drafter_on_gpu(case.drafter, tp) if case.drafter else 0,
        "activations_estimate": sum(working.kept.values()) + steps,
        "logits_estimate": max(working.phases["sampling"] - steps, 0),
        "cuda_graphs_estimate": graph_bytes(case),
        "libraries_estimate": library_bytes(case),
        "buffers_estimate": buffer_bytes(case),
    }


def target_on_gpu(target: TargetModel, engine: EngineConfig) -> int:
    """Bytes of the target's weights on one GPU: from its headers, else from its sizes, scaled to
    the size of its weight files if that is known."""
    tp, around = engine.tensor_parallel_size, rotary_bytes(target)
    hidden = target.architecture.hidden_size
    tower = vision_bytes(target.vision, hidden) if target.vision else 0
    if target.tensors:
        size = bytes_from_headers(target, target.tensors, tp, engine.capability)
        return size + around - (0 if engine.images else tower)
    size = target_bytes(target, tp, engine.capability)
    if target.checkpoint_bytes is not None:
        stored = checkpoint_bytes(target)
        if is_multimodal(target):
            # The rest of the files is the image tower, which each rank holds whole.
            tower = max(target.checkpoint_bytes - stored, 0)
        else:
            size = int(size * target.checkpoint_bytes / stored)
    return size + around + (tower if engine.images else 0)


def is_multimodal(target: TargetModel) -> bool:
    """Whether the target also takes images."""
    return target.architecture.class_name.endswith("ForConditionalGeneration")


@lru_cache(maxsize=256)
def drafter_on_gpu(drafter: DraftModel, tensor_parallel_size: int) -> int:
    """Bytes of the drafter's weights on one GPU."""
    size = drafter_bytes(drafter, tensor_parallel_size)
    if drafter.checkpoint_bytes is not None:
        # The share of a rank follows from the sizes, the total from the weight files.
        size = size * drafter.checkpoint_bytes // (2 * stored_parameters(drafter))
    return size + draft_rotary_bytes(drafter)


def cache_layout(case: FitCase) -> Layout:
    """How vLLM divides the KV cache among the layers of target and drafter."""
    engine, groups = case.engine, case.target.architecture.attention
    if case.drafter:
        groups = (*groups, *case.drafter.attention)
    element = cache_element_bytes(engine, case.target.dtype)
    recurrent = Recurrent(case.target.architecture.recurrent, engine.k, engine.prefix_caching)
    return layout_of(
        groups,
        engine.tensor_parallel_size,
        element,
        padding_ratio(engine.vllm),
        recurrent,
        engine.block_size,
    )


def share_of_request(case: FitCase, tokens: int) -> float:
    """What a request of ``tokens`` takes of the cache, as a share of one of max-model-len, for a
    target whose recurrent layers keep the same of each; 0 for others."""
    if not case.target.architecture.recurrent:
        return 0.0
    layout, in_flight = cache_layout(case), in_flight_tokens(case.engine, case.drafter)
    longest = case.engine.max_model_len
    request = layout.request_blocks(min(tokens, longest), in_flight)
    return request / layout.request_blocks(longest, in_flight)


def share_of_prefix(case: FitCase, tokens: int) -> float:
    """What requests that begin with the same ``tokens`` share of the cache, as a share of a request
    of max-model-len; 0 where prefix caching is off."""
    if not case.engine.prefix_caching:
        return 0.0
    layout, in_flight = cache_layout(case), in_flight_tokens(case.engine, case.drafter)
    whole = layout.request_blocks(case.engine.max_model_len, in_flight)
    return layout.shared_blocks(tokens) / whole


def refuse_unknown(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for quantized weights whose size only their unread headers show."""
    kind = unknown_quantization(checkpoint)
    stated = quantized_weights(quantization_settings(checkpoint.config))
    if kind and not stated and not checkpoint.tensors:
        raise CheckpointError(
            f"config.json alone does not show the size of weights quantized with {kind}",
            "use a location that also has the weight files; their headers show it",
            code="not-estimated",
        )


def unknown_quantization(checkpoint: Checkpoint) -> str | None:
    """The quantization if the fit does not know how vLLM stores its weights."""
    kind = read_quantization(checkpoint.config)
    return kind if kind is not None and kind not in QUANTIZED_BYTES else None
