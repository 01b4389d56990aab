"""Tensors of a Llama or Qwen3 EAGLE-3 head by name and shape, and KV cache groups of its layers.

Tensors: vLLM 0.28.0, model_executor/models/llama_eagle3.py and qwen3_eagle3.py; names with
``midlayer`` written as ``layers.0``, as vLLM renames it. Groups: v1/core/kv_cache_utils.py
(get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size) and v1/spec_decode/
llm_base_proposer.py (validate_same_kv_cache_group).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints.heads import Head, attention_of
from peagle_serve.heads import HeadConfig, layer_of

Shapes = dict[str, tuple[int, ...]]

_CHECKED_BY_OWN_RULE = (
    "fc.weight",
    "lm_head.weight",
    "embed_tokens.weight",
    "mask_hidden",
    "d2t",
    "t2d",
)
"""Tensors whose shape a separate rule checks."""

_NORMS = ("norm.weight", "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")
"""Tensors of every head whose shape is its width and nothing else."""

_QWEN = "qwen3"
_KNOWN = ("llama", _QWEN)


def plain_name(name: str) -> str:
    """The name as vLLM sees it after its own renaming."""
    return name.replace("midlayer.", "layers.0.")


def has_own_rule(name: str) -> bool:
    """Whether a separate rule checks this tensor's shape."""
    return name in _CHECKED_BY_OWN_RULE or any(
        part in name for part in ("mask_hidden", "d2t", "t2d")
    )


def layers_in(names: Iterable[str]) -> set[int]:
    """The numbers of the layers that have a tensor among these names."""
    return {layer for layer in map(layer_of, names) if layer is not None}


def required(head: HeadConfig) -> Shapes | None:
    """The tensors a head must have, except those it may share with the target.

    ``None`` for a head whose layout is unknown: of a different class, quantized, or with a
    config that leaves out numbers.
    """
    sizes = (head.hidden_size, head.intermediate_size, head.query_heads, head.layers)
    if head.quantized or head.model_type not in _KNOWN or None in sizes or not attention_of(head):
        return None
    hidden, target_hidden = head.hidden_size or 0, head.target_hidden_size or 0
    shapes: Shapes = {"norm.weight": (hidden,)}
    if head.uses_auxiliary:
        width = head.built_for * target_hidden
        shapes["fc.weight"] = (hidden, width)
        if head.norm_before_fc:
            shapes["input_norm.weight"] = (width,)
        if head.fc_norm:
            shapes |= {f"fc_norm.{n}.weight": (target_hidden,) for n in range(head.built_for)}
    for layer in range(head.layers or 0):
        shapes |= _layer(head, layer)
    return shapes


def allowed(head: HeadConfig) -> set[str]:
    """The names of all tensors that a checkpoint of this head may hold; empty if unknown."""
    shapes = required(head)
    if shapes is None:
        return set()
    layers = [f"layers.{layer}" for layer in range(head.layers or 0)]
    norms = {f"{layer}.hidden_norm.weight" for layer in layers}
    return norms | {f"{layer}.self_attn.rotary_emb.inv_freq" for layer in layers} | set(shapes)


def _layer(head: HeadConfig, layer: int) -> Shapes:
    hidden, inner = head.hidden_size or 0, head.intermediate_size or 0
    group, queries = attention_of(head)[0], head.query_heads or 0
    wide = 2 * hidden if layer == 0 else hidden
    q, kv = queries * group.head_dim, group.kv_heads * group.head_dim
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, wide),
        "self_attn.k_proj.weight": (kv, wide),
        "self_attn.v_proj.weight": (kv, wide),
        "self_attn.o_proj.weight": (hidden, q),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if layer == 0:
        shapes["hidden_norm.weight"] = (hidden,)
    if head.model_type == _QWEN:
        shapes |= {f"self_attn.{n}_norm.weight": (group.head_dim,) for n in ("q", "k")}
    biases = {
        name.replace(".weight", ".bias"): shape[:1]
        for name, shape in shapes.items()
        if name.split(".")[-2] in head.biases
    }
    return {f"layers.{layer}.{name}": shape for name, shape in (shapes | biases).items()}


def stored_width(head: Head) -> int | None:
    """The width that all of the head's weights have, if its config.json has a different one.

    Then config.json alone is wrong, and rules do not report values derived from its number.
    ``None`` if they agree, or one is unknown.
    """
    if required(head.config) is None:
        return None
    shapes = {plain_name(name): tensor.shape for name, tensor in head.tensors.items()}
    norm_shapes = {shapes.get(name) for name in _NORMS}
    width = norm_shapes.pop() if len(norm_shapes) == 1 else None
    return width[0] if width and width != (head.config.hidden_size,) else None


class CacheGroups(NamedTuple):
    """The groups of the KV cache: ``total`` of all layers, ``draft`` with layers of the drafter."""

    total: int
    draft: int


def cache_groups(
    target: Sequence[AttentionGroup], draft: Sequence[AttentionGroup], ratio: float
) -> CacheGroups | None:
    """vLLM's groups; it starts only with all of the drafter's layers in one.

    Layers of one kind and size share a bucket. A group has as many layers as the smallest bucket,
    or as the largest when that has fewer than ``ratio`` times as many. ``None``: the pages of the
    buckets cannot be brought to one size by arithmetic alone, so the answer is unknown.
    """
    kinds = {(group.kind, group.window) for group in (*target, *draft)}
    if len(kinds) == 1:
        return CacheGroups(1, 1)
    buckets: Counter[tuple[object, ...]] = Counter()
    for group in (*target, *draft):
        buckets[_bucket(group)] += group.layers
    pages = [_page(group) for group in (*target, *draft)]
    if any(max(pages) % page for page in pages):
        return None
    fewest, most = min(buckets.values()), max(buckets.values())
    size = most if most < fewest * ratio else fewest
    return CacheGroups(
        sum(math.ceil(layers / size) for layers in buckets.values()),
        sum(_groups_of(group, buckets[_bucket(group)], size) for group in draft),
    )


def _groups_of(group: AttentionGroup, layers: int, size: int) -> int:
    """The groups among which vLLM deals out a bucket, of which the drafter's layers are the last.

    vLLM deals layer after layer, so consecutive layers are spread over as many groups as there are.
    """
    return min(group.layers, math.ceil(layers / size))


def _bucket(group: AttentionGroup) -> tuple[object, ...]:
    return (group.kind, group.kv_heads, group.head_dim, group.window)


def _page(group: AttentionGroup) -> int:
    """Numbers that one token takes in one layer."""
    return 2 * group.kv_heads * group.head_dim
