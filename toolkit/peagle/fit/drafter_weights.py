"""A drafter's weights on one GPU: a head of Llama layers in vLLM's EAGLE-3 layout.

``fc`` (kept whole on every rank) joins the target's hidden states; the first layer's projections
take twice the width; the rest are plain Llama layers. The embedding and the output matrix count
where the checkpoint brings its own: else vLLM shares the target's.

The target's weights on one GPU, from the headers of its safetensors files.

The headers give every tensor's size as stored; which rank holds what follows from its name, as
vLLM's layers divide it. Experts of GPT-OSS are counted as the kernels pad them, from the config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil

from peagle.checkpoints.models import Tensor
from peagle.fit.models import DraftModel, TargetModel
from peagle.fit.target_weights import (
    allotted,
    allotted_all,
    feed_forward_tensors,
    has_mxfp4_experts,
    padded_vocabulary,
)

_ELEMENT = 2
"""Heads are computed in bfloat16."""

_INDEX = 8
"""Each drafted token's id in the target's vocabulary is kept as int64."""


def drafter_bytes(drafter: DraftModel, tensor_parallel_size: int) -> int:
    """Bytes on one of ``tensor_parallel_size`` GPUs, without its rotary table."""
    return allotted_all(drafter_tensors(drafter, tensor_parallel_size))


def drafter_tensors(drafter: DraftModel, tp: int) -> Iterator[float]:
    """Bytes of every tensor on one of ``tp`` GPUs."""
    hidden, eagle = drafter.hidden_size, is_eagle(drafter)
    for layer in range(drafter.layers):
        yield from _layer_tensors(drafter, tp, 2 if eagle and layer == 0 else 1)
    yield _ELEMENT * hidden
    if eagle:
        taken = drafter.auxiliary * drafter.target_hidden_size
        yield _ELEMENT * taken * hidden
        yield _ELEMENT * taken * drafter.parallel_drafting
        yield _INDEX * drafter.draft_vocab_size
    if drafter.own_embeddings:
        yield _ELEMENT * padded_vocabulary(drafter.vocab_size, tp) * hidden
    if drafter.own_output:
        yield _ELEMENT * padded_vocabulary(drafter.draft_vocab_size, tp) * hidden


def stored_parameters(drafter: DraftModel) -> int:
    """Parameters that its weight files hold."""
    index = _INDEX * drafter.draft_vocab_size if is_eagle(drafter) else 0
    return int(sum(drafter_tensors(drafter, 1)) - index) // _ELEMENT


def is_eagle(drafter: DraftModel) -> bool:
    """Whether it is a head of the EAGLE-3 family, whose layout this is."""
    return drafter.method == "eagle3"


def draft_rotary_bytes(drafter: DraftModel) -> int:
    """Its table of sines and cosines."""
    return allotted(drafter.max_positions * drafter.head_dim * _ELEMENT)


def intermediate_of(parameters: int, like: DraftModel) -> int:
    """The feed-forward width with which a head of this shape has about so many parameters."""
    left = parameters - stored_parameters(replace(like, intermediate_size=0))
    return max(left // (3 * like.hidden_size * like.layers), like.hidden_size)


def _layer_tensors(drafter: DraftModel, tp: int, inputs: int) -> Iterator[float]:
    """One layer, whose projections take ``inputs`` hidden states side by side."""
    hidden = drafter.hidden_size
    heads, kv = drafter.query_heads / tp, ceil(drafter.kv_heads / tp)
    width, inner = (heads + 2 * kv) * drafter.head_dim, heads * drafter.head_dim
    yield _ELEMENT * inputs * hidden * width
    yield _ELEMENT * hidden * inner
    yield _ELEMENT * 2 * hidden * drafter.intermediate_size / tp
    yield _ELEMENT * hidden * drafter.intermediate_size / tp
    for _ in range(3):
        yield _ELEMENT * hidden
    if drafter.attention_bias:
        yield _ELEMENT * width
        yield _ELEMENT * hidden


_TOWERS = re.compile(r"vision|visual|image|audio|multi_modal_projector|mm_projector")
_VOCABULARY = re.compile(r"embed_tokens|lm_head|(^|\.)embedding\.weight$|(^|\.)wte\.")
_OUTPUT = re.compile(r"(^|\.)lm_head\.")
_KEY_VALUE = re.compile(r"\.(k_proj|v_proj|wk|wv)\.")
_WHOLE = re.compile(
    r"norm|router|\.gate\.|layer_scalar|rotary|(o_proj|down_proj)\.bias|input_scale|"
    r"(?<!weight)_scale$|shared_expert_gate|(^|\.)(fc|d2t|t2d|mask_hidden)"
)
_ROUTER = re.compile(r"\.router\.")
_EXPERTS = re.compile(r"\.experts\.")


def stored_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors as stored."""
    return sum(tensor.size for tensor in tensors.values())


def bytes_from_headers(
    target: TargetModel, tensors: Mapping[str, Tensor], tensor_parallel_size: int, capability: int
) -> int:
    """Bytes on one of ``tensor_parallel_size`` GPUs."""
    tp = tensor_parallel_size
    padded = has_mxfp4_experts(target)
    total = 0
    for name, tensor in tensors.items():
        if padded and (_EXPERTS.search(name) or _ROUTER.search(name)):
            continue
        if target.architecture.tied_embeddings and _OUTPUT.search(name):
            continue
        total += allotted(_on_one_gpu(target, name, tensor, tp))
    if padded:
        layers = target.architecture.layers
        total += layers * allotted_all(feed_forward_tensors(target, tp, capability))
    return total


def _on_one_gpu(target: TargetModel, name: str, tensor: Tensor, tp: int) -> int:
    shape = target.architecture
    if _TOWERS.search(name):
        return tensor.size
    if _VOCABULARY.search(name) and tensor.shape:
        row = tensor.size // max(tensor.shape[0], 1)
        return row * padded_vocabulary(tensor.shape[0], tp)
    if len(tensor.shape) == 0 or _WHOLE.search(name):
        return tensor.size
    if _KEY_VALUE.search(name):
        heads = _kv_heads(target, tensor)
        return tensor.size * ceil(heads / tp) // heads
    if len(tensor.shape) == 1 and tensor.shape[0] == shape.hidden_size:
        return tensor.size
    return ceil(tensor.size / tp)


def _kv_heads(target: TargetModel, tensor: Tensor) -> int:
    """The heads of this tensor: those of the group whose heads have as many rows in all."""
    groups = target.architecture.attention
    for group in groups:
        if tensor.shape[0] == group.kv_heads * group.head_dim:
            return group.kv_heads
    return min(group.kv_heads for group in groups)
