"""The numbers in a model's config.json: under which keys they are, and how large they may be.

vLLM builds what they count: with 2,147,483,647 layers it takes memory until it is killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

SIZES = frozenset({
    "draft_vocab_size", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "num_aux_hidden_states", "num_hidden_layers", "num_key_value_heads",
    "target_hidden_size", "vocab_size",
})  # fmt: skip
"""Keys whose value is a positive whole number, or null."""

COUNTS = frozenset({
    "global_head_dim", "hidden_size_per_layer_input", "moe_intermediate_size", "n_routed_experts",
    "num_experts", "num_experts_per_tok", "num_global_key_value_heads", "num_kv_shared_layers",
    "num_local_experts", "num_nextn_predict_layers", "shared_expert_intermediate_size",
    "sliding_window", "vocab_size_per_layer_input",
})  # fmt: skip
"""Keys whose value is a whole number, 0 included, or null."""

TOKENS = frozenset({"mask_token_id", "pard_token", "ptd_token_id"})
"""Keys whose value is a token id, or null. A check decides whether it is in the vocabulary."""

PER_LAYER = frozenset({
    "intermediate_size", "moe_intermediate_size", "num_experts", "num_experts_per_tok",
    "sliding_window",
})  # fmt: skip
"""Keys that may also have a list with a number per layer, such as Gemma 3n's."""

MOST_LAYERS = 1_000
"""The deepest known models have about 200 layers. Rules and readers make a list of the layers, so
a damaged or hostile number must not reach them."""

_NUMBERS = SIZES | COUNTS | TOKENS
FIX = "correct config.json, or copy it again"

_NESTED = ("text_config", "transformer_layer_config", "eagle_config")
"""Keys of nested parts with numbers of their own."""
_LAYER_COUNTS = frozenset({
    "num_aux_hidden_states", "num_hidden_layers", "num_kv_shared_layers",
    "num_nextn_predict_layers",
})  # fmt: skip
_LAYER_TYPES = "layer_types"
_QUANTIZATION = "quantization_config"
_LARGEST = 2**31 - 1


def largest_value(key: str) -> int:
    """The largest number that a config.json may have under this key."""
    return MOST_LAYERS if key in _LAYER_COUNTS else _LARGEST


def wrong_value(config: Mapping[str, Any]) -> str | None:
    """What is wrong with the first value that vLLM could not use, such as ``num_hidden_layers is 0,
    not a positive number``; ``None`` for a valid config.json."""
    for path, part in _parts(config):
        if not isinstance(part, Mapping):
            return _wrong(path, part, "an object")
        prefix = f"{path}." if path else ""
        for key, value in part.items():
            expected = _expected(key, value)
            if expected:
                return _wrong(prefix + key, value, expected)
    return None


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The document and its nested parts, each with its key."""
    yield "", config
    for key in _NESTED:
        if config.get(key) is not None:
            yield key, config[key]


def _expected(key: str, value: Any) -> str | None:
    """What the value should be; ``None`` if it is that, or not a value that is looked at."""
    if value is None:
        return None
    if key == _LAYER_TYPES and isinstance(value, list) and len(value) > MOST_LAYERS:
        return f"a list of at most {MOST_LAYERS:,}"
    if key == _QUANTIZATION and value and not isinstance(value, Mapping):
        return "an object"
    if key not in _NUMBERS:
        return None
    if key in PER_LAYER and isinstance(value, list) and 0 < len(value) <= MOST_LAYERS:
        wrong = (_expected(key, each) for each in value if not isinstance(each, list))
        return next((text for text in wrong if text), None)
    if type(value) is not int:
        return "a whole number"
    if key in SIZES and value < 1:
        return "a positive number"
    if key in COUNTS and value < 0:
        return "a number of at least 0"
    return (
        f"a number of at most {largest_value(key):,}" if abs(value) > largest_value(key) else None
    )


def _wrong(key: str, value: Any, expected: str) -> str:
    shown = ascii(value) if isinstance(value, float) else json.dumps(value)
    return f"{key} is {shown if len(shown) <= 40 else f'{shown[:37]}...'}, not {expected}"
