"""What ``vllm serve`` takes where nothing is asked, and what it makes of what is asked.

Read in vLLM 0.26.0, 0.27.1 and 0.28.0: engine/arg_utils.py, config/vllm.py,
config/speculative.py, v1/cudagraph_dispatcher.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from peagle.vllm import versions
from peagle.vllm.dtypes import element_bytes
from peagle.vllm.gpus import round_up

GPU_MEMORY_UTILIZATION = 0.92
"""vLLM's own default since 0.15."""

LARGEST_DEFAULT_STEP = 16384
"""The most that vLLM's own max-num-batched-tokens is, on any GPU."""

KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")

_CAPTURED = 512
_CAPTURED_MORE = 1024
"""Largest batch, in tokens, for which CUDA graphs are captured; more of GPT-OSS, and since 0.28 on
Blackwell's data-centre GPUs (_set_cudagraph_sizes)."""

_SLOTS_OF_ALL = "<0.28.0"
"""vLLM that keeps the drafts' slots of max_num_seqs requests free in every step: 0.26.0 and 0.27.1
do. Since 0.28.0 those of one request must leave a token, and requests that find no slots wait."""

_PADDING_RATIOS = (("<0.18.0", 1.25), (">=0.18.0", 1.5))
"""Groups of the cache whose layer counts are nearer than this are padded to the larger one
(v1/core/kv_cache_utils.py; vLLM's pull request 36684)."""

_WITHOUT_ASYNC = ("ngram", "suffix", "medusa")
"""Drafting methods with which vLLM turns asynchronous scheduling off (VllmConfig.__post_init__)."""


@dataclass(frozen=True)
class EngineConfig:
    """What one start of vLLM runs with. ``gpu_memory_gib`` is what CUDA reports of one GPU; lengths
    are in tokens.

    ``driver_gib`` is what the driver reserves besides. ``capability`` is the GPU's
    compute capability times ten. ``compiled``: whether vLLM's compile cache is filled, which it is
    not in a new container. ``images``: whether requests may contain images. ``draftless`` names a
    method that drafts without a model (``ngram``, ``suffix``).
    """

    gpu: str
    gpu_count: int
    gpu_memory_gib: float
    capability: int
    vllm: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: str = "auto"
    k: int = 0
    enforce_eager: bool = False
    compiled: bool = False
    driver_gib: float = 0.0
    images: bool = True
    draftless: str | None = None


class Drafting(Protocol):
    """A drafter with weights, as far as vLLM's scheduler looks at it."""

    @property
    def method(self) -> str:
        """``method`` of ``--speculative-config``."""

    @property
    def parallel_drafting(self) -> bool:
        """Whether one pass drafts all K tokens."""


def default_batched_tokens(gpu: str, gpu_memory_gib: float, vllm: str) -> int:
    """``--max-num-batched-tokens`` of a server on that GPU (get_batch_defaults)."""
    if gpu_memory_gib >= 160 and versions.in_range(vllm, ">=0.28.0"):
        return LARGEST_DEFAULT_STEP
    return 8192 if gpu_memory_gib >= 70 and "A100" not in gpu else 2048


def default_sequences(gpu: str, gpu_memory_gib: float) -> int:
    """``--max-num-seqs`` of a server on that GPU (get_batch_defaults)."""
    return 1024 if gpu_memory_gib >= 70 and "A100" not in gpu else 256


def batch_of(
    gpu: str, gpu_memory_gib: float, vllm: str, length: int, asked: tuple[int | None, int | None]
) -> tuple[int, int]:
    """``--max-num-seqs`` and ``--max-num-batched-tokens`` of a server on that GPU, of which
    ``asked`` has what is given: what is not is no more than the other can use
    (_set_default_max_num_seqs_and_batched_tokens_args). ``length`` is ``--max-model-len``.
    """
    seqs = asked[0] or default_sequences(gpu, gpu_memory_gib)
    usual = min(default_batched_tokens(gpu, gpu_memory_gib, vllm), seqs * length)
    tokens = asked[1] or usual
    return asked[0] or min(seqs, tokens), tokens


