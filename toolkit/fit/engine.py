"""What ``vllm serve`` takes where nothing is asked, and what it makes of what is asked.

Read in vLLM 0.26.0 and 0.28.0: engine/arg_utils.py, config/vllm.py, v1/cudagraph_dispatcher.py.
"""

from __future__ import annotations

from toolkit.catalog import versions
from toolkit.fit.gpus import round_up
from toolkit.fit.models import DraftModel, Engine, FitCase

GPU_MEMORY_UTILIZATION = 0.92
"""vLLM's own default since 0.15."""

KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")

_ELEMENT_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}

_CAPTURED = 512
_CAPTURED_GPT_OSS = 1024
"""Largest batch, in tokens, for which CUDA graphs are captured."""

_WITHOUT_ASYNC = ("ngram", "suffix", "draft_model", "medusa")


def default_batched_tokens(gpu: str, gpu_memory_gib: float, vllm: str) -> int:
    """``--max-num-batched-tokens`` of a server on that GPU (get_batch_defaults)."""
    if gpu_memory_gib >= 160 and not versions.in_range(vllm, "<0.27.0"):
        return 16384
    return 8192 if gpu_memory_gib >= 70 and "A100" not in gpu else 2048


def default_sequences(gpu: str, gpu_memory_gib: float) -> int:
    """``--max-num-seqs`` of a server on that GPU (get_batch_defaults)."""
    return 1024 if gpu_memory_gib >= 70 and "A100" not in gpu else 256


def element_bytes(dtype: str) -> int:
    """Bytes of one number of this type while computing."""
    return _ELEMENT_BYTES.get(dtype, 2)


def cache_element_bytes(engine: Engine, dtype: str) -> int:
    """Bytes of one number in the key-value cache."""
    if engine.kv_cache_dtype == "auto":
        return element_bytes(dtype)
    if engine.kv_cache_dtype.startswith("fp8"):
        return 1
    return element_bytes(engine.kv_cache_dtype)


def in_flight_tokens(engine: Engine, drafter: DraftModel | None) -> int:
    """Tokens scheduled but not settled: two batches with asynchronous scheduling, which is on
    unless the drafter is one that does not do it (VllmConfig.max_in_flight_tokens)."""
    method = drafter.method if drafter else engine.draftless
    batches = 1 if method in _WITHOUT_ASYNC else 2
    return batches * engine.max_num_batched_tokens


def extra_slots(engine: Engine, drafter: DraftModel | None) -> int:
    """Slots that drafting takes from each step's tokens: K-1 for every request when drafting in
    parallel (max_num_new_slots_for_drafting). What remains must be at least one token."""
    if drafter is None or not drafter.parallel_drafting:
        return 0
    return (engine.k - 1) * engine.max_num_seqs


def new_runner(case: FitCase) -> bool:
    """Whether vLLM takes its second model runner, which counts memory in its own way: for dense
    targets, unless the drafter is one that it does not do (_is_default_v2_model_runner_model)."""
    if case.target.architecture.experts:
        return False
    if case.engine.draftless:
        return False
    return case.drafter is None or not case.drafter.parallel_drafting


def capture_sizes(case: FitCase) -> tuple[list[int], list[int]]:
    """Batches, in tokens, captured as piecewise and as full CUDA graphs; largest last."""
    engine = case.engine
    if engine.enforce_eager:
        return [], []
    step = 1 + (engine.k if case.drafter or engine.draftless else 0)
    if case.target.architecture.class_name.startswith("GptOss"):
        largest = _CAPTURED_GPT_OSS
    else:
        largest = min(engine.max_num_seqs * step * 2, _CAPTURED)
    sizes = _sizes_up_to(min(largest, engine.max_num_batched_tokens))
    if step > 1 and sizes:
        rounded = {round_up(size, step) for size in sizes}
        sizes = sorted(size for size in rounded if size <= sizes[-1]) or [step]
    full = [size for size in sizes if step <= size <= step * engine.max_num_seqs]
    return sizes, full


def _sizes_up_to(largest: int) -> list[int]:
    sizes = [size for size in (1, 2, 4) if size <= largest]
    sizes += range(8, min(largest + 1, 256), 8)
    sizes += range(256, largest + 1, 16)
    return sizes
