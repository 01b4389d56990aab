"""What the config.json of a head says, as vLLM reads it.

Two layouts: that of EAGLE-3 and P-EAGLE checkpoints, and that of the speculators library, which
nests the layers under ``transformer_layer_config``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peagle.catalog.schema import AttentionGroup
from peagle.errors import CheckpointError

PLACEHOLDERS = ("ptd_token_id", "pard_token", "mask_token_id")
"""Names under which a head's config keeps the token of the masked slots."""

_SIGNS = (
    "speculators_model_type",
    "speculators_config",
    "eagle_config",
    "eagle_aux_hidden_state_layer_ids",
)
"""Keys that only the config of a head has."""

_HEAD_CLASS = re.compile(r"eagle3|p_?eagle", re.IGNORECASE)

MASK = "mask_hidden"
"""The tensor of the masked slots, without which vLLM loads no parallel-drafting head."""

DEFAULT_AUXILIARY = 3
"""How many hidden states vLLM builds a head for whose config does not say."""

_AUXILIARY = "eagle_aux_hidden_state_layer_ids"
_MEND = "mend the head's config.json, or copy it again"


@dataclass(frozen=True)
class Head:
    """What a head's config says. ``None``: it does not say, and vLLM takes a default.

    ``speculators`` is its type in the speculators format (``eagle3``, ``peagle``), ``None`` in
    vLLM's own. ``auxiliary_layers`` are the target's layers that vLLM gives it; ``built_for`` is
    the number of hidden states for which vLLM builds ``fc``, from another key.
    """

    classes: tuple[str, ...]
    model_type: str
    speculators: str | None
    parallel_drafting: bool
    target_hidden_size: int | None
    hidden_size: int | None
    vocab_size: int | None
    draft_vocab_size: int | None
    auxiliary_layers: tuple[int, ...] | None
    built_for: int
    uses_auxiliary: bool
    max_positions: int | None
    layers: int | None
    intermediate_size: int | None
    query_heads: int | None
    attention: tuple[AttentionGroup, ...]
    attention_bias: bool
    norm_before_fc: bool
    fc_norm: bool
    quantized: bool

    @property
    def speculators_format(self) -> bool:
        """Whether the config is nested as the speculators library writes it."""
        return self.speculators is not None


def is_head(config: Mapping[str, Any]) -> bool:
    """Whether this is the config.json of an EAGLE-3 or P-EAGLE head, not of a model or nothing."""
    if any(config.get(name) is not None for name in (*_SIGNS, *PLACEHOLDERS)):
        return True
    return any(_HEAD_CLASS.search(name) for name in classes_of(config))


def has_mask(tensors: Iterable[str]) -> bool:
    """Whether the tensor of the masked slots is among these names."""
    return any(MASK in name for name in tensors)


def classes_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """``architectures``, or nothing when that is no list of names."""
    names = config.get("architectures")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def placeholder(config: Mapping[str, Any], names: Iterable[str]) -> tuple[str, Any] | None:
    """The first of these keys (dotted: nested) that names a token, and what it says."""
    for name in names:
        value: Any = config
        for step in name.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            return name, value
    return None


def read_head(config: Mapping[str, Any]) -> Head:
    """The head that ``config`` describes. Raises CheckpointError for a number that is none."""
    inner = _inner(config)
    nested = inner.get("eagle_config")
    eagle = nested if isinstance(nested, Mapping) else {}
    hidden, kind = _number(inner, "hidden_size"), config.get("speculators_model_type")
    in_parallel = any(config.get(name) is not None for name in PLACEHOLDERS)
    outer_norms = inner if kind is None else config
    return Head(
        classes=classes_of(config),
        model_type=str(inner.get("model_type") or "llama"),
        speculators=None if kind is None else str(kind),
        parallel_drafting=in_parallel or kind == "peagle",
        target_hidden_size=_number(config, "target_hidden_size")
        or _number(inner, "target_hidden_size")
        or hidden,
        hidden_size=hidden,
        vocab_size=_number(inner, "vocab_size"),
        draft_vocab_size=_number(config, "draft_vocab_size"),
        auxiliary_layers=_layers(config, _AUXILIARY) or _layers(eagle, _AUXILIARY),
        built_for=_number(inner, "num_aux_hidden_states")
        or len(_layers(eagle, _AUXILIARY) or ())
        or DEFAULT_AUXILIARY,
        uses_auxiliary=eagle.get("use_aux_hidden_state") is not False,
        max_positions=_number(inner, "max_position_embeddings"),
        layers=_number(inner, "num_hidden_layers"),
        intermediate_size=_number(inner, "intermediate_size"),
        query_heads=_number(inner, "num_attention_heads"),
        attention=_attention(inner, hidden),
        attention_bias=inner.get("attention_bias") is True,
        norm_before_fc=bool(eagle.get("norm_before_fc", outer_norms.get("norm_before_fc"))),
        fc_norm=bool(outer_norms.get("fc_norm")),
        quantized=isinstance(config.get("quantization_config"), Mapping)
        or isinstance(inner.get("quantization_config"), Mapping),
    )


def weight_bytes(head: Head) -> int | None:
    """About how many bytes such a head has in bfloat16, or ``None`` when the config is too thin.

    ``fc``, embedding and output matrix, and per layer attention (twice as wide at its input in
    the first layer) and a gated feed-forward block, as vLLM's EAGLE-3 layout has them.
    """
    h, i, vocab = head.hidden_size, head.intermediate_size, head.vocab_size
    if h is None or i is None or vocab is None or not head.attention:
        return None
    group = head.attention[0]
    auxiliary = len(head.auxiliary_layers) if head.auxiliary_layers else DEFAULT_AUXILIARY
    per_layer = 2 * h * h + 2 * h * group.kv_heads * group.head_dim + 3 * h * i
    parameters = (
        auxiliary * (head.target_hidden_size or h) * h
        + vocab * h
        + (head.draft_vocab_size or vocab) * h
        + (head.layers or 1) * per_layer
        + h * h
    )
    return 2 * parameters


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the config that describes the layers."""
    inner = config.get("transformer_layer_config") or config
    if not isinstance(inner, Mapping):
        raise CheckpointError("transformer_layer_config of the head is not an object", _MEND)
    return inner


def _layers(holder: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    """The layers named there; ``None`` for none, as vLLM takes an empty list too."""
    layers = holder.get(key)
    if layers is None:
        return None
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise CheckpointError(f"{key} of the head is not a list of numbers", _MEND)
    return tuple(layers) or None


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
    raise CheckpointError(f"{key} of the head is {value!r}, not a positive number", _MEND)
