"""Defaults of ``vllm serve``, what it derives from arguments; names of vLLM's speculation methods.

Source: engine/arg_utils.py, config/vllm.py, config/speculative.py, v1/cudagraph_dispatcher.py and
v1/core of vLLM 0.26.0, 0.27.1 and 0.28.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

from peagle.vllm.gpus import element_bytes, round_up
from peagle.vllm.versions import in_range

GPU_MEMORY_UTILIZATION = 0.92
"""vLLM's default since 0.15."""

LARGEST_DEFAULT_STEP = 16384
"""The largest default of max-num-batched-tokens on any GPU."""

BLOCK_TOKENS = 16
"""``--block-size`` on NVIDIA GPUs: tokens of a block of the KV cache."""

KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")

PREFIX_CACHING, NO_PREFIX_CACHING = "enable-prefix-caching", "no-enable-prefix-caching"
"""vLLM's argument, in its two spellings."""

CAPTURE_SIZE = "max-cudagraph-capture-size"
"""vLLM's argument, in 0.28.0 as in earlier and later versions of model_catalog/vllm.json."""

_CAPTURED, _CAPTURED_MORE = 512, 1024
"""Largest batch, in tokens, with a CUDA graph; larger for GPT-OSS, and since 0.28 on data-centre
Blackwell GPUs (_set_cudagraph_sizes)."""

_GRID, _ANY = 16, 1 << 31
"""Distance of captured sizes from 256 tokens on; a limit that is none."""

ALL_SLOTS_RESERVED = "<0.28.0"
"""vLLM versions that reserve the draft slots of max_num_seqs requests in every step, such as 0.26.0
and 0.27.1. Since 0.28.0 only those of one request must leave a token, and excess requests queue."""

GRAPHS_COUNTED = ">=0.21.0"
"""vLLM versions that subtract an estimate of CUDA graphs before they allocate the KV cache."""

ALL_MEMORY_COUNTED = ">=0.27.0"
"""vLLM versions that subtract all used GPU memory instead of weights and peak only: 0.27.1 does,
0.26.0 does not."""

PADDING_RATIO = 1.5
"""Groups of the cache whose layer counts are nearer than this are padded to the larger one
(v1/core/kv_cache_utils.py; vLLM's pull request 36684)."""

_WITHOUT_ASYNC = ("ngram", "suffix", "medusa")
"""Drafting methods with which vLLM turns asynchronous scheduling off (VllmConfig.__post_init__)."""

_READS_HIDDEN_STATES = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""Methods that cost a block per hit of the prefix cache (``use_eagle``, config/speculative.py)."""

_NAMED = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
"""Part of a drafter's name -> the method that vLLM infers; the first that is found. `eagle` is
EAGLE-1."""

_TITLES = {
    "p-eagle": "P-EAGLE",
    "eagle": "EAGLE-1",
    "eagle3": "EAGLE-3",
    "mtp": "MTP",
    "dflash": "DFlash",
    "ngram": "n-gram",
}


class EngineConfig(NamedTuple):
    """The settings of one vLLM process. ``gpu_memory_gib`` is what CUDA reports for one GPU;
    lengths are in tokens.

    ``driver_gib`` is what the driver reserves in addition. ``capability`` is the GPU's compute
    capability times ten. ``compiled``: whether vLLM's compile cache is filled, which it is not in
    a new container. ``images``: whether requests may contain images. ``draftless`` names a
    method that drafts without a model (``ngram``, ``suffix``). ``prefix_caching`` is on unless
    ``--no-enable-prefix-caching`` is set. ``expert_parallel``: each GPU has whole experts.
    ``max_cudagraph_capture_size`` is the largest batch with a CUDA graph, in tokens; ``None`` is
    vLLM's default.
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
    prefix_caching: bool = True
    expert_parallel: bool = False
    block_size: int = BLOCK_TOKENS
    max_cudagraph_capture_size: int | None = None


