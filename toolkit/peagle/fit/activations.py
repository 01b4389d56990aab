"""Working memory, CUDA graphs, libraries and buffers of one GPU, in bytes: estimates.

Before vLLM allocates the KV cache, it profiles one step of ``max_num_batched_tokens`` tokens
through target and drafter, samples ``max_num_seqs`` tokens and reserves the peak (profile_run of
v1/worker/gpu_model_runner.py; v1/worker/gpu/model_runner.py for model runner V2). Each phase here
sums the tensors that are live at the same time in that run. CUDA graphs follow
profile_cudagraph_memory of the same file. Each constant holds for all pairs; its docstring names
its source.
"""

from __future__ import annotations

from typing import NamedTuple

from peagle.catalog.schema import Architecture
from peagle.fit.models import DraftModel, FitCase
from peagle.fit.weights import (
    has_mxfp4_experts,
    has_query_key_norm,
    kernel_of,
    padded_sizes,
    padded_vocabulary,
)
from peagle.vllm.defaults import (
    capture_sizes,
    counts_all_memory,
    counts_graphs,
    uses_model_runner_v2,
)
from peagle.vllm.gpus import element_bytes, round_up

MIB = 1 << 20

_SAMPLED = 14
"""Bytes per logit of a request: bfloat16 from the model, and three times float32 for scaled logits,
probabilities, and noise or filtered probabilities (Sampler.forward, TopKTopPSampler)."""

_REJECTED = 30
"""The same in the rejection sampler's dummy run, with one draft per request: two rows of logits,
the bonus row and its copy for log probabilities, the target's row raw, scaled and as
probabilities, noise and its inverse (RejectionSampler.forward, sample_recovered_tokens)."""

_SAMPLED_BY_RUNNER_V2 = 4
"""Model runner V2 keeps bfloat16 and works in place; a soft cap copies it once."""

_FILTER_ROWS = 128
"""Rows in the buffer of the top-k and top-p kernel, one per multiprocessor, a power of two."""

_FILTER_FROM = 8
"""Requests from which vLLM uses that kernel instead of sorting."""

_CUBLAS = 32 << 20
"""cuBLAS workspace on Hopper and later."""

_CACHE_FLUSH = 60 << 20
"""Buffer with which the compiler clears the GPU's L2 cache between two timings."""

_STREAMS = 2 * 32 * MIB
"""Another cuBLAS workspace for each of the two streams of a capture."""

_PIECE = 144 << 10
"""Driver memory of one graph; a piecewise capture has one per layer."""

_WHOLE = 2 * MIB
"""Memory of a full-graph capture: the driver's allocation granularity."""

_SPLITS = 32
"""Largest number of KV splits of attention in a graph; partial sums are float32
(AttentionConfig.flash_attn_max_num_splits_for_cuda_graph). FlashAttention 3 on Hopper allocates
all of them; FlashAttention 4, for heads wider than 256, decides at run time within this bound."""

_LIBRARIES = 240 * MIB
"""Kernels and cuBLAS, loaded on first use."""

_FRAGMENTS = 150 * MIB
"""Segments partly in use after the profiling run, which the allocator cannot free."""

_NCCL = 200 * MIB
"""NCCL memory allocated on first use, after vLLM's first memory snapshot."""

_FUSED_MIB = {9: {2: 64, 4: 2, 8: 1}, 10: {2: 64, 4: 32, 8: 1}}
"""MiB of the largest all-reduce that is fused with the following norm, by compute capability and
number of GPUs (FI_ALLREDUCE_FUSION_MAX_SIZE_MB)."""

_FUSED_BUFFERS = 4
"""Buffers of that size that each GPU keeps per GPU: one, and three in rotation."""


class Working(NamedTuple):
    """``kept`` stays allocated after the run; ``phases`` are the extra bytes of each phase."""

    kept: dict[str, int]
    phases: dict[str, int]

    @property
    def peak(self) -> int:
        """The largest number of bytes allocated at once."""
        return sum(self.kept.values()) + max(self.phases.values())


