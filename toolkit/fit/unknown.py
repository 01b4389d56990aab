"""What the fit does not know: caches of another kind, weights of another size.

It would come out with a number all the same, so these are refused, or said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolkit.checkpoints.architecture import decoder_config, read_quantization
from toolkit.checkpoints.models import Checkpoint
from toolkit.errors import CheckpointError
from toolkit.fit.target_weights import QUANTIZED_BYTES

_KNOWN_LAYERS = ("full_attention", "attention", "sliding_attention")
"""Entries of ``layer_types`` whose layers keep keys and values of every token or of a window."""

_ALWAYS_OTHER = ("kv_lora_rank", "compress_ratios", "attention_chunk_size", "block_configs")
"""Keys of latent attention, of compressed and chunked caches, and of layers of several shapes."""

_STATE = re.compile(
    r"mamba_|ssm_|linear_attn|linear_(num|key|value|conv)_|full_attention_interval$|conv_L_cache$|"
    r"attn_layer_(period|indices)$|hybrid_(override|layer)_pattern$|layers_block_type$|"
    r"block_types$|time_mix|rwkv"
)
"""Keys of configs whose layers keep a state instead, where no ``layer_types`` says which do."""


def refuse_unknown(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for a cache that the fit cannot count, and for quantised weights that
    only their headers could tell the size of when these were not read."""
    config = checkpoint.config
    text = decoder_config(config)
    reason = _other_cache(text)
    if reason:
        model = text.get("model_type") or config.get("model_type") or "unknown"
        raise CheckpointError(
            f"the cache of model type {model} cannot be reckoned: config.json has {reason}",
            "start vLLM with it and read its log; full and sliding attention are known here",
        )
    kind = unknown_quantization(checkpoint)
    if kind and not checkpoint.tensors:
        raise CheckpointError(
            f"how large weights quantised by {kind} are is not known from config.json alone",
            "name a place that has the weight files too: their headers tell it",
        )


def unknown_quantization(checkpoint: Checkpoint) -> str | None:
    """The quantisation when it is one whose sizes the fit takes from the weight files only."""
    kind = read_quantization(checkpoint.config)
    return kind if kind is not None and kind not in QUANTIZED_BYTES else None


def _other_cache(text: Mapping[str, Any]) -> str | None:
    """The key that tells of another cache than the fit's, with its value where that is short."""
    for key in _ALWAYS_OTHER:
        if text.get(key):
            return key
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return next(
            (f"layer_types with {kind}" for kind in kinds if kind not in _KNOWN_LAYERS), None
        )
    mixed = text.get("attn_type_list")
    if isinstance(mixed, list) and not all(mixed):
        return "attn_type_list with linear attention"
    return next((key for key, value in text.items() if value and _STATE.match(key)), None)