class Drafting(Protocol):
    """The properties of a drafter that vLLM's scheduler uses."""

    @property
    def method(self) -> str:
        """``method`` of ``--speculative-config``."""

    @property
    def parallel_drafting(self) -> bool:
        """Whether one pass drafts all K tokens."""


def default_batched_tokens(gpu: str, gpu_memory_gib: float, vllm: str) -> int:
    """``--max-num-batched-tokens`` of a server on that GPU (get_batch_defaults)."""
    if gpu_memory_gib >= 160 and in_range(vllm, ">=0.28.0"):
        return LARGEST_DEFAULT_STEP
    return 8192 if gpu_memory_gib >= 70 and "A100" not in gpu else 2048


def batch_limits(
    gpu: str, gpu_memory_gib: float, vllm: str, length: int, explicit: tuple[int | None, int | None]
) -> tuple[int, int]:
    """``--max-num-seqs`` and ``--max-num-batched-tokens`` of a server on that GPU. ``explicit`` has
    the explicit values; a default is limited by the other value
    (_set_default_max_num_seqs_and_batched_tokens_args). ``length`` is ``--max-model-len``.
    """
    usual = 1024 if gpu_memory_gib >= 70 and "A100" not in gpu else 256
    seqs = explicit[0] or usual
    tokens = explicit[1] or min(default_batched_tokens(gpu, gpu_memory_gib, vllm), seqs * length)
    return explicit[0] or min(seqs, tokens), tokens


def cache_element_bytes(engine: EngineConfig, dtype: str) -> int:
    """Bytes of one element of the KV cache."""
    if engine.kv_cache_dtype.startswith("fp8"):
        return 1
    return element_bytes(dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype)


def in_flight_tokens(engine: EngineConfig, drafter: Drafting | None) -> int:
    """Tokens scheduled but not finished: two batches with asynchronous scheduling, which is on
    unless the drafter does not support it (VllmConfig.max_in_flight_tokens)."""
    return (2 if schedules_ahead(engine, drafter) else 1) * engine.max_num_batched_tokens


def schedules_ahead(engine: EngineConfig, drafter: Drafting | None) -> bool:
    """Whether vLLM schedules asynchronously: a step while the previous one still runs."""
    return (drafter.method if drafter else engine.draftless) not in _WITHOUT_ASYNC


def extra_slots(engine: EngineConfig, drafter: Drafting | None) -> int:
    """Draft slots that must leave room for a token in a step, else vLLM does not start
    (_set_max_num_scheduled_tokens): of all requests that may run, since 0.28 of one. Parallel
    drafting adds K-1 per request, DFlash K since 0.28 (max_num_new_slots_for_drafting).

    Only the scheduler counts them; profiling uses all of max_num_batched_tokens.
    """
    of_all = in_range(engine.vllm, ALL_SLOTS_RESERVED)
    slots = 0
    if drafter is not None and drafter.method == "dflash" and not of_all:
        slots = engine.k
    elif drafter is not None and (
        drafter.parallel_drafting or drafter.method in ("dflash", "dspark")
    ):
        slots = engine.k - 1
    return slots * engine.max_num_seqs if of_all else slots


def uses_model_runner_v2(
    engine: EngineConfig, drafter: Drafting | None, *, mixture_of_experts: bool
) -> bool:
    """Whether vLLM uses model runner V2, which accounts for memory differently: for dense targets
    without a drafter or with one that it supports (_is_default_v2_model_runner_model)."""
    if mixture_of_experts or engine.draftless:
        return False
    return drafter is None or not drafter.parallel_drafting


def capture_limit(engine: EngineConfig, class_name: str) -> tuple[int, int]:
    """The largest batch with a CUDA graph, in tokens, and for how many requests at most, each with
    K + 1 tokens; 0 without graphs. ``class_name`` is the target's model class."""
    if engine.enforce_eager:
        return 0, 0
    largest, requests, batch = engine.max_cudagraph_capture_size, 2 * engine.max_num_seqs, _ANY
    if largest is None and class_name.startswith("GptOss"):
        largest = _CAPTURED_MORE
    elif largest is None:
        # A compute capability of 10 is data-centre Blackwell.
        more = engine.capability // 10 == 10 and in_range(engine.vllm, ">=0.28.0")
        largest, batch = _CAPTURED_MORE if more else _CAPTURED, requests
    return min(largest, engine.max_num_batched_tokens), batch


