"""Weight bytes on one GPU, of target and drafter, from their sizes.

Division: vLLM's layers divide projections, experts and the two vocabulary matrices among the ranks;
norms, routers, biases after row-parallel projections and image towers are replicated. KV heads are
divided until each rank has one.

Allocation: small tensors share segments and lose at most 511 bytes. From 10 MiB a tensor gets its
own segment, a multiple of 2 MiB; vLLM loads with ``max_split_size_mb`` 20, so that larger segments
are never shared, and smaller ones are split if more than 1 MiB would be lost
(c10/cuda/CUDACachingAllocator.cpp; Worker.load_model). Functions therefore yield one size per
tensor.

GPT-OSS experts in MXFP4 take half a byte per element and one byte of scale per 32 elements; vLLM
selects the kernel by GPU and pads for it (fused_moe/oracle/mxfp4.py, quantization/utils/
mxfp4_utils.py). They are counted as padded.

Drafter: ``fc`` (replicated on every rank) projects the target's hidden states; the projections of
the first layer take twice the width; the other layers are plain Llama layers
(model_executor/models/llama_eagle3.py). Embedding and output matrix count if the checkpoint has
them; otherwise vLLM shares the target's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from peagle.catalog.schema import Architecture, AttentionGroup
from peagle.vllm.gpus import element_bytes, round_up


class Vision(NamedTuple):
    """The image tower of a multimodal target, by the numbers of its ``vision_config``.
    ``patch_values`` has one patch, and ``positions`` is the length of both position tables."""

    layers: int
    hidden_size: int
    intermediate_size: int
    attention_size: int
    head_dim: int
    patch_values: int
    positions: int


@dataclass(frozen=True)
class TargetModel:
    """The target; ``dtype`` and ``quantization`` as in the catalogue. ``checkpoint_bytes`` is the
    size of what vLLM loads of its weight files, if known."""

    architecture: Architecture
    dtype: str = "bfloat16"
    quantization: str | None = None
    checkpoint_bytes: int | None = None
    vision: Vision | None = None
    attention_bias: bool = False
    query_key_norm: bool = False

    @property
    def is_multimodal(self) -> bool:
        """Whether it also takes images."""
        return self.architecture.class_name.endswith("ForConditionalGeneration")

    @property
    def is_gpt_oss(self) -> bool:
        """Whether this is GPT-OSS: its attention and experts have biases, and only its experts are
        quantized."""
        return self.architecture.class_name.startswith("GptOss")

    @property
    def has_mxfp4_experts(self) -> bool:
        """Whether these are GPT-OSS experts in MXFP4."""
        return self.is_gpt_oss and self.quantization == "mxfp4"

    @property
    def normalizes_queries(self) -> bool:
        """Whether queries and keys are normalized per head."""
        named = self.architecture.class_name.startswith(("Qwen3", "Gemma"))
        return named or self.query_key_norm


class DraftModel(NamedTuple):
    """A drafter with weights. ``shape`` has its sizes, ``auxiliary`` counts the hidden states that
    ``fc`` reads, and ``own_embeddings`` and ``own_output`` are whether its checkpoint has these
    matrices. ``checkpoint_bytes`` is the size of its weight files, if known."""

    shape: Architecture
    method: str
    parallel_drafting: bool
    head_dim: int
    kv_heads: int
    target_hidden_size: int
    draft_vocab_size: int
    auxiliary: int
    own_embeddings: bool
    own_output: bool
    attention_bias: bool = False
    checkpoint_bytes: int | None = None


MIB = 1 << 20

_SMALLEST, _SEGMENT, _OWN_SEGMENT = 512, 2 * MIB, 10 * MIB
_MAX_SPLIT_BYTES, _MIN_REMAINDER_BYTES = 20 * MIB, MIB

_SCALED = 32
"""MXFP4 elements that share one scale."""

_VOCABULARY_PADDING = 64
"""DEFAULT_VOCAB_PADDING_SIZE of vLLM's VocabParallelEmbedding."""