def working_memory(case: FitCase) -> Working:
    """The memory of the profiling run."""
    kept = {"cublas": _CUBLAS, "experts": expert_workspace(case)}
    phases = {"target": target_step(case)}
    if case.drafter:
        phases["drafter"] = drafter_step(case, case.drafter)
    if not case.engine.compiled and not case.engine.enforce_eager:
        # vLLM compiles the first layer before it allocates the experts' workspace.
        phases["compiling"] = compiling(case) - kept["experts"]
        if case.drafter:
            phases["compiling_drafter"] = compiling_drafter(case, case.drafter)
    phases["sampling"] = sampling_step(case)
    return Working(kept, phases)


def expert_workspace(case: FitCase) -> int:
    """Workspace for the two matrix products of the experts (workspace_shapes)."""
    shape, engine = case.target.architecture, case.engine
    if not shape.experts or not shape.experts_per_token:
        return 0
    routed = engine.max_num_batched_tokens * shape.experts_per_token
    hidden, inter = shape.hidden_size, _expert_width(case)
    if has_mxfp4_experts(case.target):
        kernel = kernel_of(engine.capability)
        if kernel != "marlin":
            return 0
        hidden, inter = padded_sizes(kernel, hidden, inter)
    return routed * (max(inter, hidden) + max(2 * inter, hidden)) * element_bytes(case.target.dtype)


def target_step(case: FitCase) -> int:
    """The target's forward pass: activations of its widest layer, and the hidden states for the
    drafter."""
    shape, engine, latent = case.target.architecture, case.engine, case.target.architecture.latent
    tp, tokens, hidden = (
        engine.tensor_parallel_size,
        engine.max_num_batched_tokens,
        shape.hidden_size,
    )
    # Attention: residual stream and input; fused queries, keys and values; rotated queries and
    # keys; the output; and normalized queries.
    queries = 4 if has_query_key_norm(case.target) else 3
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
        if has_mxfp4_experts(case.target) and kernel_of(engine.capability) != "marlin":
            # The first product, and the second one before the reduction.
            block += shape.experts_per_token * (_expert_width(case) + hidden)
    numbers = _auxiliary(case) * hidden + 2 * hidden + max(attention, block)
    element = element_bytes(case.target.dtype)
    return int(tokens * numbers * element) + tokens * (shape.experts or 0) * 4


def drafter_step(case: FitCase, drafter: DraftModel) -> int:
    """The drafter's forward pass over the same tokens, with the target's hidden states."""
    tp, tokens = case.engine.tensor_parallel_size, case.engine.max_num_batched_tokens
    hidden, queries = drafter.hidden_size, drafter.query_heads * drafter.head_dim / tp
    keys = drafter.kv_heads * drafter.head_dim / tp
    # Residual stream and the first layer's two inputs; q, k, v, rotated q and k, and the output.
    attention = 3 * hidden + 3 * queries + 3 * keys
    feed_forward = 2 * hidden + queries + 3 * drafter.intermediate_size / tp
    numbers = _read_by_drafter(case) + max(attention, feed_forward)
    return int(tokens * numbers * element_bytes(case.target.dtype))


def compiling(case: FitCase) -> int:
    """Compilation of the target at first start: kernels are timed on a second embedding."""
    shape, tokens = case.target.architecture, case.engine.max_num_batched_tokens
    rows = padded_vocabulary(shape.vocab_size, case.engine.tensor_parallel_size)
    return (rows + 2 * tokens) * shape.hidden_size * element_bytes(case.target.dtype)


def compiling_drafter(case: FitCase, drafter: DraftModel) -> int:
    """Compilation of the drafter, whose first part has five hidden states per token."""
    tokens = case.engine.max_num_batched_tokens
    rows = padded_vocabulary(drafter.vocab_size, case.engine.tensor_parallel_size)
    numbers = (rows + 5 * tokens) * drafter.hidden_size + tokens * _read_by_drafter(case)
    return numbers * element_bytes(case.target.dtype) + _CACHE_FLUSH


