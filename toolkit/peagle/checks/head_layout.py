"""Tensors of a Llama or Qwen3 EAGLE-3 head by name and shape, and KV cache groups of its layers.

Tensors: vLLM 0.28.0, model_executor/models/llama_eagle3.py and qwen3_eagle3.py; names with
``midlayer`` written as ``layers.0``, as vLLM renames it. Groups: v1/core/kv_cache_utils.py
(get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size) and v1/spec_decode/
llm_base_proposer.py (validate_same_kv_cache_group).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from peagle.catalog.schema import AttentionGroup
from peagle.checkpoints.heads import Head, attention_of
from peagle_serve.heads import HeadConfig

Shapes = dict[str, tuple[int, ...]]

_OWN_RULES = ("fc.weight", "lm_head.weight", "embed_tokens.weight")
_OWN_RULE_PARTS = ("mask_hidden", "d2t", "t2d")
"""Tensors whose shape a separate rule checks, by name and by a part of it."""

_NORMS = ("norm.weight", "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")
"""Tensors of every head whose shape is its width and nothing else."""


def plain_name(name: str) -> str:
    """The name as vLLM sees it after its own renaming."""
    return name.replace("midlayer.", "layers.0.")


def has_own_rule(name: str) -> bool:
    """Whether a separate rule checks this tensor's shape."""
    return name in _OWN_RULES or any(part in name for part in _OWN_RULE_PARTS)


def required(head: HeadConfig) -> Shapes | None:
    """The tensors a head must have, except those it may share with the target.

    ``None`` for a head whose layout is unknown: of a different class, quantized, or with a
    config that leaves out numbers.
    """
    groups = attention_of(head)
    hidden, inner, queries = head.hidden_size, head.intermediate_size, head.query_heads
    if head.quantized or head.model_type not in ("llama", "qwen3") or not groups:
        return None
    if hidden is None or inner is None or queries is None:
        return None
    target_hidden, group = head.target_hidden_size or 0, groups[0]
    shapes: Shapes = {"norm.weight": (hidden,)}
    if head.uses_auxiliary:
        width = head.built_for * target_hidden
        shapes["fc.weight"] = (hidden, width)
        if head.norm_before_fc:
            shapes["input_norm.weight"] = (width,)
        if head.fc_norm:
            shapes |= {f"fc_norm.{n}.weight": (target_hidden,) for n in range(head.built_for)}
    q, kv = queries * group.head_dim, group.kv_heads * group.head_dim
    for layer in range(head.layers or 0):
        # The first layer takes embedding and hidden state side by side.
        wide = 2 * hidden if layer == 0 else hidden
        of_layer: Shapes = {
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
            of_layer["hidden_norm.weight"] = (hidden,)
        if head.model_type == "qwen3":
            of_layer |= {f"self_attn.{n}_norm.weight": (group.head_dim,) for n in ("q", "k")}
        of_layer |= {
            name.replace(".weight", ".bias"): shape[:1]
            for name, shape in of_layer.items()
            if name.split(".")[-2] in head.biases
        }
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return shapes


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


def draft_groups(
    target: Sequence[AttentionGroup], draft: Sequence[AttentionGroup], ratio: float
) -> int | None:
    """The groups of vLLM's KV cache with layers of the drafter; it starts only with one.

    Layers of one kind and size share a bucket. A group has as many layers as the smallest bucket,
    or as the largest when that has fewer than ``ratio`` times as many. vLLM deals out layer after
    layer, so consecutive ones are spread over as many groups as there are. ``None``: the pages of
    the buckets cannot be brought to one size by arithmetic alone, so the answer is unknown.
    """
    groups = (*target, *draft)
    if len({(group.kind, group.window) for group in groups}) == 1:
        return 1

    def bucket(group: AttentionGroup) -> tuple[object, ...]:
        return group.kind, group.kv_heads, group.head_dim, group.window

    buckets: Counter[tuple[object, ...]] = Counter()
    for group in groups:
        buckets[bucket(group)] += group.layers
    pages = [group.kv_heads * group.head_dim for group in groups]
    if any(max(pages) % page for page in pages):
        return None
    fewest, most = min(buckets.values()), max(buckets.values())
    size = most if most < fewest * ratio else fewest
    return sum(min(group.layers, math.ceil(buckets[bucket(group)] / size)) for group in draft)
