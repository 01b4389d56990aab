"""The memory fit of one GPU rank: what vLLM subtracts before it allocates the KV cache.

    cache = gpu_memory x gpu_memory_utilization - weights - working memory - graphs - libraries

as in determine_available_memory of vLLM's GPU worker; the layout divides the cache into blocks.
The engine starts when one request of max-model-len fits (check_enough_kv_cache_memory). Layers
whose cache is not modelled count as full attention, and cache-estimated names them.

Before vLLM allocates the KV cache, it profiles one step of ``max_num_batched_tokens`` tokens
through target and drafter, samples ``max_num_seqs`` tokens and reserves the peak (profile_run of
v1/worker/gpu_model_runner.py; v1/worker/gpu/model_runner.py for model runner V2). Each phase of
working_memory sums the tensors that are live at the same time in that run. Each constant holds for
all pairs; its docstring names its source.

vLLM keeps layers of one kind in a group and cuts the cache into blocks of one size that every
group draws from (v1/core/kv_cache_utils.py of vLLM 0.26 and 0.28, which agree here). So a hybrid
target's groups are padded to the same number of layers, and a drafter's layers can cost more than
their share: GPT-OSS-20B has 12 sliding and 12 full layers; with 4 drafter layers both groups have
16. Where heads have different sizes (Gemma), small layers take longer blocks, or their pages are
padded to the largest. Whole numbers throughout.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from peagle.catalog.schema import Architecture, AttentionGroup, RecurrentGroup
from peagle.fit.weights import (
    MIB,
    DraftModel,
    TargetModel,
    allocated,
    checkpoint_bytes,
    drafter_bytes,
    mxfp4_kernel,
    padded_vocabulary,
    stored_parameters,
    target_bytes,
    vision_bytes,
)
from peagle.frozen import Frozen
from peagle.vllm.defaults import (
    ALL_MEMORY_COUNTED,
    ALL_SLOTS_RESERVED,
    BLOCK_TOKENS,
    GRAPHS_COUNTED,
    PADDING_RATIO,
    EngineConfig,
    cache_element_bytes,
    capture_sizes,
    extra_slots,
    in_flight_tokens,
    uses_model_runner_v2,
)
from peagle.vllm.gpus import element_bytes, round_up
from peagle.vllm.versions import in_range


class Fit(Frozen):
    """The memory fit of one GPU rank. GiB and tokens; ``terms`` names every part."""

    fits: bool
    gpu: str
    gpu_count: int
    gpu_memory_gib: float
    tensor_parallel_size: int
    weights_gib: float
    drafter_gib: float
    kv_cache_gib: float
    kv_cache_tokens: int
    max_concurrency: float
    terms: dict[str, float]


class Comparison(Frozen):
    """The same engine without its drafter. ``concurrency_kept`` is the share of its concurrent
    requests that remains with speculation; above 1 where the drafter turns asynchronous scheduling
    off, with which sliding layers keep more."""

    kv_cache_gib: float
    kv_cache_tokens: int
    max_concurrency: float
    concurrency_kept: float | None


class FitCase(NamedTuple):
    """Input of the memory model: a pair on an engine."""

    target: TargetModel
    drafter: DraftModel | None
    engine: EngineConfig


GIB = 1 << 30

INSIDE = "cache_"
"""Terms with this prefix are parts of the cache; the others and the cache fill the GPU's memory."""

_LATENT_STEP = 128
"""Blocks of hybrids with latent attention are multiples of this."""