def capture_sizes(
    engine: EngineConfig, drafter: Drafting | None, class_name: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batch sizes, in tokens, captured as piecewise and as full CUDA graphs; largest last.

    ``class_name`` is the target's model class.
    """
    step = 1 + (engine.k if drafter or engine.draftless else 0)
    largest, requests = capture_limit(engine, class_name)
    return _sizes(min(largest, requests * step), step, engine.max_num_seqs)


def capture_size(tokens: int, k: int) -> int:
    """The ``--max-cudagraph-capture-size`` whose CUDA graphs hold a step of so many tokens, with K
    drafts. vLLM rounds it down to its grid, and sizes of the grid up to whole requests."""
    size = round_up(tokens, _GRID)
    while _sizes(size, k + 1, tokens)[0][-1] < tokens:
        size += _GRID
    return size


@lru_cache(maxsize=256)  # the instance types that a plan compares differ in few of these numbers
def _sizes(largest: int, step: int, max_num_seqs: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes = [size for size in (1, 2, 4) if size <= largest]
    sizes += range(8, min(largest + 1, 256), 8)
    sizes += range(256, largest + 1, _GRID)
    if step > 1 and sizes:
        rounded = {round_up(size, step) for size in sizes}
        sizes = sorted(size for size in rounded if size <= sizes[-1]) or [step]
    return tuple(sizes), tuple(size for size in sizes if step <= size <= step * max_num_seqs)


def inferred_method(model: str) -> str:
    """The method that vLLM takes for a ``--speculative-config`` without one, from the name of its
    model. It never turns ``parallel_drafting`` on. The order is that of vLLM 0.28.0 and 0.33.0
    (config/speculative.py, SpeculativeConfig.__post_init__).
    """
    name = model.lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    return next((method for part, method in _NAMED if part in name), "draft_model")


def method_id(method: str, parallel_drafting: bool) -> str:
    """``p-eagle`` for EAGLE-3 with parallel drafting, else vLLM's name of the method."""
    return "p-eagle" if parallel_drafting and method == "eagle3" else method


def method_title(method: str, parallel_drafting: bool) -> str:
    """``P-EAGLE``, ``EAGLE-3``; vLLM's name of a method without a title."""
    return _TITLES.get(method_id(method, parallel_drafting), method)


def caches_prefixes(settings: Mapping[str, object]) -> bool:
    """Whether an engine with these arguments (without dashes) keeps its prefix cache on, as vLLM
    does by default; ``None`` is the value of one that the container leaves out."""
    return not (settings.get(NO_PREFIX_CACHING) or settings.get(PREFIX_CACHING) is False)


def tokens_lost(method: str | None, group_blocks: Iterable[int]) -> int:
    """The most tokens that a hit of the prefix cache loses because of the drafter, beyond rounding
    to whole blocks; 0 without a drafter and for drafts from the text itself.

    A drafter that reads the target's hidden states needs the last matched block of every group
    computed again, and what remains is rounded down to the alignment (``drop_eagle_block`` of
    v1/core/single_type_kv_cache_manager.py, ``find_longest_cache_hit`` of
    HybridKVCacheCoordinator), so that groups together lose one unit of the alignment.
    """
    return math.lcm(*group_blocks) if method in _READS_HIDDEN_STATES else 0


def cached_tokens(reusable: int, method: str | None, group_blocks: Iterable[int]) -> int:
    """Of ``reusable`` tokens at the start of a prompt that are in the prefix cache, those of a hit:
    a multiple of every group's block size (resolve_kv_cache_block_sizes), and 0 for a prefix
    shorter than what a hit loses."""
    blocks = tuple(group_blocks)
    unit = math.lcm(*blocks)
    return max(0, reusable // unit * unit - tokens_lost(method, blocks))
