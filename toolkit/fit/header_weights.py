"""The target's weights on one GPU, from the headers of its safetensors files.

The headers give every tensor's size as stored; which rank holds what follows from its name, as
vLLM's layers divide it. Experts of GPT-OSS are counted as the kernels pad them, from the config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil

from toolkit.checkpoints.models import Tensor
from toolkit.fit.allocator import allotted, allotted_all
from toolkit.fit.models import TargetModel
from toolkit.fit.target_weights import (
    feed_forward_tensors,
    has_mxfp4_experts,
    padded_vocabulary,
)

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