QUANTIZED_BYTES = {"fp8": 1 + 4 / 128**2, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32}
"""Bytes per element of a quantized projection, including scales. Of other quantizations the
architecture has the bytes, where config.json states the bits."""


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


def mxfp4_kernel(capability: int, hidden: int, intermediate: int) -> tuple[str, int, int]:
    """The kernel of experts in MXFP4, and the hidden and intermediate size that it requires:
    OpenAI's on Hopper, FlashInfer's on data-centre Blackwell, else Marlin
    (mxfp4_round_up_hidden_size_and_intermediate_size)."""
    if capability // 10 == 9:
        return "triton", hidden, round_up(intermediate, 64)
    if capability // 10 == 10:
        return "trtllm", round_up(hidden, 256), round_up(intermediate, 256)
    return "marlin", round_up(hidden, 256), round_up(intermediate, 128)


@lru_cache(maxsize=256)  # the same on many instance types, and with every drafter
def target_bytes(target: TargetModel, tensor_parallel_size: int, capability: int) -> int:
    """Bytes of the target on one of ``tensor_parallel_size`` GPUs, without its image tower."""
    tensors = _tensors(target, tensor_parallel_size, capability)
    return sum(count * allocated(size) for count, size in tensors)


@lru_cache(maxsize=64)
def checkpoint_bytes(target: TargetModel) -> int:
    """Bytes of the target's weight files: not divided, padded or rounded."""
    return int(sum(count * size for count, size in _tensors(target, 1)))


def _tensors(
    target: TargetModel, tp: int, capability: int | None = None
) -> list[tuple[int, float]]:
    """The tensors of the target on one of ``tp`` GPUs, as vLLM keeps them on a GPU of that
    capability, or as the weight files have them: how many there are, and the bytes of one."""
    shape, element = target.architecture, element_bytes(target.dtype)
    hidden, layers, latent = shape.hidden_size, shape.layers, shape.latent
    gemma = shape.class_name.startswith("Gemma")
    tensors: list[tuple[int, float]] = []
    for group, count in attention_layers(shape):
        tensors += ((count, size) for size in _attention_tensors(target, group, tp))
        if capability is None and shape.class_name.startswith("Gemma4") and group.kind == "full":
            # Beside sliding ones, the full layers' files have one projection for keys and values.
            shared = group.layers if len(shape.attention) > 1 else 0
            tensors.append((-shared, group.kv_heads * group.head_dim * hidden * element))
    for recurrent in shape.recurrent:
        tensors.append((recurrent.layers, _linear_bytes(target, recurrent.parameters / tp)))
    if latent and latent.cached and capability is not None:
        # kv_b_proj in 16 bits: vLLM keeps it beside the loaded one, absorbed into queries and
        # outputs (W_UK_T and W_UV of mla_attention.py).
        numbers = latent.kv_rank * shape.query_heads * (latent.nope_dim + latent.value_dim) / tp
        tensors.append((shape.attention[0].layers, numbers * element))
    blocks = shape.blocks - shape.dense_layers
    tensors += ((blocks, size) for size in _feed_forward_tensors(target, tp, capability))
    if shape.dense_layers:
        dense = _block_tensors(target, shape.dense_intermediate_size or 0, tp)
        tensors += ((shape.dense_layers, size) for size in dense)
    # One layer's norms, of which Gemma has two more and a scalar, and the last.
    tensors.append(((4 if gemma else 2) * layers + 1, hidden * element))
    if gemma:
        tensors.append((layers, element))
    rows = shape.vocab_size if capability is None else padded_vocabulary(shape.vocab_size, tp)
    tensors.append((1 if shape.tied_embeddings else 2, rows * hidden * element))
    if shape.per_layer_embeddings:
        tensors.append((1, rows * shape.per_layer_embeddings * element))
    return tensors


def padded_vocabulary(vocabulary: int, tensor_parallel_size: int) -> int:
    """Rows of a vocabulary matrix on one GPU."""
    return ceil(round_up(vocabulary, _VOCABULARY_PADDING) / tensor_parallel_size)