class Group(NamedTuple):
    """Layers with the same cache, in ``tables`` block tables of blocks of ``block_tokens`` tokens.
    ``window`` is in tokens, ``None`` for full attention. ``token_bytes`` is what all layers keep of
    one token, without padding. Recurrent layers keep ``states`` blocks per request, whatever its
    length, and ``token_bytes`` is one of these."""

    tables: int
    block_tokens: int
    window: int | None
    token_bytes: int
    states: int = 0

    def blocks(self, length: int, in_flight: int) -> int:
        """Blocks that one request of ``length`` tokens holds in all of the group's tables. A
        sliding layer keeps its window and the tokens scheduled but not finished (``in_flight``),
        and one block more, since a window can start inside a block."""
        if self.states:
            return self.states * self.tables
        if self.window is None:
            return ceil(length / self.block_tokens) * self.tables
        kept = min(self.window - 1 + in_flight, length)
        return (ceil(kept / self.block_tokens) + 1) * self.tables


class Layout(NamedTuple):
    """The blocks of one GPU's cache: ``block_bytes`` is one block with all of its layers."""

    groups: tuple[Group, ...]
    block_bytes: int

    def request_blocks(self, length: int, in_flight: int) -> int:
        """Blocks that one request of ``length`` tokens takes."""
        return sum(group.blocks(length, in_flight) for group in self.groups)

    def shared_blocks(self, tokens: int) -> int:
        """Of these, the blocks that all requests which begin with the same ``tokens`` share: whole
        ones of full attention. Windows move on, and each request has its own states."""
        full = (group for group in self.groups if group.window is None and not group.states)
        return sum(tokens // group.block_tokens * group.tables for group in full)

    def request_bytes(self, length: int, in_flight: int) -> int:
        """Bytes of cache that one request of ``length`` tokens takes on one GPU."""
        return self.request_blocks(length, in_flight) * self.block_bytes

    def used_bytes(self, length: int, in_flight: int) -> int:
        """The part of ``request_bytes`` without padding."""
        return sum(
            group.blocks(length, in_flight) // group.tables * group.block_tokens * group.token_bytes
            for group in self.groups
        )

    def capacity(self, available: int, length: int, in_flight: int) -> tuple[int, float]:
        """``GPU KV cache size`` in tokens and ``Maximum concurrency`` in ``available`` bytes, as
        vLLM logs them (get_kv_cache_capacity)."""
        blocks = max(available, 0) // self.block_bytes
        concurrency = blocks / self.request_blocks(length, in_flight)
        return int(concurrency * length), concurrency


@lru_cache(maxsize=256)  # a plan asks for a few of them hundreds of times
def compute_layout(
    groups: tuple[AttentionGroup, ...],
    tensor_parallel_size: int,
    element: int,
    padding_ratio: float,
    recurrent: tuple[RecurrentGroup, ...] = (),
    *,
    k: int = 0,
    prefix_caching: bool = True,
    block_tokens: int = BLOCK_TOKENS,
) -> Layout:
    """How vLLM groups these layers on one GPU, and its block size (get_kv_cache_groups).

    A token takes a key and a value per layer and head: 2 x heads x head_dim x element, and in
    a latent layer head_dim x element bytes on each GPU. Heads are divided among the GPUs, at least
    one on each. Groups whose layer counts are nearer than ``padding_ratio`` are padded to the
    larger one. ``block_tokens`` is vLLM's ``--block-size``.

    Of recurrent layers vLLM keeps one state per request and one per draft, and with prefix caching
    one more (MambaSpec.max_memory_usage_bytes). In a hybrid with them, the blocks of attention are
    made as large as a state, and states are padded to them (_align_hybrid_block_size of
    platforms/interface.py).
    """
    tp = tensor_parallel_size

    def token_bytes(group: AttentionGroup) -> int:
        if group.kind == "latent":
            return group.head_dim * element
        return 2 * ceil(group.kv_heads / tp) * group.head_dim * element

    # Layers with other heads are another group, even where a token takes as many bytes.
    counts: Counter[tuple[int | None, int, int]] = Counter()
    for group in groups:
        window = group.window if group.kind == "sliding" else None
        counts[window, group.head_dim, token_bytes(group)] += group.layers
    kinds = [(count, window, token) for (window, _, token), count in counts.items()]
    windows = {window for _, window, _ in kinds}
    if len(windows) == 1 and not recurrent:
        # All layers keep the same tokens: one group, with each layer's own page size.
        token = sum(count * token for count, _, token in kinds)
        return Layout((Group(1, block_tokens, windows.pop(), token),), token * block_tokens)
    states = [(group.layers, group.state_bytes(tp, k)) for group in recurrent]
    state = max((size for _, size in states), default=0)
    block, page = 1, state
    if groups:
        latent = any(group.kind == "latent" for group in groups)
        step = max(_LATENT_STEP, block_tokens) if latent and state else block_tokens
        block = step * max(ceil(state / (step * token_bytes(groups[0]))), 1)
        page = max(token for _, _, token in kinds) * block
    layers = [*counts.values(), *(count for count, _ in states)]
    smallest, largest = min(layers), max(layers)
    size = largest if largest < padding_ratio * smallest else smallest
    laid: list[Group] = []
    for count, window, token in kinds:
        # Small layers take longer blocks, so that all pages have one size.
        longer = page // (token * block) if page % (token * block) == 0 else 1
        laid.append(Group(ceil(count / size), block * longer, window, count * token))
    kept = 1 + k + prefix_caching
    laid += (Group(ceil(count / size), 1, None, count * state, kept) for count, state in states)
    return Layout(tuple(laid), page * size)


def cache_layout(case: FitCase) -> Layout:
    """How vLLM divides the KV cache among the layers of target and drafter."""
    engine, shape = case.engine, case.target.architecture
    return compute_layout(
        (*shape.attention, *(case.drafter.shape.attention if case.drafter else ())),
        engine.tensor_parallel_size,
        cache_element_bytes(engine, case.target.dtype),
        PADDING_RATIO,
        shape.recurrent,
        k=engine.k,
        prefix_caching=engine.prefix_caching,
        block_tokens=engine.block_size,
    )


def compute_fit(case: FitCase) -> Fit:
    """The memory of one GPU. The case fits when one request of max-model-len fits the cache."""
    engine, length = case.engine, case.engine.max_model_len
    taken = bytes_taken(case)
    available = engine.gpu_memory_gib * GIB - sum(taken.values())
    layout, in_flight = cache_layout(case), in_flight_tokens(engine, case.drafter)
    request_bytes = layout.request_bytes(length, in_flight)
    inside: dict[str, float] = {
        "cache_of_one_full_request": request_bytes,
        "cache_padding_in_it": request_bytes - layout.used_bytes(length, in_flight),
    }
    if case.drafter:
        alone = cache_layout(case._replace(drafter=None))
        inside["cache_of_drafter_in_it"] = request_bytes - alone.request_bytes(length, in_flight)
        slots = engine.k * engine.max_num_seqs
        inside["cache_of_draft_slots"] = slots * (request_bytes / length)
    tokens, concurrency = layout.capacity(int(available), length, in_flight)
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
    alone = compute_fit(without_speculation(case))
    kept = fit.max_concurrency / alone.max_concurrency if alone.max_concurrency else None
    return Comparison(
        kv_cache_gib=alone.kv_cache_gib,
        kv_cache_tokens=alone.kv_cache_tokens,
        max_concurrency=alone.max_concurrency,
        concurrency_kept=None if kept is None else round(kept, 3),
    )


def without_speculation(case: FitCase) -> FitCase:
    """The case with the target alone."""
    return case._replace(drafter=None, engine=case.engine._replace(k=0, draftless=None))


def refusal_reason(case: FitCase) -> str | None:
    """Why vLLM would not start, in one line; ``None`` if it starts."""
    engine, missing, too_small = case.engine, missing_bytes(case), step_too_small(case)
    if too_small or not missing:
        return too_small
    each = " per GPU" if engine.tensor_parallel_size > 1 else ""
    gib = max(missing / GIB, 0.01)
    return (
        f"one request of {engine.max_model_len:,} tokens needs {gib:.2f} GiB more GPU memory{each}"
    )


def step_too_small(case: FitCase) -> str | None:
    """Why vLLM rejects the number of tokens per step, if it does (_set_max_num_scheduled_tokens and
    SchedulerConfig.verify_max_model_len)."""
    engine, slots = case.engine, extra_slots(case.engine, case.drafter)
    step = f"a step has {engine.max_num_batched_tokens:,}"
    requests = f"{engine.max_num_seqs:,} concurrent requests"
    if slots >= engine.max_num_batched_tokens:
        whose = requests if in_range(engine.vllm, ALL_SLOTS_RESERVED) else "a request"
        reserved = f"reserves {slots:,} tokens of a step for {whose}; {step}"
        return f"parallel drafting with K={engine.k} {reserved}"
    if engine.max_num_seqs > engine.max_num_batched_tokens:
        return f"{requests} need one token each per step; {step}"
    return None


def missing_bytes(case: FitCase) -> int:
    """Bytes that one GPU lacks for a request of max-model-len; 0 when it fits."""
    engine, layout = case.engine, cache_layout(case)
    in_flight = in_flight_tokens(engine, case.drafter)
    request_bytes = layout.request_bytes(engine.max_model_len, in_flight)
    available = engine.gpu_memory_gib * GIB - sum(bytes_taken(case).values())
    return max(int(request_bytes - available), 0)


_SAMPLED = 14
"""Bytes per logit of a request: bfloat16 from the model, and three times float32 for scaled logits,
probabilities, and noise or filtered probabilities (Sampler.forward, TopKTopPSampler)."""

_REJECTED = 30
"""The same in the rejection sampler's dummy run, with one draft per request: two rows of logits,
the bonus row and its copy for log probabilities, the target's row raw, scaled and as
probabilities, noise and its inverse (RejectionSampler.forward, sample_recovered_tokens)."""

_SAMPLED_BY_RUNNER_V2 = 4
"""Model runner V2 keeps bfloat16 and works in place; a soft cap copies it once."""

_FILTER_FROM, _FILTER_ROWS = 8, 128
"""Requests from which vLLM uses the top-k and top-p kernel instead of sorting, and the rows in its
buffer, one per multiprocessor, a power of two."""

_CUBLAS, _STREAMS = 32 * MIB, 2 * 32 * MIB
"""cuBLAS workspace on Hopper and later, and those of the two streams of a capture."""

_CACHE_FLUSH = 60 * MIB
"""Buffer with which the compiler clears the GPU's L2 cache between two timings."""

_PIECE, _WHOLE = 144 << 10, 2 * MIB
"""Driver memory of one graph, of which a piecewise capture has one per layer, and of a full-graph
capture: the driver's allocation granularity."""

_SPLITS = 32
"""Largest number of KV splits of attention in a graph; partial sums are float32
(AttentionConfig.flash_attn_max_num_splits_for_cuda_graph). FlashAttention 3 on Hopper allocates
all of them; FlashAttention 4, for heads wider than 256, decides at run time within this bound."""


def working_memory(case: FitCase) -> tuple[dict[str, int], dict[str, int]]:
    """The memory of the profiling run: what stays allocated, and the extra bytes of each phase."""
    target, drafter, engine, shape = (
        case.target,
        case.drafter,
        case.engine,
        case.target.architecture,
    )
    tp, tokens = engine.tensor_parallel_size, engine.max_num_batched_tokens
    element = element_bytes(target.dtype)
    kept = {"cublas": _CUBLAS, "experts": 0}
    kernel = ""
    if shape.experts and shape.experts_per_token:
        # Workspace for the two matrix products of the experts (workspace_shapes).
        hidden, inter = shape.hidden_size, _expert_width(case)
        if target.has_mxfp4_experts:
            kernel, hidden, inter = mxfp4_kernel(engine.capability, hidden, inter)
        if kernel in ("", "marlin"):
            routed = tokens * shape.experts_per_token
            kept["experts"] = routed * (max(inter, hidden) + max(2 * inter, hidden)) * element
    phases = {"target": _target_step(case)}
    if drafter:
        phases["drafter"] = _drafter_step(case)
    if not engine.compiled and not engine.enforce_eager:
        # At first start, kernels are timed on a second embedding; vLLM compiles the first layer
        # before it allocates the experts' workspace.
        rows = padded_vocabulary(shape.vocab_size, tp)
        compiling = (rows + 2 * tokens) * shape.hidden_size * element
        phases["compiling"] = compiling - kept["experts"]
        if drafter:
            # The first part of the drafter has five hidden states per token.
            rows = padded_vocabulary(drafter.shape.vocab_size, tp)
            numbers = (rows + 5 * tokens) * drafter.shape.hidden_size
            numbers += tokens * (1 + _auxiliary(case)) * shape.hidden_size
            phases["compiling_drafter"] = numbers * element + _CACHE_FLUSH
    # Sampling for all requests at once, with the step's hidden states.
    requests = min(engine.max_num_seqs, tokens)
    filter_rows = 0
    if _runner_v2(case):
        per_logit = _SAMPLED_BY_RUNNER_V2
    else:
        speculates = drafter is not None or engine.draftless is not None
        per_logit = _REJECTED if speculates else _SAMPLED
        if requests >= _FILTER_FROM:
            filter_rows = min(1 << (requests - 1).bit_length(), _FILTER_ROWS)
    states = (tokens + 2 * requests) * shape.hidden_size * element
    logits = (requests * per_logit + filter_rows * 4) * shape.vocab_size
    phases["sampling"] = states + logits
    return kept, phases


def _target_step(case: FitCase) -> int:
    """The target's forward pass: activations of its widest layer, and the hidden states for the
    drafter."""
    target, engine, shape = case.target, case.engine, case.target.architecture
    tp, tokens = engine.tensor_parallel_size, engine.max_num_batched_tokens
    hidden, latent = shape.hidden_size, shape.latent
    # Attention: residual stream and input; fused queries, keys and values; rotated queries and
    # keys; the output; and normalized queries.
    queries = 4 if target.normalizes_queries else 3
    if latent:
        # Prefill expands the latent vectors to keys and values of every head.
        width = 2 * (latent.nope_dim + latent.rope_dim) + 2 * latent.value_dim
        attention: float = shape.query_heads * width / tp
    else:
        widths = [
            (queries * shape.query_heads + 3 * group.kv_heads) * group.head_dim / tp
            for group in shape.attention
        ]
        attention = max(widths, default=0)
    # Feed-forward block: residual stream, input, and the attention output, which is still live;
    # then the activations.
    block = _attention_width(shape) / tp
    if not shape.experts or not shape.experts_per_token:
        block += 3 * shape.intermediate_size / tp  # fused gate and up, and their product
    else:
        block += 2 * hidden
        if target.has_mxfp4_experts and engine.capability // 10 in (9, 10):
            # The first product, and the second one before the reduction.
            block += shape.experts_per_token * (_expert_width(case) + hidden)
    numbers = _auxiliary(case) * hidden + 2 * hidden + max(attention, block)
    return int(tokens * numbers * element_bytes(target.dtype)) + tokens * (shape.experts or 0) * 4


def _drafter_step(case: FitCase, *, with_states: bool = True) -> int:
    """The drafter's forward pass over the same tokens, with the target's hidden states."""
    drafter, engine = case.drafter, case.engine
    assert drafter is not None
    tp, tokens, draft = engine.tensor_parallel_size, engine.max_num_batched_tokens, drafter.shape
    queries = draft.query_heads * drafter.head_dim / tp
    keys = drafter.kv_heads * drafter.head_dim / tp
    # Residual stream and the first layer's two inputs; q, k, v, rotated q and k, and the output.
    attention = 3 * draft.hidden_size + 3 * queries + 3 * keys
    feed_forward = 2 * draft.hidden_size + queries + 3 * draft.intermediate_size / tp
    states = (1 + _auxiliary(case)) * case.target.architecture.hidden_size
    element = element_bytes(case.target.dtype)
    step = int(tokens * (states + max(attention, feed_forward)) * element)
    return step if with_states else step - tokens * states * element


def _attention_width(shape: Architecture) -> int:
    if shape.latent:
        return shape.query_heads * shape.latent.value_dim
    return shape.query_heads * max((group.head_dim for group in shape.attention), default=0)


def _expert_width(case: FitCase) -> int:
    width = -(-case.target.architecture.intermediate_size // case.engine.tensor_parallel_size)
    return round_up(width, 64) if case.target.has_mxfp4_experts else width


def _auxiliary(case: FitCase) -> int:
    """The target's hidden states that an EAGLE-3 head reads beside the last."""
    drafter = case.drafter
    return drafter.auxiliary if drafter and drafter.method == "eagle3" else 0


def _runner_v2(case: FitCase) -> bool:
    experts = bool(case.target.architecture.experts)
    return uses_model_runner_v2(case.engine, case.drafter, mixture_of_experts=experts)


def graph_bytes(case: FitCase) -> int:
    """CUDA graphs that vLLM subtracts before it allocates the KV cache. As in
    profile_cudagraph_memory: the largest first capture, and one small capture for each further
    size. Model runner V2 subtracts nothing: its graphs use the memory that
    ``gpu_memory_utilization`` leaves free."""
    engine, shape = case.engine, case.target.architecture
    if _runner_v2(case) or not in_range(engine.vllm, GRAPHS_COUNTED):
        return 0
    piecewise, full = capture_sizes(engine, case.drafter, shape.class_name)
    if not piecewise:
        return 0
    # A piecewise capture has the parts between the attention layers of both models.
    pieces = shape.layers + 1 + (case.drafter.shape.layers + 1 if case.drafter else 0)
    splits = 0
    if engine.capability // 10 == 9:  # partial sums of attention
        splits = _SPLITS * _attention_width(shape) // engine.tensor_parallel_size * 4
    # Bytes per token of a step through target and drafter.
    step = _target_step(case)
    step += _drafter_step(case, with_states=False) if case.drafter else 0
    step //= engine.max_num_batched_tokens
    first = [_STREAMS + piecewise[-1] * step]
    first += [full[-1] * (step + splits)] if full else []
    further = (len(piecewise) - 1) * pieces * _PIECE + max(len(full) - 1, 0) * _WHOLE
    return max(first) + further


_LIBRARIES, _NCCL = 240 * MIB, 200 * MIB
"""Kernels and cuBLAS, and NCCL, allocated on first use after vLLM's first memory snapshot."""

_FRAGMENTS = 150 * MIB
"""Segments partly in use after the profiling run, which the allocator cannot free."""

_FUSED_MIB = {9: {2: 64, 4: 2, 8: 1}, 10: {2: 64, 4: 32, 8: 1}}
"""MiB of the largest all-reduce that is fused with the following norm, by compute capability and
number of GPUs (FI_ALLREDUCE_FUSION_MAX_SIZE_MB). Each GPU keeps four buffers of it per GPU."""


def bytes_taken(case: FitCase) -> dict[str, int]:
    """Bytes that are used before the KV cache is allocated, by term."""
    engine, tp = case.engine, case.engine.tensor_parallel_size
    kept, phases = working_memory(case)
    steps = max(size for name, size in phases.items() if name != "sampling")
    # Driver memory of kernels, cuBLAS and NCCL after vLLM's first memory snapshot.
    libraries, buffers = _LIBRARIES, 0
    if tp > 1:
        fused = (
            0 if engine.enforce_eager else _FUSED_MIB.get(engine.capability // 10, {}).get(tp, 0)
        )
        libraries += _NCCL + 4 * tp * fused * MIB
    if in_range(engine.vllm, ALL_MEMORY_COUNTED):
        # The runner's buffers: one hidden state per token, and two for a drafter.
        states = (1 + 2 * bool(case.drafter)) * engine.max_num_batched_tokens
        hidden = case.target.architecture.hidden_size
        buffers = _FRAGMENTS + states * hidden * element_bytes(case.target.dtype)
    return {
        "kept_free": int(engine.gpu_memory_gib * GIB * (1 - engine.gpu_memory_utilization)),
        "target_weights": target_on_gpu(case.target, engine),
        "drafter_weights": drafter_on_gpu(case.drafter, tp) if case.drafter else 0,
        "activations_estimate": sum(kept.values()) + steps,
        "logits_estimate": max(phases["sampling"] - steps, 0),
        "cuda_graphs_estimate": graph_bytes(case),
        "libraries_estimate": libraries,
        "buffers_estimate": buffers,
    }


def target_on_gpu(target: TargetModel, engine: EngineConfig) -> int:
    """Bytes of the target's weights on one GPU: from its sizes, scaled to the size of its weight
    files if that is known."""
    tp, shape = engine.tensor_parallel_size, target.architecture
    # Rotary tables, which vLLM computes while loading: one per head size, for every position.
    # GPT-OSS keeps them in float32.
    element = 4 if target.is_gpt_oss else element_bytes(target.dtype)
    widths = {group.head_dim for group in shape.attention}
    widths = {shape.latent.rope_dim} if shape.latent else widths
    around = sum(allocated(shape.max_positions * width * element) for width in widths)
    tower = vision_bytes(target.vision, shape.hidden_size) if target.vision else 0
    size = target_bytes(target, tp, engine.capability)
    if target.checkpoint_bytes is not None:
        stored = checkpoint_bytes(target)
        if target.is_multimodal and stored <= target.checkpoint_bytes:
            # The rest of the files is the image tower, which each rank holds whole.
            tower = target.checkpoint_bytes - stored
        else:
            size = int(size * target.checkpoint_bytes / stored)
    return size + around + (tower if engine.images else 0)


@lru_cache(maxsize=256)
def drafter_on_gpu(drafter: DraftModel, tensor_parallel_size: int) -> int:
    """Bytes of the drafter's weights on one GPU, with its rotary table in 16 bits."""
    size = drafter_bytes(drafter, tensor_parallel_size)
    if drafter.checkpoint_bytes is not None:
        # The share of a rank follows from the sizes, the total from the weight files.
        size = size * drafter.checkpoint_bytes // (2 * stored_parameters(drafter))
    return size + allocated(drafter.shape.max_positions * drafter.head_dim * 2)


def compute_request_share(case: FitCase, tokens: int) -> float:
    """What a request of ``tokens`` takes of the cache, as a share of one of max-model-len, for a
    target whose recurrent layers keep the same of each; 0 for others."""
    if not case.target.architecture.recurrent:
        return 0.0
    layout, in_flight = cache_layout(case), in_flight_tokens(case.engine, case.drafter)
    longest = case.engine.max_model_len
    request = layout.request_blocks(min(tokens, longest), in_flight)
    return request / layout.request_blocks(longest, in_flight)


def compute_prefix_share(case: FitCase, tokens: int) -> float:
    """What requests that begin with the same ``tokens`` share of the cache, as a share of a request
    of max-model-len; 0 where prefix caching is off."""
    if not case.engine.prefix_caching:
        return 0.0
    layout, in_flight = cache_layout(case), in_flight_tokens(case.engine, case.drafter)
    whole = layout.request_blocks(case.engine.max_model_len, in_flight)
    return layout.shared_blocks(tokens) / whole
