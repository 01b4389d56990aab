"""The target's weights on one GPU, in bytes, from the sizes in its config.json.

Division: vLLM's layers divide projections, experts and the two vocabulary matrices among the ranks;
norms, routers, biases after row-parallel projections and image towers are replicated. KV heads are
divided until each rank has one. The vocabulary is padded to a multiple of 64.

Allocation: small tensors share segments and lose at most 511 bytes. From 10 MiB a tensor gets its
own segment, a multiple of 2 MiB; vLLM loads with ``max_split_size_mb`` 20, so that larger segments
are never shared, and smaller ones are split if more than 1 MiB would be lost
(c10/cuda/CUDACachingAllocator.cpp; Worker.load_model). Functions therefore yield
one size per tensor.

GPT-OSS experts in MXFP4 take half a byte per element and one byte of scale per 32 elements; vLLM
selects the kernel by GPU and pads for it (fused_moe/oracle/mxfp4.py, quantization/utils/
mxfp4_utils.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import ceil
from typing import Literal

from peagle.catalog.schema import Architecture, AttentionGroup
from peagle.fit.models import TargetModel, Vision
from peagle.vllm.gpus import element_bytes, round_up

MIB = 1 << 20

_SMALLEST = 512
_OWN_SEGMENT = 10 * MIB
_SEGMENT = 2 * MIB
_MAX_SPLIT_BYTES = 20 * MIB
_MIN_REMAINDER_BYTES = 1 * MIB


BLOCK = 32
"""Elements that share one scale."""

Kernel = Literal["triton", "trtllm", "marlin"]

VOCABULARY_PADDING = 64
"""DEFAULT_VOCAB_PADDING_SIZE of vLLM's VocabParallelEmbedding."""

QUANTIZED_BYTES = {"fp8": 1 + 4 / 128**2, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32}
"""Bytes per element of a quantized projection, including scales. Of other
quantizations the architecture has the bytes, where config.json states the bits."""


@lru_cache(maxsize=4096)  # layers repeat the same sizes
def allocated(size: float) -> int:
    """Bytes that torch allocates for a tensor of ``size`` bytes."""
    rounded = round_up(int(size), _SMALLEST)
    if rounded < _OWN_SEGMENT:
        return rounded
    segment = round_up(rounded, _SEGMENT)
    if rounded < _MAX_SPLIT_BYTES and segment - rounded > _MIN_REMAINDER_BYTES:
        return rounded
    return segment


def allocated_all(sizes: Iterable[float]) -> int:
    """Bytes that torch allocates for tensors of these sizes."""
    return sum(map(allocated, sizes))


def kernel_of(capability: int) -> Kernel:
    """OpenAI's Triton kernels on Hopper, FlashInfer's TensorRT-LLM ones on Blackwell's data-centre
    GPUs, else Marlin."""
    if capability // 10 == 9:
        return "triton"
    return "trtllm" if capability // 10 == 10 else "marlin"


def padded_sizes(kernel: Kernel, hidden: int, intermediate: int) -> tuple[int, int]:
    """Hidden and intermediate size that the kernel requires
    (mxfp4_round_up_hidden_size_and_intermediate_size)."""
    if kernel == "triton":
        return hidden, round_up(intermediate, 64)
    if kernel == "trtllm":
        return round_up(hidden, 256), round_up(intermediate, 256)
    return round_up(hidden, 256), round_up(intermediate, 128)


def mxfp4_expert_tensors(shape: Architecture, tp: int, capability: int) -> Iterator[float]:
    """Bytes of one layer's experts on one of ``tp`` GPUs: values, scales and biases.

    OpenAI's kernels swizzle the scales in tiles of 256 rows and 4 columns; they and TensorRT-LLM's
    keep the biases in float32.
    """
    kernel, experts = kernel_of(capability), shape.experts or 0
    hidden, inter = padded_sizes(kernel, shape.hidden_size, ceil(shape.intermediate_size / tp))
    for rows, columns in ((2 * inter, hidden), (hidden, inter)):
        yield experts * rows * columns // 2
        if kernel == "triton":
            yield experts * round_up(rows, 256) * round_up(ceil(columns / BLOCK), 4)
        else:
            yield experts * rows * columns // BLOCK
        yield experts * rows * (2 if kernel == "marlin" else 4)


