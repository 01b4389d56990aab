"""The architecture of a model in its config.json, as Hugging Face writes it and vLLM reads it.

Any decoder with the usual keys is read, also nested under ``text_config`` and, of ``speculators``
heads, under ``transformer_layer_config``. Public files leave out what the config class of the model
has as its default; ``_with_defaults`` adds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import ValidationError

from peagle.catalog.schema import (
    Architecture,
    AttentionGroup,
    LatentAttention,
    QuantizedWeights,
    RecurrentGroup,
)
from peagle.errors import CheckpointError, DamagedCheckpoint
from peagle.vllm.gpus import parallel_sizes, served_dtype
from peagle.vllm.versions import architectures
from peagle_serve.checkpoint import largest_value

Config = Mapping[str, Any]

Kind = Literal["full", "sliding", "recurrent", "unknown"]

_PATTERNS = {
    "gemma2": 2, "gemma3_text": 6, "gemma3n_text": 5, "gpt_oss": 2, "cohere2": 4, "exaone4": 4,
    "olmo3": 4,
}  # fmt: skip
"""The sliding_window_pattern that transformers makes a list of layers of, by ``model_type``."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "longcat_flash": {"num_hidden_layers": 56, "moe_layer_freq": 2},
    "qwen3_next": {"full_attention_interval": 4, "attn_output_gate": True},
    "qwen3_5_text": {"full_attention_interval": 4, "attn_output_gate": True},
    "qwen3_5_moe_text": {"full_attention_interval": 4, "attn_output_gate": True},
} | {kind: {"sliding_window_pattern": every} for kind, every in _PATTERNS.items()}  # fmt: skip
"""What vLLM's code of a model adds, by ``model_type``, to the defaults of its config class."""

_SYNONYMS = {
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": (
        "n_head_kv", "num_kv_heads", "kv_n_heads", "multi_query_group_num", "num_attention_groups",
    ),
    "head_dim": ("attention_head_dim", "kv_channels"),
    "intermediate_size": ("ffn_hidden_size", "n_inner", "ffn_dim", "block_ff_dim"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "max_position_embeddings": (
        "model_max_length", "max_seq_len", "seq_length", "n_positions", "max_sequence_length",
    ),
    "vocab_size": ("padded_vocab_size",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_k",
        "moe_top_k",
    ),
}  # fmt: skip
"""Names that families give to these keys; vLLM reads them in config/model.py and in
transformers_utils/model_arch_config_convertor.py, or in the model's code."""

_MLA = {
    "axk1", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots3_note",
    "glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "kimi_linear", "longcat_flash",
    "longcat_flash_ngram", "pangu_ultra_moe",
}  # fmt: skip
"""``model_type`` of decoders that vLLM 0.28.0 serves with latent attention
(transformers_utils/model_arch_config_convertor.py:311); others with such ranks get full caches."""

_KINDS: dict[str, Kind] = {
    "full_attention": "full", "attention": "full", "full": "full", "sliding_attention": "sliding",
    "chunked_attention": "full", "linear_attention": "recurrent", "kda": "recurrent",
}  # fmt: skip
"""Entries of ``layer_types``. Llama 4's chunked layers keep every token: vLLM 0.28.0 switches its
hybrid cache manager off for them (config/vllm.py:1728)."""

_LETTERS: dict[str, Kind] = {"L": "sliding", "G": "full"}
"""EXAONE's ``sliding_window_pattern``."""

_FOREIGN = (
    "compress_ratios", "block_configs", "attention_sink_size", "cross_attention_layers",
    "block_types", "num_mem_blocks", "mamba_d_ssm", "conv_L_cache", "hybrid_override_pattern",
    "layers_block_type", "attn_layer_indices", "attn_layer_period",
)  # fmt: skip
"""Keys of caches whose accounting in vLLM is not modelled: compressed ones, of layers with several
shapes (Nemotron's NAS models, Falcon-H1), of images, RecurrentGemma's, Zamba2's shared blocks,
LFM2's convolutions, and the Mamba layers of Nemotron-H, Bamba and Jamba."""

