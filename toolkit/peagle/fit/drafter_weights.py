"""Weight bytes on one GPU: the drafter's from its sizes, the target's from safetensors headers.

Drafter: ``fc`` (replicated on every rank) projects the target's hidden states; the projections of
the first layer take twice the width; the other layers are plain Llama layers
(model_executor/models/llama_eagle3.py). Embedding and output matrix count if the checkpoint has
them; otherwise vLLM shares the target's.

Target: the headers list every tensor's size as stored; its name determines how vLLM's layers divide
it among ranks. GPT-OSS experts are counted as the kernels pad them, from config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil

from peagle.checkpoints.models import Tensor
from peagle.fit.models import DraftModel, TargetModel
from peagle.fit.target_weights import (
    allocated,
    feed_forward_tensors,
    has_mxfp4_experts,
    padded_vocabulary,
)

_ELEMENT = 2
"""Bytes per element: heads compute in bfloat16."""

_INDEX = 8
"""Bytes per entry of d2t, an int64."""


_TOWERS = re.compile(r"vision|visual|image|audio|multi_modal_projector|mm_projector")
_VOCABULARY = re.compile(r"embed_tokens|lm_head|(^|\.)embedding\.weight$|(^|\.)wte\.")
_OUTPUT = re.compile(r"(^|\.)lm_head\.")
_KEY_VALUE = re.compile(r"\.(k_proj|v_proj|wk|wv)\.")
_WHOLE = re.compile(
    r"norm|router|\.gate\.|layer_scalar|rotary|(o_proj|down_proj)\.bias|input_scale|"
    r"(?<!weight)_scale$|shared_expert_gate|(q|kv)_a_proj|indexer|(^|\.)(fc|d2t|t2d|mask_hidden)"
)
_LAYER = re.compile(r"(?:^model|language_model)\.layers\.(\d{1,9})\.")
_ROUTER = re.compile(r"\.router\.")
_EXPERTS = re.compile(r"\.experts\.")


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
    hidden, eagle, layers = drafter.hidden_size, drafter.method == "eagle3", drafter.layers
    heads, kv = drafter.query_heads / tp, ceil(drafter.kv_heads / tp)
    width, inner = (heads + 2 * kv) * drafter.head_dim, heads * drafter.head_dim
    block = hidden * drafter.intermediate_size / tp
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
        numbers.append((1, padded_vocabulary(drafter.vocab_size, tp) * hidden))
    if drafter.own_output:
        numbers.append((1, padded_vocabulary(drafter.draft_vocab_size, tp) * hidden))
    tensors = [(count, _ELEMENT * size) for count, size in numbers]
    return [*tensors, (1, _INDEX * drafter.draft_vocab_size)] if eagle else tensors


def draft_rotary_bytes(drafter: DraftModel) -> int:
    """Bytes of the drafter's rotary table."""
    return allocated(drafter.max_positions * drafter.head_dim * _ELEMENT)


def estimate_feed_forward_width(parameters: int, like: DraftModel) -> int:
    """The feed-forward width of a head of this shape with about ``parameters`` parameters."""
    left = parameters - stored_parameters(replace(like, intermediate_size=0))
    return max(left // (3 * like.hidden_size * like.layers), like.hidden_size)


def bytes_from_headers(
    target: TargetModel, tensors: Mapping[str, Tensor], tensor_parallel_size: int, capability: int
) -> int:
    """Bytes of the target on one of ``tensor_parallel_size`` GPUs."""
    tp = tensor_parallel_size
    padded = has_mxfp4_experts(target)
    total = 0
    for name, tensor in tensors.items():
        if _is_of_prediction_layer(name, target.architecture.layers):
            continue
        if padded and (_EXPERTS.search(name) or _ROUTER.search(name)):
            continue
        if target.architecture.tied_embeddings and _OUTPUT.search(name):
            continue
        total += allocated(_on_one_gpu(target, name, tensor, tp))
    if padded:
        layers = target.architecture.layers
        total += layers * sum(map(allocated, feed_forward_tensors(target, tp, capability)))
    return total


def _is_of_prediction_layer(name: str, layers: int) -> bool:
    """Whether this belongs to multi-token prediction, which vLLM loads with that method only."""
    layer = _LAYER.search(name)
    return name.startswith("mtp.") or bool(layer and int(layer[1]) >= layers)


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
    """KV heads of this tensor: those of the attention group with the same number of rows."""
    groups = target.architecture.attention
    for group in groups:
        if tensor.shape[0] == group.kv_heads * group.head_dim:
            return group.kv_heads
    return min(group.kv_heads for group in groups)
