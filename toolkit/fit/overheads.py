"""What vLLM takes beside weights, working memory and cache: CUDA graphs, libraries, buffers.

These are estimates. Each constant is one for all pairs, with what it stands for.
"""

from __future__ import annotations

from toolkit.catalog import versions
from toolkit.fit.engine import capture_sizes, element_bytes, new_runner
from toolkit.fit.models import FitCase
from toolkit.fit.working import step_per_token

MIB = 1 << 20

_GRAPHS_COUNTED = ">=0.21.0"
"""vLLM that estimates its CUDA graphs and takes them off before it allots the cache."""

_ALL_COUNTED = ">=0.27.0"
"""vLLM that counts all that is gone from the GPU, instead of weights and peak by themselves: 0.27.1
does, 0.26.0 does not."""

_STREAMS = 2 * 32 * MIB
"""cuBLAS's workspace once more, for each of the two streams of a capture."""

_PIECE = 144 << 10
"""What the driver keeps of one graph, of which a piecewise capture has one per layer."""

_WHOLE = 2 * MIB
"""What a capture in one graph takes: the driver allots no less at a time."""

_SPLITS = 32
"""Parts into which attention may split the cache inside a graph; their sums are float32
(AttentionConfig.flash_attn_max_num_splits_for_cuda_graph). FlashAttention 3 on Hopper keeps room
for all; FlashAttention 4, for heads wider than 256, decides while it runs: the same bound holds."""

_LIBRARIES = 240 * MIB
"""Kernels and cuBLAS, loaded into the GPU on first use."""

_FRAGMENTS = 150 * MIB
"""Segments of which a small part is still in use after the profiling run."""

_NCCL = 200 * MIB
"""What NCCL takes on first use between GPUs, beyond what it has when vLLM looks first."""

_FUSED_MIB = {9: {2: 64, 4: 2, 8: 1}, 10: {2: 64, 4: 32, 8: 1}}
"""MiB of the largest sum over GPUs that is fused with the norm behind it, by compute capability
and GPUs (FI_ALLREDUCE_FUSION_MAX_SIZE_MB)."""

_FUSED_BUFFERS = 4
"""Buffers of that size, for every GPU, that each GPU keeps: one, and three that take turns."""


def graph_bytes(case: FitCase) -> int:
    """CUDA graphs, as far as vLLM takes them off before it allots the cache.

    As profile_cudagraph_memory reckons: the largest first capture, and one small capture for every
    further size. The second runner takes nothing off: its graphs come out of what
    ``gpu_memory_utilization`` leaves.
    """
    if new_runner(case) or not versions.in_range(case.engine.vllm, _GRAPHS_COUNTED):
        return 0
    piecewise, full = capture_sizes(case)
    if not piecewise:
        return 0
    step = step_per_token(case)
    first = [_STREAMS + piecewise[-1] * step]
    first += [full[-1] * (step + _split_bytes(case))] if full else []
    further = (len(piecewise) - 1) * _pieces(case) * _PIECE + max(len(full) - 1, 0) * _WHOLE
    return max(first) + further


def library_bytes(case: FitCase) -> int:
    """What kernels, cuBLAS and NCCL take from the driver after vLLM looked first."""
    tp = case.engine.tensor_parallel_size
    if tp == 1:
        return _LIBRARIES
    fused = _FUSED_MIB.get(case.engine.capability // 10, {}).get(tp, 0)
    eager = case.engine.enforce_eager
    return _LIBRARIES + _NCCL + (0 if eager else _FUSED_BUFFERS * tp * fused * MIB)


def buffer_bytes(case: FitCase) -> int:
    """What vLLM counts since 0.27 besides: the runner's own buffers (one hidden state per token,
    and two for a drafter), and what torch's allocator cannot give back."""
    if not versions.in_range(case.engine.vllm, _ALL_COUNTED):
        return 0
    shape, tokens = case.target.architecture, case.engine.max_num_batched_tokens
    states = (1 + 2 * bool(case.drafter)) * tokens
    return _FRAGMENTS + states * shape.hidden_size * element_bytes(case.target.dtype)


def _pieces(case: FitCase) -> int:
    """Graphs of one piecewise capture: what lies between attention layers, of both models."""
    drafter = case.drafter.layers + 1 if case.drafter else 0
    return case.target.architecture.layers + 1 + drafter


def _split_bytes(case: FitCase) -> int:
    """Bytes per token for the sums of attention's parts."""
    if case.engine.capability // 10 != 9:
        return 0
    shape = case.target.architecture
    width = shape.query_heads * max(group.head_dim for group in shape.attention)
    return _SPLITS * width // case.engine.tensor_parallel_size * 4