_STATES = ("linear_num_value_heads", "linear_attn_config")
"""Keys with which ``_recurrent_group`` knows the size of a state."""

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
    text = _with_defaults(decoder_config(config), config.get("model_type"))
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
    kinds, unknown = _layer_kinds(text, layers)
    recurrent = kinds.count("recurrent")
    try:
        states: tuple[RecurrentGroup, ...] = ()
        if recurrent:
            states = (_recurrent_group(text, recurrent, hidden),)
        if {"full", "sliding"}.isdisjoint(kinds):
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
        latent, tied = _latent_attention(text), config.get("tie_word_embeddings")
        without_experts = 0
        if experts:
            without_experts = sum(not _is_sparse(text, place) for place in range(layers))
        dense = _count(text, "intermediate_size_mlp") or _count(text, "intermediate_size")
        return Architecture(
            class_name=class_name(config),
            hidden_size=hidden,
            layers=layers,
            query_heads=heads,
            attention=_attention(text, kinds, latent, hidden, heads),
            vocab_size=number(text, "vocab_size"),
            intermediate_size=number(text, wide),
            max_positions=_count(text, "max_position_embeddings") or _DEFAULT_POSITIONS,
            tied_embeddings=bool(text.get("tie_word_embeddings") if tied is None else tied),
            experts=experts,
            experts_per_token=_count(text, "num_experts_per_tok") if experts else None,
            feed_forward_matrices=_matrices(text),
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
        for kind, count in Counter(kinds[: len(kinds) - shared]).items()
        if kind in ("full", "sliding")
    )


# What each layer keeps of the tokens before it. vLLM 0.28.0 decides it in the model's own code; the
# shapes of recurrent states are those of model_executor/layers/mamba/mamba_utils.py.


def _with_defaults(text: Config, model_type: object) -> dict[str, Any]:
    """The decoder's keys without null ones, by their usual names, with the defaults of its class.

    ``model_type`` is that of the whole model. A key that is null has no default. Of a number per
    layer, such as Gemma 3n's ``intermediate_size``, the largest counts.
    """
    stated = _usual_names(text)
    if stated.get("model_max_length"):  # vLLM prefers it (model_arch_config_convertor.py:418)
        stated["max_position_embeddings"] = stated["model_max_length"]
    table = architectures()
    kind = str(text.get("model_type") or model_type)
    kind = table["decoders"].get(kind, kind)
    defaults = _usual_names(table["defaults"].get(kind, {}))
    stated = {**defaults, **_DEFAULTS.get(kind, {}), **stated}
    stated = {key: value for key, value in stated.items() if value is not None}
    stated["model_type"] = str(text.get("model_type") or kind)
    if kind in _UNGATED and type(hidden := stated.get("hidden_size")) is int:
        stated.setdefault("intermediate_size", 4 * hidden)
    for key in ("intermediate_size", "moe_intermediate_size", "num_experts", "num_experts_per_tok"):
        numbers = stated.get(key)
        if isinstance(numbers, list) and numbers and all(type(each) is int for each in numbers):
            stated[key] = max(numbers)
    return stated


def _usual_names(config: Config) -> dict[str, Any]:
    """The keys, those of ``_SYNONYMS`` also by their usual names."""
    usual = {
        key: config[name]
        for key, names in _SYNONYMS.items()
        for name in reversed((key, *names))
        if config.get(name) is not None
    }
    return {**config, **usual}


def _layer_kinds(text: Config, layers: int) -> tuple[list[Kind], str]:
    """The kind of each of ``layers`` layers, and what of them is not known in vLLM's accounting, if
    anything. ``text`` comes from ``_with_defaults``."""
    foreign = [key for key in _FOREIGN if text.get(key)]
    named = _read_layer_names(text, layers)
    kinds = (
        _kinds_by_pattern(text, layers) if named is None else [_read_kind(name) for name in named]
    )
    foreign += sorted({name for name in named or () if _read_kind(name) == "unknown"})
    if "recurrent" in kinds and not any(text.get(key) for key in _STATES):
        kinds = ["unknown" if kind == "recurrent" else kind for kind in kinds]
        foreign.append("recurrent layers without their sizes")
    # A layer of an unknown kind counts as full attention, the largest cache.
    return ["full" if k == "unknown" else k for k in kinds], ", ".join(foreign)