@lru_cache(maxsize=256)  # the same on many instance types, and with every drafter
def target_bytes(target: TargetModel, tensor_parallel_size: int, capability: int) -> int:
    """Bytes of the target on one of ``tensor_parallel_size`` GPUs, without its image tower."""
    tp = tensor_parallel_size
    shape = target.architecture
    size = sum(
        layers * allocated_all(attention_tensors(target, group, tp))
        for group, layers in attention_layers(shape)
    )
    size += sum(
        group.layers * allocated(linear_bytes(target, group.parameters / tp))
        for group in shape.recurrent
    )
    size += _absorbed_bytes(target, tp)
    size += _expert_layers(shape) * allocated_all(feed_forward_tensors(target, tp, capability))
    size += shape.dense_layers * allocated_all(_dense_tensors(target, tp))
    size += shape.layers * allocated_all(_norm_tensors(target))
    return size + allocated_all([*vocabulary_tensors(target, tp), _norm(target)])


@lru_cache(maxsize=64)
def checkpoint_bytes(target: TargetModel) -> int:
    """Bytes of the target's weight files: not divided, padded or rounded.

    Gemma 4's full layers have one projection for keys and values.
    """
    shape, element = target.architecture, element_bytes(target.dtype)
    size = sum(
        layers * sum(attention_tensors(target, group, 1))
        for group, layers in attention_layers(shape)
    )
    size += sum(group.layers * linear_bytes(target, group.parameters) for group in shape.recurrent)
    size += shape.dense_layers * sum(_dense_tensors(target, 1))
    if shape.class_name.startswith("Gemma4") and len(shape.attention) > 1:
        for group in shape.attention:
            once = group.kv_heads * group.head_dim * shape.hidden_size
            size -= (group.kind == "full") * group.layers * once * element
    size += _expert_layers(shape) * sum(_feed_forward_as_stored(target))
    size += shape.layers * sum(_norm_tensors(target)) + _norm(target)
    matrices = 1 if shape.tied_embeddings else 2
    columns = matrices * shape.hidden_size + shape.per_layer_embeddings
    return int(size + shape.vocab_size * columns * element)


def rotary_bytes(target: TargetModel) -> int:
    """Rotary tables, which vLLM computes while loading: one per head size, for every position.
    GPT-OSS keeps them in float32."""
    shape = target.architecture
    element = 4 if is_gpt_oss(shape) else element_bytes(target.dtype)
    widths = {group.head_dim for group in shape.attention}
    if shape.latent:
        widths = {shape.latent.rope_dim}
    return allocated_all(shape.max_positions * width * element for width in widths)


def padded_vocabulary(vocabulary: int, tensor_parallel_size: int) -> int:
    """Rows of a vocabulary matrix on one GPU."""
    return ceil(round_up(vocabulary, VOCABULARY_PADDING) / tensor_parallel_size)


def is_gpt_oss(shape: Architecture) -> bool:
    """Whether this is GPT-OSS, whose attention and experts have biases."""
    return shape.class_name.startswith("GptOss")


def has_mxfp4_experts(target: TargetModel) -> bool:
    """Whether these are GPT-OSS experts in MXFP4."""
    return is_gpt_oss(target.architecture) and target.quantization == "mxfp4"


def has_query_key_norm(target: TargetModel) -> bool:
    """Whether queries and keys are normalized per head."""
    named = target.architecture.class_name.startswith(("Qwen3", "Gemma"))
    return named or target.query_key_norm