def cache_element_bytes(engine: EngineConfig, dtype: str) -> int:
    """Bytes of one number in the key-value cache."""
    if engine.kv_cache_dtype == "auto":
        return element_bytes(dtype)
    if engine.kv_cache_dtype.startswith("fp8"):
        return 1
    return element_bytes(engine.kv_cache_dtype)


def in_flight_tokens(engine: EngineConfig, drafter: Drafting | None) -> int:
    """Tokens scheduled but not finished: two batches with asynchronous scheduling, which is on
    unless the drafter is one that does not do it (VllmConfig.max_in_flight_tokens)."""
    return (2 if schedules_ahead(engine, drafter) else 1) * engine.max_num_batched_tokens


def schedules_ahead(engine: EngineConfig, drafter: Drafting | None) -> bool:
    """Whether vLLM schedules a step while the one before still runs."""
    return (drafter.method if drafter else engine.draftless) not in _WITHOUT_ASYNC


def extra_slots(engine: EngineConfig, drafter: Drafting | None) -> int:
    """Slots beside which a step must hold a token, else vLLM does not start
    (_set_max_num_scheduled_tokens): of all requests that may run, or of one since 0.28.

    Only the scheduler counts them: a step is profiled with all of max_num_batched_tokens, and as
    many may be in flight, in all three versions.
    """
    slots = slots_of_a_request(engine, drafter)
    return slots * engine.max_num_seqs if keeps_slots_of_all(engine) else slots


def keeps_slots_of_all(engine: EngineConfig) -> bool:
    """Whether this vLLM keeps the slots of all requests free, not of one."""
    return versions.in_range(engine.vllm, _SLOTS_OF_ALL)


def slots_of_a_request(engine: EngineConfig, drafter: Drafting | None) -> int:
    """Slots that drafting in parallel adds to a request: K-1, the first being there already; of
    DFlash all K since 0.28 (max_num_new_slots_for_drafting)."""
    if drafter is None:
        return 0
    if drafter.method == "dflash" and not keeps_slots_of_all(engine):
        return engine.k
    in_parallel = drafter.parallel_drafting or drafter.method in ("dflash", "dspark")
    return engine.k - 1 if in_parallel else 0


def padding_ratio(vllm: str) -> float:
    """How far apart the layer counts of two cache groups may be to be padded to the larger."""
    return next(ratio for range_, ratio in _PADDING_RATIOS if versions.in_range(vllm, range_))


def uses_model_runner_v2(
    engine: EngineConfig, drafter: Drafting | None, *, mixture_of_experts: bool
) -> bool:
    """Whether vLLM runs its second model runner, which accounts for memory differently: dense
    targets without a drafter, or with one that it supports (_is_default_v2_model_runner_model)."""
    if mixture_of_experts or engine.draftless:
        return False
    return drafter is None or not drafter.parallel_drafting


def capture_sizes(
    engine: EngineConfig, drafter: Drafting | None, class_name: str
) -> tuple[list[int], list[int]]:
    """Batch sizes, in tokens, captured as piecewise and as full CUDA graphs; largest last.

    ``class_name`` is the target's model class.
    """
    if engine.enforce_eager:
        return [], []
    step = 1 + (engine.k if drafter or engine.draftless else 0)
    if class_name.startswith("GptOss"):
        largest = _CAPTURED_MORE
    else:
        largest = min(engine.max_num_seqs * step * 2, _most_captured(engine))
    sizes = _sizes_up_to(min(largest, engine.max_num_batched_tokens))
    if step > 1 and sizes:
        rounded = {round_up(size, step) for size in sizes}
        sizes = sorted(size for size in rounded if size <= sizes[-1]) or [step]
    full = [size for size in sizes if step <= size <= step * engine.max_num_seqs]
    return sizes, full


def _most_captured(engine: EngineConfig) -> int:
    data_centre_blackwell = engine.capability // 10 == 10
    more = data_centre_blackwell and versions.in_range(engine.vllm, ">=0.28.0")
    return _CAPTURED_MORE if more else _CAPTURED


def _sizes_up_to(largest: int) -> list[int]:
    sizes = [size for size in (1, 2, 4) if size <= largest]
    sizes += range(8, min(largest + 1, 256), 8)
    sizes += range(256, largest + 1, 16)
    return sizes