def attention_layers(shape: Architecture) -> Iterator[tuple[AttentionGroup, int]]:
    """The kinds of attention, each with the number of layers that have its projections: also those
    that read another layer's cache. An indexer has none."""
    if shape.latent:
        yield shape.attention[0], shape.attention[0].layers
        return
    for group in shape.attention:
        yield group, group.layers
    if not shape.recurrent and shape.feed_forward_layers is None:
        like = max(shape.attention, key=lambda group: group.layers)
        yield like, max(shape.layers - sum(group.layers for group in shape.attention), 0)


def attention_parameters(shape: Architecture, group: AttentionGroup) -> tuple[int, int]:
    """Parameters of the projections of one layer's attention that each GPU has whole, and of those
    that are divided; of latent attention q_a, q_b, kv_a, kv_b and o (deepseek_v2.py)."""
    hidden, heads, latent = shape.hidden_size, shape.query_heads, shape.latent
    if latent is None:
        projections = (3 if shape.attention_gate else 2) * heads + 2 * group.kv_heads
        return 0, hidden * group.head_dim * projections
    queries = heads * (latent.nope_dim + latent.rope_dim)
    whole = hidden * (latent.kv_rank + latent.rope_dim) + hidden * (latent.query_rank or 0)
    divided = queries * (latent.query_rank or hidden)
    divided += latent.kv_rank * heads * (latent.nope_dim + latent.value_dim)
    return whole, divided + heads * latent.value_dim * hidden


def _attention_tensors(target: TargetModel, group: AttentionGroup, tp: int) -> list[float]:
    """Bytes of one layer's projections; GPT-OSS adds biases and one sink per head."""
    shape, element = target.architecture, element_bytes(target.dtype)
    plain = shape.quantized and not shape.quantized.attention
    if shape.latent:
        whole, divided = attention_parameters(shape, group)
        numbers = [whole, divided / tp]
        return [n * element if plain else _linear_bytes(target, n) for n in numbers]
    heads, kv = shape.query_heads / tp, ceil(group.kv_heads / tp)
    gate = heads if shape.attention_gate else 0
    width, inner = (heads + gate + 2 * kv) * group.head_dim, heads * group.head_dim
    numbers = [width * shape.hidden_size, inner * shape.hidden_size]
    sizes = [n * element if plain else _linear_bytes(target, n) for n in numbers]
    if target.attention_bias or target.is_gpt_oss:
        sizes.append(width * element)
    if target.is_gpt_oss:
        sizes += [shape.hidden_size * element, heads * element]
    if target.normalizes_queries:
        sizes += [group.head_dim * element] * 2
    return sizes


