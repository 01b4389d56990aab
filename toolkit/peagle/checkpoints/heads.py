"""The config.json of a draft head, as vLLM reads it.

The parser is the container's (``peagle_serve.heads``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peagle.catalog.schema import AttentionGroup
from peagle.errors import CheckpointError
from peagle_serve import heads as parser
from peagle_serve.heads import (
    DEFAULT_AUXILIARY,
    MASK,
    PLACEHOLDERS,
    HeadConfig,
    classes_of,
    has_mask,
    is_head,
    placeholder,
)

__all__ = ["DEFAULT_AUXILIARY", "MASK", "PLACEHOLDERS", "HeadConfig", "attention_of", "classes_of",
           "has_mask", "is_head", "placeholder", "read_head", "weight_bytes"]  # fmt: skip


def read_head(config: Mapping[str, Any]) -> HeadConfig:
    """The head that ``config`` describes. Raises CheckpointError for an invalid value."""
    head = parser.read_head(config)
    if head.invalid:
        raise CheckpointError(
            f"config.json of the head: {next(iter(head.invalid.values()))}",
            "correct the head's config.json, or copy it again",
        )
    return head


def attention_of(head: HeadConfig) -> tuple[AttentionGroup, ...]:
    """The head's attention layers; empty when the config does not describe them."""
    if not (head.layers and head.kv_heads and head.head_dim):
        return ()
    return (
        AttentionGroup(
            kind="full", layers=head.layers, kv_heads=head.kv_heads, head_dim=head.head_dim
        ),
    )


def weight_bytes(head: HeadConfig) -> int | None:
    """About how many bytes such a head has in bfloat16, or ``None`` when the config is too thin.

    ``fc``, embedding and output matrix, and per layer attention (twice as wide at its input in
    the first layer) and a gated feed-forward block, as vLLM's EAGLE-3 layout has them.
    """
    h, i, vocab = head.hidden_size, head.intermediate_size, head.vocab_size
    if h is None or i is None or vocab is None or not (group := attention_of(head)):
        return None
    auxiliary = len(head.auxiliary_layers) if head.auxiliary_layers else DEFAULT_AUXILIARY
    per_layer = 2 * h * h + 2 * h * group[0].kv_heads * group[0].head_dim + 3 * h * i
    parameters = (
        auxiliary * (head.target_hidden_size or h) * h
        + vocab * h
        + (head.draft_vocab_size or vocab) * h
        + (head.layers or 1) * per_layer
        + h * h
    )
    return 2 * parameters