def _read_kind(name: str) -> Kind:
    """The kind of a layer by its entry in a list; sparse attention keeps every token."""
    if "sliding" in name:
        return "sliding"
    return _KINDS.get(name, "full" if "sparse" in name else "unknown")


def _read_layer_names(text: Config, layers: int) -> list[str] | None:
    """The names of a list with one entry per layer; ``None`` without such a list."""
    if isinstance(text.get("layer_types"), list):
        return [str(kind) for kind in text["layer_types"][:layers]]
    flags = text.get("attn_type_list")
    if isinstance(flags, list) and len(flags) >= layers:
        return ["full_attention" if flag else "linear_attention" for flag in flags[:layers]]
    return None


def _kinds_by_pattern(text: Config, layers: int) -> list[Kind]:
    places = range(layers)
    linear = text.get("linear_attn_config")
    full = linear.get("full_attn_layers") if isinstance(linear, Mapping) else None
    if isinstance(full, list):  # Kimi Linear counts from 1
        return ["full" if place + 1 in full else "recurrent" for place in places]
    every = text.get("full_attention_interval")
    if type(every) is int and every > 0:
        return ["recurrent" if (place + 1) % every else "full" for place in places]
    return _kinds_by_window(text, layers)


def _kinds_by_window(text: Config, layers: int) -> list[Kind]:
    """Full and sliding layers, where no list names them."""
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return ["full"] * layers
    pattern = text.get("sliding_window_pattern", text.get("_sliding_window_pattern"))
    if isinstance(pattern, str) and pattern:
        return [_LETTERS.get(pattern[place % len(pattern)], "full") for place in range(layers)]
    if type(pattern) is int and pattern > 0:
        return ["sliding" if (place + 1) % pattern else "full" for place in range(layers)]
    first = text.get("max_window_layers", 0) if text.get("use_sliding_window") else 0
    first = first if type(first) is int else 0
    return ["sliding" if place >= first else "full" for place in range(layers)]


def _latent_attention(text: Config) -> LatentAttention | None:
    if not text.get("kv_lora_rank"):
        return None
    # The defaults are those of DeepSeek-V2 and V3 in transformers.
    return LatentAttention(
        kv_rank=number(text, "kv_lora_rank"),
        nope_dim=_count(text, "qk_nope_head_dim") or 128,
        rope_dim=_count(text, "qk_rope_head_dim") or 64,
        value_dim=_count(text, "v_head_dim") or 128,
        query_rank=_count(text, "q_lora_rank"),
        indexer_dim=_count(text, "index_head_dim"),
        cached=str(text.get("model_type")) in _MLA,
    )


def _recurrent_group(text: Config, layers: int, hidden: int) -> RecurrentGroup:
    if text.get("linear_num_value_heads"):  # gated_delta_net_state_shape
        keys, values = number(text, "linear_num_key_heads"), number(text, "linear_num_value_heads")
        key_dim, inner = number(text, "linear_key_head_dim"), values
        inner *= number(text, "linear_value_head_dim")
        channels = 2 * keys * key_dim + inner
        return RecurrentGroup(
            layers=layers, channels=channels, kernel=number(text, "linear_conv_kernel_dim"),
            values=inner * key_dim, divided=(keys, values),
            value_bytes=4 if text.get("mamba_ssm_dtype") == "float32" else 2,
            parameters=hidden * (channels + 2 * inner + 2 * values),
        )  # fmt: skip
    kda = text["linear_attn_config"]  # kda_state_shape
    if not isinstance(kda, Mapping):
        raise _damaged(f"linear_attn_config is {ascii(kda)[:80]}, not an object")
    heads, width = number(kda, "num_heads"), number(kda, "head_dim")
    return RecurrentGroup(
        layers=layers, channels=3 * heads * width, kernel=number(kda, "short_conv_kernel_size"),
        values=heads * width * width, value_bytes=4, divided=(heads,),
        parameters=hidden * 4 * heads * width + 4 * hidden * width,
    )  # fmt: skip


_UNGATED = {
    "apertus", "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "opt", "phi",
    "starcoder2",
}  # fmt: skip
"""``model_type`` of decoders whose feed-forward blocks have two matrices."""