def _feed_forward_tensors(target: TargetModel, tp: int, capability: int | None) -> list[float]:
    """Bytes of one layer's feed-forward block: gate and up, down; of all experts and the router. Of
    experts in MXFP4 these are values, scales and biases. OpenAI's kernels swizzle the scales in
    tiles of 256 rows and 4 columns; they and TensorRT-LLM's keep the biases in float32."""
    shape, element, experts = target.architecture, element_bytes(target.dtype), 0
    sizes: list[float] = []
    if shape.experts:
        experts = shape.experts
        sizes.append(experts * shape.hidden_size * element)
        if target.is_gpt_oss:
            sizes.append(experts * element)
    if experts and target.has_mxfp4_experts:
        if capability is None:
            numbers = 3 * shape.hidden_size * shape.intermediate_size
            bias = (2 * shape.intermediate_size + shape.hidden_size) * 2
            return [*sizes, experts * (numbers // 2 + numbers // _SCALED + bias)]
        width = ceil(shape.intermediate_size / tp)
        kernel, hidden, inter = mxfp4_kernel(capability, shape.hidden_size, width)
        for rows, columns in ((2 * inter, hidden), (hidden, inter)):
            scales = rows * columns // _SCALED
            if kernel == "triton":
                scales = round_up(rows, 256) * round_up(ceil(columns / _SCALED), 4)
            biases = rows * (2 if kernel == "marlin" else 4)
            sizes += [experts * rows * columns // 2, experts * scales, experts * biases]
        return sizes
    sizes += _block_tensors(target, (experts or 1) * shape.intermediate_size, tp)
    if shape.shared_expert_size:
        sizes += _block_tensors(target, shape.shared_expert_size, tp)
    return sizes


def _block_tensors(target: TargetModel, width: int, tp: int) -> list[float]:
    numbers = target.architecture.hidden_size * width / tp
    gate_and_up = (target.architecture.feed_forward_matrices - 1) * numbers
    return [_linear_bytes(target, gate_and_up), _linear_bytes(target, numbers)]


def quantized_element(target: TargetModel) -> float | None:
    """Bytes per element of a quantized projection; ``None`` if it is not quantized, or if the
    quantization is of unknown size."""
    quantized = target.architecture.quantized
    if quantized:
        return quantized.element_bytes
    return QUANTIZED_BYTES.get(target.quantization or "")


def _linear_bytes(target: TargetModel, numbers: float) -> float:
    """Bytes of a projection of ``numbers`` elements."""
    size = quantized_element(target)
    if size is None or target.is_gpt_oss:
        return numbers * element_bytes(target.dtype)
    return numbers * size


def vision_bytes(vision: Vision, hidden_size: int) -> int:
    """Gemma 4's image tower in bfloat16, whole on every rank: layers of attention and a gated
    feed-forward block with four norms, patches and positions, and the projection to the text."""
    size = vision.hidden_size
    per_layer = 4 * size * vision.attention_size + 2 * vision.head_dim
    per_layer += 3 * size * vision.intermediate_size + 4 * size
    around = 2 * vision.positions * size + vision.patch_values * size + 2 * size
    return 2 * (vision.layers * per_layer + around + size * hidden_size)


_ELEMENT, _INDEX = 2, 8
"""Bytes per element of a head, which computes in bfloat16, and per entry of d2t, an int64."""


def drafter_bytes(drafter: DraftModel, tensor_parallel_size: int) -> int:
    """Bytes of the drafter on one of ``tensor_parallel_size`` GPUs, without its rotary table."""
    tensors = _drafter_tensors(drafter, tensor_parallel_size)
    return sum(count * allocated(size) for count, size in tensors)


@lru_cache(maxsize=256)
def stored_parameters(drafter: DraftModel) -> int:
    """Parameters in the drafter's weight files."""
    index = _INDEX * drafter.draft_vocab_size if drafter.method == "eagle3" else 0
    size = sum(count * size for count, size in _drafter_tensors(drafter, 1))
    return int(size - index) // _ELEMENT


def _drafter_tensors(drafter: DraftModel, tp: int) -> list[tuple[int, float]]:
    """The tensors on one of ``tp`` GPUs: how many there are, and the bytes of one."""
    shape, eagle = drafter.shape, drafter.method == "eagle3"
    hidden, layers = shape.hidden_size, shape.layers
    heads, kv = shape.query_heads / tp, ceil(drafter.kv_heads / tp)
    width, inner = (heads + 2 * kv) * drafter.head_dim, heads * drafter.head_dim
    block = hidden * shape.intermediate_size / tp
    # The first layer of a head takes two hidden states side by side.
    numbers: list[tuple[int, float]] = [
        (1, (2 if eagle else 1) * hidden * width),
        (layers - 1, hidden * width),
        (layers, hidden * inner),
        (layers, 2 * block),
        (layers, block),
        (3 * layers + 1, hidden),
    ]
    if drafter.attention_bias:
        numbers += [(layers, width), (layers, hidden)]
    if eagle:
        read = drafter.auxiliary * drafter.target_hidden_size
        numbers += [(1, read * hidden), (1, read * drafter.parallel_drafting)]
    if drafter.own_embeddings:
        numbers.append((1, padded_vocabulary(shape.vocab_size, tp) * hidden))
    if drafter.own_output:
        numbers.append((1, padded_vocabulary(drafter.draft_vocab_size, tp) * hidden))
    tensors = [(count, _ELEMENT * size) for count, size in numbers]
    return [*tensors, (1, _INDEX * drafter.draft_vocab_size)] if eagle else tensors