def sampling_step(case: FitCase) -> int:
    """Sampling for all requests at once, with the step's hidden states."""
    shape, engine = case.target.architecture, case.engine
    requests = min(engine.max_num_seqs, engine.max_num_batched_tokens)
    filter_rows = 0
    if _runner_v2(case):
        per_logit = _SAMPLED_BY_RUNNER_V2
    else:
        speculates = case.drafter is not None or engine.draftless is not None
        per_logit = _REJECTED if speculates else _SAMPLED
        if requests >= _FILTER_FROM:
            filter_rows = min(1 << (requests - 1).bit_length(), _FILTER_ROWS)
    states = (
        (engine.max_num_batched_tokens + 2 * requests)
        * shape.hidden_size
        * element_bytes(case.target.dtype)
    )
    return states + (requests * per_logit + filter_rows * 4) * shape.vocab_size


def step_per_token(case: FitCase) -> int:
    """Peak bytes per token of a step through target and drafter."""
    tokens = case.engine.max_num_batched_tokens
    total = target_step(case)
    if case.drafter:
        total += drafter_step(case, case.drafter) - tokens * _read_by_drafter(case) * element_bytes(
            case.target.dtype
        )
    return total // tokens


def _attention_width(shape: Architecture) -> int:
    if shape.latent:
        return shape.query_heads * shape.latent.value_dim
    return shape.query_heads * max((group.head_dim for group in shape.attention), default=0)


def _expert_width(case: FitCase) -> int:
    shape, tp = case.target.architecture, case.engine.tensor_parallel_size
    width = -(-shape.intermediate_size // tp)
    return round_up(width, 64) if has_mxfp4_experts(case.target) else width


def _read_by_drafter(case: FitCase) -> int:
    """Elements per token of the target's hidden states that the drafter reads."""
    return (1 + _auxiliary(case)) * case.target.architecture.hidden_size


def _auxiliary(case: FitCase) -> int:
    drafter = case.drafter
    return drafter.auxiliary if drafter and drafter.method == "eagle3" else 0


def graph_bytes(case: FitCase) -> int:
    """CUDA graphs that vLLM subtracts before it allocates the KV cache.

    As in profile_cudagraph_memory: the largest first capture, and one small capture for each
    further size. Model runner V2 subtracts nothing: its graphs use the memory that
    ``gpu_memory_utilization`` leaves free.
    """
    if _runner_v2(case) or not counts_graphs(case.engine):
        return 0
    shape = case.target.architecture
    piecewise, full = capture_sizes(case.engine, case.drafter, shape.class_name)
    if not piecewise:
        return 0
    # A piecewise capture has the parts between the attention layers of both models.
    pieces = shape.layers + 1 + (case.drafter.layers + 1 if case.drafter else 0)
    splits = 0
    if case.engine.capability // 10 == 9:  # partial sums of attention
        splits = _SPLITS * _attention_width(shape) // case.engine.tensor_parallel_size * 4
    step = step_per_token(case)
    first = [_STREAMS + piecewise[-1] * step]
    first += [full[-1] * (step + splits)] if full else []
    further = (len(piecewise) - 1) * pieces * _PIECE + max(len(full) - 1, 0) * _WHOLE
    return max(first) + further


def library_bytes(case: FitCase) -> int:
    """Driver memory of kernels, cuBLAS and NCCL after vLLM's first memory snapshot."""
    tp = case.engine.tensor_parallel_size
    if tp == 1:
        return _LIBRARIES
    fused = _FUSED_MIB.get(case.engine.capability // 10, {}).get(tp, 0)
    eager = case.engine.enforce_eager
    return _LIBRARIES + _NCCL + (0 if eager else _FUSED_BUFFERS * tp * fused * MIB)


def buffer_bytes(case: FitCase) -> int:
    """Memory that vLLM also subtracts since 0.27: the runner's buffers (one hidden state per token,
    and two for a drafter), and fragments in torch's allocator."""
    if not counts_all_memory(case.engine):
        return 0
    shape, tokens = case.target.architecture, case.engine.max_num_batched_tokens
    states = (1 + 2 * bool(case.drafter)) * tokens
    return _FRAGMENTS + states * shape.hidden_size * element_bytes(case.target.dtype)


def _runner_v2(case: FitCase) -> bool:
    experts = bool(case.target.architecture.experts)
    return uses_model_runner_v2(case.engine, case.drafter, mixture_of_experts=experts)
