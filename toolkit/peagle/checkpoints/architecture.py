"""What config.json says of a model: its architecture, as Hugging Face writes it and vLLM reads it.

Each kind of layer is read in ``layer_kinds``; any decoder with the usual keys is read, also nested
under ``text_config`` and, of ``speculators`` heads, under ``transformer_layer_config``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from peagle.catalog.schema import Architecture, AttentionGroup, LatentAttention, RecurrentGroup
from peagle.checkpoints.layer_kinds import (
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
from peagle.vllm.gpus import parallel_sizes, served_dtype
from peagle_serve.checkpoint import largest_value

Config = Mapping[str, Any]

_NESTED = (
    "text_config", "llm_config", "language_config", "thinker_config", "transformer_layer_config",
)  # fmt: skip
"""Keys of the decoder's config in the config of a larger model."""

_DEFAULT_POSITIONS = 2048
"""Positions where config.json states none (vLLM's default, config/model.py)."""


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
        if {"full", "sliding", "both"}.isdisjoint(kinds):
            raise _damaged("no layer has attention")
        heads = number(text, "num_attention_heads")
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
            max_positions=_count(text, "max_position_embeddings") or _DEFAULT_POSITIONS,
            tied_embeddings=bool(text.get("tie_word_embeddings") if tied is None else tied),
            experts=experts,
            experts_per_token=_count(text, "num_experts_per_tok") if experts else None,
            feed_forward_layers=None if blocks == layers else blocks,
            feed_forward_matrices=matrices(text),
            dense_layers=without_experts,
            dense_intermediate_size=dense if without_experts else None,
            shared_expert_size=_shared_size(text, wide) if experts else None,
            attention_gate=bool(text.get("attn_output_gate")),
            per_layer_embeddings=layers * (_count(text, "hidden_size_per_layer_input") or 0),
            latent=latent,
            recurrent=states,
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


# The numbers of GPUs among which vLLM can divide a target, and why it refuses others. Blocks of
# quantized weights share a scale, so a GPU's share of a projection must be whole blocks. vLLM
# 0.28.0 lets the columns of merged projections be ragged (linear.py:515), but not the rows of
# output and down projections (fp8_utils.py:1216), and nothing of experts (fp8.py:534 and 540).
EXPERT_PARALLEL = "enable-expert-parallel"
"""vLLM's argument that gives each GPU whole experts instead of a share of every expert."""

_SMALLEST_GROUP = 32
"""Groups of experts are halved down to this size (moe_wna16.py:263)."""


def is_expert_parallel(settings: Mapping[str, Any]) -> bool:
    """Whether these arguments of vLLM give each GPU whole experts."""
    return str(settings.get(EXPERT_PARALLEL)).lower() in ("true", "1")


def divisions(shape: Architecture, gpus: int, expert_parallel: bool = False) -> list[int]:
    """The tensor-parallel sizes up to ``gpus`` that a target of this shape supports; the smallest
    that divides the heads where vLLM refuses each, so that a finding can name it."""
    sizes = sizes_of_heads(shape, gpus)
    return [s for s in sizes if division_problem(shape, s, expert_parallel) is None] or sizes[:1]


def sizes_of_heads(shape: Architecture, gpus: int) -> list[int]:
    """The sizes that divide the attention heads."""
    return parallel_sizes(shape.query_heads, (group.kv_heads for group in shape.attention), gpus)


def division_problem(shape: Architecture, size: int, expert_parallel: bool = False) -> str | None:
    """Why vLLM cannot divide the weights among ``size`` GPUs, in one clause; ``None`` if it can."""
    return next(_problems(shape, size, expert_parallel), None)


def _problems(shape: Architecture, size: int, expert_parallel: bool) -> Iterator[str]:
    latent, quantized = shape.latent, shape.quantized
    per_head = latent.value_dim if latent else max((g.head_dim for g in shape.attention), default=0)
    # Inputs of the projections that are divided by rows.
    widths = {"attention's output": shape.query_heads * per_head}
    if shape.shared_expert_size:
        widths["the shared expert"] = shape.shared_expert_size
    dense = shape.dense_intermediate_size if shape.experts else shape.intermediate_size
    if dense and shape.blocks:
        widths["the feed-forward block"] = dense
    if shape.experts:
        whole = expert_parallel and size > 1
        widths["the experts"] = shape.intermediate_size * (size if whole else 1)
        if whole and shape.experts < size:
            yield f"there are only {shape.experts} experts"
    divided = [*widths.items()]
    divided += [("the recurrent layers", n) for group in shape.recurrent for n in group.divided]
    for what, width in divided:
        if width % size:
            yield f"{what}: {width:,} is no multiple of {size} (vLLM 0.28.0)"
    if quantized is None:
        return
    rows, columns = quantized.block_rows, quantized.block_columns or 1

    def problem(what: str, width: int, block: int, source: str) -> str:
        return (
            f"{what}: {width:,} / {size} = {width // size:,} is no multiple of the quantization "
            f"block of {block} (vLLM 0.28.0 {source})"
        )

    for what, width in widths.items():
        share = width // size
        if what == "the experts":
            if rows and share % rows:
                yield problem(what, width, rows, "fp8.py:534")
            elif rows and size > 1 and share % columns:
                yield problem(what, width, columns, "fp8.py:540")
            elif quantized.whole_groups and share % columns:
                yield problem(what, width, columns, "compressed_tensors_moe_wna16.py:304")
            elif not rows and share % min(columns, _SMALLEST_GROUP):
                yield problem(what, width, min(columns, _SMALLEST_GROUP), "moe_wna16.py:263")
        elif size > 1 and share % columns and (what != "attention's output" or quantized.attention):
            source = "fp8_utils.py:1216" if rows else "distributed/utils.py:74"
            yield problem(what, width, columns, source)
    if latent and rows and quantized.attention and size > 1:
        # q_b_proj and kv_b_proj: one matrix each, divided by columns.
        for width in (latent.nope_dim + latent.rope_dim, latent.nope_dim + latent.value_dim):
            columns_of_all = shape.query_heads * width
            if columns_of_all // size % rows:
                yield problem("latent attention", columns_of_all, rows, "fp8_utils.py:1236")
