"""What the config.json of a head says, and whether that head can draft for a target.

Read as vLLM reads it: the layout of plain EAGLE-3 checkpoints, and that of the speculators
library, which nests the layers under ``transformer_layer_config``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.catalog.models import AttentionGroup, Target
from toolkit.errors import UserError

_PLACEHOLDERS = ("ptd_token_id", "pard_token", "mask_token_id")
"""Names under which a head's config keeps the token of the masked slots."""

_SIGNS = ("speculators_model_type", "eagle_config", "eagle_aux_hidden_state_layer_ids")
"""Keys that only the config of a head has."""

_HEAD_CLASS = re.compile(r"eagle3|p_?eagle", re.IGNORECASE)

MASK = "mask_hidden"
"""The tensor of the masked slots, without which vLLM loads no parallel-drafting head."""


@dataclass(frozen=True)
class Head:
    """The numbers of a head's config that planning needs. ``None``: the config does not say."""

    parallel_drafting: bool
    speculators_format: bool
    target_hidden_size: int | None
    hidden_size: int | None
    vocab_size: int | None
    draft_vocab_size: int | None
    auxiliary_layers: tuple[int, ...] | None
    max_positions: int | None
    layers: int | None
    intermediate_size: int | None
    attention: tuple[AttentionGroup, ...]


def is_head(config: Mapping[str, Any]) -> bool:
    """Whether this is the config.json of an EAGLE-3 or P-EAGLE head, not of a model or nothing."""
    if any(config.get(name) is not None for name in (*_SIGNS, *_PLACEHOLDERS)):
        return True
    classes = config.get("architectures")
    return isinstance(classes, list) and any(_HEAD_CLASS.search(str(name)) for name in classes)


def has_mask(tensors: Iterable[str]) -> bool:
    """Whether the tensor of the masked slots is among these names."""
    return any(name.rpartition(".")[2] == MASK for name in tensors)


def read_head(config: Mapping[str, Any]) -> Head:
    """The head that ``config`` describes. Raises UserError when a number in it is no number."""
    inner = config.get("transformer_layer_config") or config
    if not isinstance(inner, Mapping):
        raise UserError("transformer_layer_config of the head is not an object", "mend config.json")
    hidden = _number(inner, "hidden_size")
    return Head(
        parallel_drafting=any(config.get(name) is not None for name in _PLACEHOLDERS),
        speculators_format="speculators_model_type" in config,
        target_hidden_size=_number(config, "target_hidden_size") or hidden,
        hidden_size=hidden,
        vocab_size=_number(inner, "vocab_size"),
        draft_vocab_size=_number(config, "draft_vocab_size"),
        auxiliary_layers=_auxiliary_layers(config),
        max_positions=_number(inner, "max_position_embeddings"),
        layers=_number(inner, "num_hidden_layers"),
        intermediate_size=_number(inner, "intermediate_size"),
        attention=_attention(inner, hidden),
    )


def mismatch(head: Head, target: Target) -> str | None:
    """Why this head cannot draft for ``target``, or ``None`` when nothing speaks against it."""
    shape = target.architecture
    if head.target_hidden_size not in (None, shape.hidden_size):
        return (
            f"the head takes hidden states of size {head.target_hidden_size:,} "
            f"and {target.id} has {shape.hidden_size:,}"
        )
    if head.vocab_size not in (None, shape.vocab_size):
        return (
            f"the head's vocabulary has {head.vocab_size:,} tokens and that of {target.id} "
            f"{shape.vocab_size:,}"
        )
    if head.draft_vocab_size is not None and head.draft_vocab_size > shape.vocab_size:
        return (
            f"the head drafts {head.draft_vocab_size:,} tokens, more than the "
            f"{shape.vocab_size:,} "
            f"of {target.id}"
        )
    return _layer_mismatch(head.auxiliary_layers, target)


def _layer_mismatch(named: tuple[int, ...] | None, target: Target) -> str | None:
    layers = target.architecture.layers
    if named is None:
        # vLLM's choice for a head that names none; in a shallow target two of them coincide,
        # and the head dies on the first prompt (measured on vLLM 0.28.0).
        named = (2, layers // 2, layers - 3)
    text = ", ".join(map(str, named))
    if any(layer < 0 or layer >= layers for layer in named):
        return f"the head reads layers {text} and {target.id} has {layers}"
    if len(set(named)) < len(named):
        return f"the head reads layers {text} of {target.id}, of which two are the same"
    return None


def weight_bytes(head: Head) -> int | None:
    """About how many bytes such a head has in bfloat16, or ``None`` when the config is too thin.

    ``fc``, embedding and output matrix, and per layer attention (twice as wide at its input in
    the first layer) and a gated feed-forward block, as vLLM's EAGLE-3 layout has them.
    """
    h, i, vocab = head.hidden_size, head.intermediate_size, head.vocab_size
    if h is None or i is None or vocab is None or not head.attention:
        return None
    group = head.attention[0]
    auxiliary = len(head.auxiliary_layers) if head.auxiliary_layers else 3
    per_layer = 2 * h * h + 2 * h * group.kv_heads * group.head_dim + 3 * h * i
    parameters = (
        auxiliary * (head.target_hidden_size or h) * h
        + vocab * h
        + (head.draft_vocab_size or vocab) * h
        + (head.layers or 1) * per_layer
        + h * h
    )
    return 2 * parameters


def _auxiliary_layers(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    nested = config.get("eagle_config")
    holders = [config, nested] if isinstance(nested, Mapping) else [config]
    for holder in holders:
        layers = holder.get("eagle_aux_hidden_state_layer_ids")
        if layers is not None:
            if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
                raise UserError(
                    "eagle_aux_hidden_state_layer_ids of the head is not a list of numbers",
                    "mend the head's config.json",
                )
            return tuple(layers)
    return None


def _attention(inner: Mapping[str, Any], hidden: int | None) -> tuple[AttentionGroup, ...]:
    layers, heads = _number(inner, "num_hidden_layers"), _number(inner, "num_attention_heads")
    width = _number(inner, "head_dim")
    if width is None and hidden is not None and heads is not None:
        width = hidden // heads
    if not (layers and heads and width):
        return ()
    kv_heads = _number(inner, "num_key_value_heads") or heads
    return (AttentionGroup(kind="full", layers=layers, kv_heads=kv_heads, head_dim=width),)


def _number(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    if value is None or (type(value) is int and value > 0):
        return value
    raise UserError(f"{key} of the head is {value!r}, not a positive number", "mend config.json")