def attention_layers(shape: Architecture) -> Iterator[tuple[AttentionGroup, int]]:
    """The kinds of attention, each with the number of layers that have its projections: also those
    that read another layer's cache, and once for layers that share them. An indexer has none."""
    if shape.latent:
        yield shape.attention[0], shape.attention[0].layers
        return
    for group in shape.attention:
        yield group, min(group.layers, shape.attention_blocks or group.layers)
    if not shape.recurrent and shape.feed_forward_layers is None:
        yield _like(shape), max(shape.layers - sum(g.layers for g in shape.attention), 0)


def attention_parameters(shape: Architecture, group: AttentionGroup) -> int:
    """Parameters of the projections of one layer's attention; of latent attention q_a, q_b, kv_a,
    kv_b and o (deepseek_v2.py)."""
    return sum(_replicated_and_divided(shape, group))


def _replicated_and_divided(shape: Architecture, group: AttentionGroup) -> tuple[int, int]:
    """The parameters that each GPU has whole, and those that are divided."""
    hidden, heads, latent = shape.hidden_size, shape.query_heads, shape.latent
    if latent is None:
        projections = (3 if shape.attention_gate else 2) * heads + 2 * group.kv_heads
        return 0, hidden * group.head_dim * projections
    queries = heads * (latent.nope_dim + latent.rope_dim)
    whole = hidden * (latent.kv_rank + latent.rope_dim) + hidden * (latent.query_rank or 0)
    divided = queries * (latent.query_rank or hidden)
    divided += latent.kv_rank * heads * (latent.nope_dim + latent.value_dim)
    return whole, divided + heads * latent.value_dim * hidden


def _absorbed_bytes(target: TargetModel, tp: int) -> int:
    """Latent attention's kv_b_proj in 16 bits: vLLM keeps it beside the loaded one, absorbed into
    queries and outputs (W_UK_T and W_UV of mla_attention.py)."""
    shape, latent = target.architecture, target.architecture.latent
    if latent is None or not latent.cached:
        return 0
    numbers = latent.kv_rank * shape.query_heads * (latent.nope_dim + latent.value_dim) / tp
    return shape.attention[0].layers * allocated(numbers * element_bytes(target.dtype))


def attention_tensors(target: TargetModel, group: AttentionGroup, tp: int) -> Iterator[float]:
    """Bytes of one layer's projections; GPT-OSS adds biases and one sink per head."""
    shape, element = target.architecture, element_bytes(target.dtype)
    if shape.latent:
        whole, divided = _replicated_and_divided(shape, group)
        yield _attention_bytes(target, whole)
        yield _attention_bytes(target, divided / tp)
        return
    heads, kv = shape.query_heads / tp, ceil(group.kv_heads / tp)
    gate = heads if shape.attention_gate else 0
    width, inner = (heads + gate + 2 * kv) * group.head_dim, heads * group.head_dim
    yield _attention_bytes(target, width * shape.hidden_size)
    yield _attention_bytes(target, inner * shape.hidden_size)
    if target.attention_bias or is_gpt_oss(shape):
        yield width * element
    if is_gpt_oss(shape):
        yield shape.hidden_size * element
        yield heads * element
    if has_query_key_norm(target):
        yield group.head_dim * element
        yield group.head_dim * element


def feed_forward_tensors(target: TargetModel, tp: int, capability: int) -> Iterator[float]:
    """Bytes of one layer's feed-forward block: gate and up, down; of all experts and the router."""
    shape = target.architecture
    if shape.experts:
        yield from _router_tensors(target)
    if shape.experts and has_mxfp4_experts(target):
        yield from mxfp4_expert_tensors(shape, tp, capability)
        return
    numbers = (shape.experts or 1) * shape.hidden_size * shape.intermediate_size / tp
    yield linear_bytes(target, (shape.feed_forward_matrices - 1) * numbers)
    yield linear_bytes(target, numbers)
    if shape.shared_expert_size:
        yield from _block_tensors(target, shape.shared_expert_size, tp)


