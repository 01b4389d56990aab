"""What config.json says of a model: its architecture, as Hugging Face writes it and vLLM reads it.

Each kind of layer is read in ``layer_kinds``; any decoder with the usual keys is read, also nested
under ``text_config`` and, of ``speculators`` heads, under ``transformer_layer_config``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from peagle.catalog.schema import Architecture, AttentionGroup, LatentAttention, RecurrentGroup
from peagle.checkpoints.layer_kinds import (
    GROUP_SIZES,
    Kind,
    feed_forward,
    latent_attention,
    layer_kinds,
    matrices,
    quantized_weights,
    recurrent_group,
    with_defaults,
)
from peagle.errors import CheckpointError, DamagedCheckpoint
from peagle.vllm.gpus import served_dtype
from peagle_serve.checkpoint import largest_value

Config = Mapping[str, Any]

_NESTED = (
    "text_config", "llm_config", "language_config", "thinker_config", "transformer_layer_config",
)  # fmt: skip
"""Keys of the decoder's config in the config of a larger model."""

_DEFAULT_POSITIONS = {True: 2048, False: 131_072}
"""Positions where config.json states none, with attention (vLLM's default, config/model.py) and
without it: the size of states does not depend on them."""


def read_architecture(config: Config) -> Architecture:
    """The decoder that ``config`` describes.

    ``intermediate_size`` is that of one expert where there are experts. Raises DamagedCheckpoint,
    with the key, for a number that is missing or not a positive whole number, and
    CheckpointError for a config.json that leaves all sizes to the model's code.
    """
    text = with_defaults(decoder_config(config), config.get("model_type"))
    sizes = {"hidden_size", "num_hidden_layers", "num_attention_heads"}
    if class_name(config) != "unknown" and not sizes & text.keys():
        raise CheckpointError(
            f"config.json states no sizes, and those of {class_name(config)} are not known here",
            "add the decoder's hidden_size, intermediate_size, num_hidden_layers, "
            "num_attention_heads and vocab_size to a copy of config.json: the model's own "
            "configuration_*.py has them",
            code="not-estimated",
        )
    hidden, layers = number(text, "hidden_size"), number(text, "num_hidden_layers")
    types = text.get("layer_types")
    if types is not None and (not isinstance(types, list) or len(types) < layers):
        raise _damaged(f"layer_types is no list of {layers} entries, num_hidden_layers")
    kinds, unknown = layer_kinds(text, layers)
    recurrent = sum(kind in ("recurrent", "both") for kind in kinds)
    try:
        states: tuple[RecurrentGroup, ...] = ()
        if recurrent:
            states = (recurrent_group(text, recurrent, hidden, number),)
        attends = not {"full", "sliding", "both"}.isdisjoint(kinds)
        if not attends and not states:
            raise _damaged("no layer has a cache")
        # Of a model without attention, the states' channels are divided among the GPUs.
        heads = number(text, "num_attention_heads") if attends else states[0].divided[0]
        experts = _count(text, "num_experts")
        if text.get("enable_moe_block") is False:
            experts = None
        wide = "intermediate_size"
        if experts is None and _count(text, wide) is None and text.get("shared_intermediate_size"):
            wide = "shared_intermediate_size"
        elif experts and _count(text, "moe_intermediate_size") is not None:
            wide = "moe_intermediate_size"
        latent, tied = latent_attention(text, number), config.get("tie_word_embeddings")
        blocks, without_experts = feed_forward(text, layers, bool(experts))
        dense = _count(text, "intermediate_size_mlp") or _count(text, "intermediate_size")
        return Architecture(
            class_name=class_name(config),
            hidden_size=hidden,
            layers=layers,
            query_heads=heads,
            attention=_attention(text, kinds, latent, hidden, heads),
            vocab_size=number(text, "vocab_size"),
            intermediate_size=number(text, wide) if blocks else hidden,
            max_positions=_count(text, "max_position_embeddings") or _DEFAULT_POSITIONS[attends],
            tied_embeddings=bool(text.get("tie_word_embeddings") if tied is None else tied),
            experts=experts,
            experts_per_token=_count(text, "num_experts_per_tok") if experts else None,
            feed_forward_layers=None if blocks == layers and GROUP_SIZES not in text else blocks,
            feed_forward_matrices=matrices(text),
            dense_layers=without_experts,
            dense_intermediate_size=dense if without_experts else None,
            shared_expert_size=_shared_size(text, wide) if experts else None,
            attention_gate=bool(text.get("attn_output_gate")),
            per_layer_embeddings=layers * (_count(text, "hidden_size_per_layer_input") or 0),
            latent=latent,
            recurrent=states,
            attention_blocks=_count(text, "num_mem_blocks"),
            quantized=quantized_weights(quantization_settings(config)),
            unknown_cache=unknown,
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _damaged(f"{where}: {first['msg']}") from error


def _damaged(problem: str) -> DamagedCheckpoint:
    fix = "compare config.json with that of the original model"
    return DamagedCheckpoint(f"config.json: {problem}", fix, code="config-damaged")


def decoder_config(config: Config) -> Config:
    """The part of ``config`` that describes the decoder: the whole, or a nested object."""
    for key in _NESTED:
        nested = config.get(key)
        if nested is None:
            continue
        if not isinstance(nested, Mapping):
            raise _damaged(f"{key} is {ascii(nested)[:80]}, not an object")
        return decoder_config(nested)
    return config


def class_name(config: Config) -> str:
    """The first of ``architectures``; ``unknown`` if there is none."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return "unknown"


def read_dtype(config: Config) -> str | None:
    """The type that vLLM computes in on a GPU, such as ``bfloat16``; ``None`` if unknown.

    It is the type of the saved weights, except where ``served_dtype`` maps it to another.
    """
    for part in (decoder_config(config), config):
        for key in ("dtype", "torch_dtype"):
            if isinstance(part.get(key), str):
                return served_dtype(part[key])
    return None


def read_quantization(config: Config) -> str | None:
    """How the weights are quantized: ``mxfp4``, ``fp8``, ``nvfp4``, another name, or ``None``.

    compressed-tensors and ModelOpt are mapped to the format of their weights.
    """
    settings = quantization_settings(config)
    if not settings:
        return None
    method = str(settings.get("quant_method", "unknown")).lower()
    if method == "compressed-tensors":  # 8-bit floats are fp8, 4-bit ones nvfp4 or mxfp4
        groups = settings.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping) and weights.get("type") == "float":
                if weights.get("num_bits") == 8:
                    return "fp8"
                return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
        return method
    if method == "modelopt":
        algorithm = str(settings.get("quant_algo", "")).lower()
        return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(algorithm, "modelopt")
    return {"fbgemm_fp8": "fp8"}.get(method, method)


def quantization_settings(config: Config) -> Config:
    """``quantization_config`` of the model or its decoder; empty where there is none."""
    for part in (config, decoder_config(config)):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part.get(key), Mapping):
                settings: Config = part[key]
                return settings
    return {}


def _shared_size(text: Config, wide: str) -> int | None:
    """The width of the shared experts, in the notation of each family."""
    for key in (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ):  # fmt: skip
        if size := _count(text, key):
            return size
    if str(text.get("model_type", "")).startswith("llama4"):
        return number(text, wide)
    if text.get("parallel_attn_mlp_res"):  # Arctic's block beside the experts
        return number(text, "hidden_size")
    for key in ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"):
        if shared := _count(text, key):
            return shared * number(text, wide)
    return None


def number(config: Config, key: str) -> int:
    """The positive whole number under ``key``. Raises DamagedCheckpoint with key and value."""
    value = optional_number(config, key)
    if value is None:
        raise _damaged(f"it has no {key}, which the estimate needs")
    return value


def optional_number(config: Config, key: str) -> int | None:
    """Like ``number``, but ``None`` for a key that is missing or null."""
    value = config.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= largest_value(key):
        expected = f"a positive whole number of at most {largest_value(key):,}"
        raise _damaged(f"{key} is {ascii(value)[:80]}, not {expected}")
    return value


def _count(config: Config, key: str) -> int | None:
    """Like ``optional_number``; 0 is ``None``: configs write it for parts that they lack."""
    return None if config.get(key) == 0 else optional_number(config, key)


def _attention(
    text: Config, kinds: list[Kind], latent: LatentAttention | None, hidden: int, heads: int
) -> tuple[AttentionGroup, ...]:
    """Layers grouped by their KV cache; layers that share another layer's cache are left out."""
    if latent is not None:
        # MLAAttentionSpec: one vector of kv_lora_rank + qk_rope_head_dim per token; DeepSeek's
        # indexer keeps index_head_dim bytes and a float32 scale for each 128 (deepseek_v2.py).
        layers = sum(kind != "recurrent" for kind in kinds)
        if not latent.cached:  # vLLM pads values to the width of keys
            width = latent.nope_dim + latent.rope_dim
            return (AttentionGroup(kind="full", layers=layers, kv_heads=heads, head_dim=width),)
        widths = [latent.kv_rank + latent.rope_dim]
        if latent.indexer_dim:
            widths.append(-(-(latent.indexer_dim + latent.indexer_dim // 128 * 4) // 2))
        return tuple(
            AttentionGroup(kind="latent", layers=layers, kv_heads=1, head_dim=width)
            for width in widths
        )
    width = _count(text, "head_dim") or hidden // heads
    kv_heads = optional_number(text, "num_key_value_heads") or heads
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        kv_heads = 1
    if GROUP_SIZES in text:
        counts = Counter(heads // size for size in text[GROUP_SIZES] if size)
        return tuple(
            AttentionGroup(kind="full", layers=count, kv_heads=each, head_dim=width)
            for each, count in counts.items()
        )
    shared = min(_count(text, "num_kv_shared_layers") or 0, len(kinds) - 1)
    full_heads, full_width = kv_heads, optional_number(text, "global_head_dim") or width
    if text.get("attention_k_eq_v"):
        full_heads = optional_number(text, "num_global_key_value_heads") or kv_heads
    cached = ["full" if kind == "both" else kind for kind in kinds[: len(kinds) - shared]]
    return tuple(
        AttentionGroup(
            kind="sliding",
            layers=count,
            kv_heads=kv_heads,
            head_dim=width,
            window=number(text, "sliding_window"),
        )
        if kind == "sliding"
        else AttentionGroup(kind="full", layers=count, kv_heads=full_heads, head_dim=full_width)
        for kind, count in Counter(cached).items()
        if kind in ("full", "sliding")
    )