def _matrices(text: Config) -> Literal[2, 3]:
    """The matrices of a feed-forward block: with a gate three."""
    squared = "relu2" in (text.get("mlp_hidden_act"), text.get("hidden_act"))
    return 2 if squared or text.get("model_type") in _UNGATED else 3


def _is_sparse(text: Config, place: int) -> bool:
    """Whether the layer at ``place`` has experts, in the notation of its family."""
    named, listed = text.get("mlp_layer_types"), text.get("moe_layers")
    if isinstance(named, list) and place < len(named):
        return str(named[place]) != "dense"
    if isinstance(listed, list) and listed:
        return place in listed
    frequency = text.get("moe_layer_freq")
    if isinstance(frequency, list) and place < len(frequency):
        return bool(frequency[place])
    first = text.get("first_k_dense_replace", text.get("moe_layer_start_index", 0))
    if place < (first if type(first) is int else 0):
        return False
    only = text.get("mlp_only_layers")
    if isinstance(only, list) and place in only:
        return False
    for key, shift in (
        ("decoder_sparse_step", 1), ("interleave_moe_layer_step", 1), ("moe_layer_freq", 0),
    ):  # fmt: skip
        step = text.get(key)
        if type(step) is int and step > 1 and (place + shift) % step:
            return False
    return True


def quantized_weights(settings: Config) -> QuantizedWeights | None:
    """Bytes and blocks of quantized projections by a ``quantization_config`` that states them;
    ``None`` for formats of fixed size (MXFP4, NVFP4) and where the bits are not stated."""
    method = str(settings.get("quant_method", "")).lower()
    skipped = settings.get("modules_to_not_convert") or settings.get("ignore")
    # The list of unquantized modules may have the attention of every layer.
    attention = not isinstance(skipped, list) or not any(
        "self_attn" in str(name) and not any(c.isdigit() for c in str(name)) for name in skipped
    )
    block = settings.get("weight_block_size")
    if method == "compressed-tensors":
        return _compressed_weights(settings, attention)
    if method in ("fp8", "fbgemm_fp8"):
        return _block_weights(block, attention)
    if method == "bitsandbytes":
        four = settings.get("load_in_4bit") or settings.get("_load_in_4bit")
        return QuantizedWeights(element_bytes=0.5 + 4 / 64 if four else 1.0)
    bits = settings.get("bits", settings.get("w_bit"))
    if type(bits) is int and bits in (2, 3, 4, 8) and method != "mxfp4":
        group = settings.get("group_size", settings.get("q_group_size"))
        return _group_weights(bits, group, attention)
    return None


def _block_weights(block: object, attention: bool) -> QuantizedWeights | None:
    """Bytes of 8 bits with a float32 scale for each block of outputs and inputs."""
    if not isinstance(block, list) or len(block) != 2:
        return None
    rows, columns = block
    if not all(type(size) is int and size > 0 for size in block):
        return None
    size = 1 + 4 / (rows * columns)
    return QuantizedWeights(
        element_bytes=size, block_rows=rows, block_columns=columns, attention=attention
    )


def _group_weights(bits: int, group: object, attention: bool) -> QuantizedWeights:
    """A 16-bit scale and a zero point for each group of inputs."""
    group = group if type(group) is int and group > 0 else None
    around = (2 + bits / 8) / group if group else 0.0
    return QuantizedWeights(
        element_bytes=bits / 8 + around, block_columns=group, attention=attention
    )


def _compressed_weights(settings: Config, attention: bool) -> QuantizedWeights | None:
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping) or weights.get("num_bits") not in (2, 3, 4, 8):
            continue
        blocks = _block_weights(weights.get("block_structure"), attention)
        if blocks:
            return blocks
        if weights.get("type") != "float":
            grouped = _group_weights(weights["num_bits"], weights.get("group_size"), attention)
            whole = weights.get("actorder") != "group"
            return grouped.model_copy(update={"whole_groups": whole})
    return None


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
    sizes = list_head_sizes(shape, gpus)
    return [s for s in sizes if division_problem(shape, s, expert_parallel) is None] or sizes[:1]


def list_head_sizes(shape: Architecture, gpus: int) -> list[int]:
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
