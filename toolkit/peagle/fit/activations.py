"""Working memory and CUDA graphs of one GPU, in bytes: estimates.

Before vLLM allocates the KV cache, it profiles one step of ``max_num_batched_tokens`` tokens
through target and drafter, samples ``max_num_seqs`` tokens and reserves the peak (profile_run of
v1/worker/gpu_model_runner.py; v1/worker/gpu/model_runner.py for model runner V2). Each phase here
sums the tensors that are live at the same time in that run. CUDA graphs follow
profile_cudagraph_memory of the same file. Each constant holds for all pairs; its docstring names
its source.
"""

from __future__ import annotations

from peagle.catalog.schema import Architecture
from peagle.fit.models import FitCase
from peagle.fit.weights import MIB, mxfp4_kernel, padded_vocabulary
from peagle.vllm.defaults import GRAPHS_COUNTED, capture_sizes, uses_model_runner_v2
from peagle.vllm.gpus import element_bytes, round_up
from peagle.vllm.versions import in_range

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
    """CUDA graphs that vLLM subtracts before it allocates the KV cache.

    As in profile_cudagraph_memory: the largest first capture, and one small capture for each
    further size. Model runner V2 subtracts nothing: its graphs use the memory that
    ``gpu_memory_utilization`` leaves free.
    """
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