def _dense_tensors(target: TargetModel, tp: int) -> Iterator[float]:
    """Bytes of the feed-forward block of a layer without experts, among layers that have some."""
    yield from _block_tensors(target, target.architecture.dense_intermediate_size or 0, tp)


def _block_tensors(target: TargetModel, width: int, tp: int) -> Iterator[float]:
    shape = target.architecture
    numbers = shape.hidden_size * width / tp
    yield linear_bytes(target, (shape.feed_forward_matrices - 1) * numbers)
    yield linear_bytes(target, numbers)


def _expert_layers(shape: Architecture) -> int:
    """Layers with a feed-forward block that is not one of ``dense_layers``."""
    return shape.blocks - shape.dense_layers


def quantized_element(target: TargetModel) -> float | None:
    """Bytes per element of a quantized projection; ``None`` if it is not quantized, or if the
    quantization is of unknown size."""
    quantized = target.architecture.quantized
    if quantized:
        return quantized.element_bytes
    return QUANTIZED_BYTES.get(target.quantization or "")


def linear_bytes(target: TargetModel, numbers: float) -> float:
    """Bytes of a projection of ``numbers`` elements. GPT-OSS quantizes its experts only."""
    size = quantized_element(target)
    if size is None or is_gpt_oss(target.architecture):
        return numbers * element_bytes(target.dtype)
    return numbers * size


def _attention_bytes(target: TargetModel, numbers: float) -> float:
    quantized = target.architecture.quantized
    if quantized and not quantized.attention:
        return numbers * element_bytes(target.dtype)
    return linear_bytes(target, numbers)


def vocabulary_tensors(target: TargetModel, tp: int) -> Iterator[float]:
    """Bytes of the embedding and, unless tied, of the output matrix."""
    shape = target.architecture
    rows = padded_vocabulary(shape.vocab_size, tp)
    for _ in range(1 if shape.tied_embeddings else 2):
        yield rows * shape.hidden_size * element_bytes(target.dtype)
    if shape.per_layer_embeddings:
        yield rows * shape.per_layer_embeddings * element_bytes(target.dtype)


def vision_bytes(vision: Vision, hidden_size: int) -> int:
    """Gemma 4's image tower in bfloat16, whole on every rank: layers of attention and a gated
    feed-forward block with four norms, patches and positions, and the projection to the text."""
    size = vision.hidden_size
    per_layer = (
        4 * size * vision.attention_size
        + 2 * vision.head_dim
        + 3 * size * vision.intermediate_size
        + 4 * size
    )
    around = 2 * vision.positions * size + vision.patch_values * size + 2 * size
    return 2 * (vision.layers * per_layer + around + size * hidden_size)


def _like(shape: Architecture) -> AttentionGroup:
    return max(shape.attention, key=lambda group: group.layers)


def _norm(target: TargetModel) -> float:
    return target.architecture.hidden_size * element_bytes(target.dtype)


def _norm_tensors(target: TargetModel) -> Iterator[float]:
    """One layer's norms; Gemma has two more and a scalar."""
    gemma = target.architecture.class_name.startswith("Gemma")
    for _ in range(4 if gemma else 2):
        yield _norm(target)
    if gemma:
        yield element_bytes(target.dtype)


def _router_tensors(target: TargetModel) -> Iterator[float]:
    shape, element = target.architecture, element_bytes(target.dtype)
    yield (shape.experts or 0) * shape.hidden_size * element
    if is_gpt_oss(shape):
        yield (shape.experts or 0) * element


def _feed_forward_as_stored(target: TargetModel) -> Iterator[float]:
    shape = target.architecture
    if not (shape.experts and has_mxfp4_experts(target)):
        yield from feed_forward_tensors(target, 1, 0)
        return
    yield from _router_tensors(target)
    numbers = 3 * shape.hidden_size * shape.intermediate_size
    bias = (2 * shape.intermediate_size + shape.hidden_size) * 2
    yield shape.experts * (numbers // 2 + numbers // 32 + bias)
