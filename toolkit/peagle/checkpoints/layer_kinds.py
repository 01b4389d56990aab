"""What each layer of a decoder keeps of the tokens before it, from its config.json.

vLLM 0.28.0 decides it in the model's own code; the shapes of recurrent states are those of
``model_executor/layers/mamba/mamba_utils.py``. Public files leave out what the config class of the
model has as its default; ``with_defaults`` adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from peagle.catalog.schema import LatentAttention, QuantizedWeights, RecurrentGroup
from peagle.vllm.facts import architectures
from peagle_serve.checkpoint import PER_LAYER

Config = Mapping[str, Any]
Kind = Literal["full", "sliding", "recurrent", "both", "none", "unknown"]
Number = Callable[[Config, str], int]

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
    "chunked_attention": "full", "linear_attention": "recurrent", "mamba": "recurrent",
    "mamba2": "recurrent", "conv": "recurrent", "kda": "recurrent", "hybrid": "both",
    "mlp": "none", "moe": "none",
}  # fmt: skip
"""Entries of ``layer_types``. Llama 4's chunked layers keep every token: vLLM 0.28.0 switches its
hybrid cache manager off for them (config/vllm.py:1728)."""

_LETTERS: dict[str, Kind] = {
    "M": "recurrent", "*": "full", "-": "none", "E": "none", "L": "sliding", "G": "full",
}  # fmt: skip
"""Nemotron-H's ``hybrid_override_pattern`` and EXAONE's ``sliding_window_pattern``."""

_FOREIGN = (
    "compress_ratios", "block_configs", "attention_sink_size", "cross_attention_layers",
    "block_types", "num_mem_blocks",
)  # fmt: skip
"""Keys of caches whose accounting in vLLM is not modelled: compressed ones, of layers with several
shapes (Nemotron's NAS models), of images, RecurrentGemma's, and Zamba2's shared blocks."""

_STATE_SIZES = ("mamba_d_state", "ssm_state_size", "state_size")
_STATES = ("linear_num_value_heads", "linear_attn_config", "conv_L_cache", "attn_type_list",
           *_STATE_SIZES)  # fmt: skip
"""Keys with which ``recurrent_group`` knows the size of a state."""


def with_defaults(text: Config, model_type: object) -> dict[str, Any]:
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
    for key in PER_LAYER - {"sliding_window"}:
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


def layer_kinds(text: Config, layers: int) -> tuple[list[Kind], str]:
    """The kind of each of ``layers`` layers, and what of them is not known in vLLM's accounting, if
    anything. ``text`` comes from ``with_defaults``."""
    foreign = [key for key in _FOREIGN if text.get(key)]
    named = _named(text, layers)
    kinds = _by_pattern(text, layers) if named is None else [_kind_of(name) for name in named]
    foreign += sorted({name for name in named or () if _kind_of(name) == "unknown"})
    if {"recurrent", "both"} & set(kinds) and not any(text.get(key) for key in _STATES):
        kinds = ["unknown" if kind in ("recurrent", "both") else kind for kind in kinds]
        foreign.append("recurrent layers without their sizes")
    # A layer of an unknown kind counts as full attention, the largest cache.
    return ["full" if k == "unknown" else k for k in kinds], ", ".join(foreign)


def _kind_of(name: str) -> Kind:
    """The kind of a layer by its entry in a list; sparse attention keeps every token."""
    if "sliding" in name:
        return "sliding"
    return _KINDS.get(name, "full" if "sparse" in name else "unknown")


def _named(text: Config, layers: int) -> list[str] | None:
    """The names of a list with one entry per layer; ``None`` without such a list."""
    for key in ("layer_types", "layers_block_type"):
        if isinstance(text.get(key), list) and len(text[key]) >= layers:
            return [str(kind) for kind in text[key][:layers]]
    flags = text.get("attn_type_list")
    if isinstance(flags, list) and len(flags) >= layers:
        return ["full_attention" if flag else "linear_attention" for flag in flags[:layers]]
    return None


def _by_pattern(text: Config, layers: int) -> list[Kind]:
    places = range(layers)
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) >= layers:
        return [_LETTERS.get(letter, "full") for letter in pattern[:layers]]
    if text.get("model_type") == "falcon_h1":
        return ["both"] * layers
    linear = text.get("linear_attn_config")
    full = linear.get("full_attn_layers") if isinstance(linear, Mapping) else None
    if isinstance(full, list):  # Kimi Linear counts from 1
        return ["full" if place + 1 in full else "recurrent" for place in places]
    listed = text.get("attn_layer_indices") or text.get("full_attn_idxs")
    if isinstance(listed, list):
        return ["full" if place in listed else "recurrent" for place in places]
    every, period = text.get("full_attention_interval"), text.get("attn_layer_period")
    if type(every) is int and every > 0:
        return ["recurrent" if (place + 1) % every else "full" for place in places]
    if type(period) is int and period > 0:
        offset = text.get("attn_layer_offset", 0)
        return ["full" if place % period == offset else "recurrent" for place in places]
    return _windows(text, layers)


def _windows(text: Config, layers: int) -> list[Kind]:
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


def latent_attention(text: Config, number: Number) -> LatentAttention | None:
    """The ranks and head sizes of latent attention; ``None`` where the decoder has another one.

    Raises what ``number`` raises for a value that is no size.
    """
    if not text.get("kv_lora_rank"):
        return None
    # The defaults are those of DeepSeek-V2 and V3 in transformers.
    return LatentAttention(
        kv_rank=number(text, "kv_lora_rank"),
        nope_dim=_number_or(128, text, number, "qk_nope_head_dim"),
        rope_dim=_number_or(64, text, number, "qk_rope_head_dim"),
        value_dim=_number_or(128, text, number, "v_head_dim"),
        query_rank=_number_or(0, text, number, "q_lora_rank") or None,
        indexer_dim=_number_or(0, text, number, "index_head_dim") or None,
        cached=str(text.get("model_type")) in _MLA,
    )


def _number_or(default: int, text: Config, number: Number, *keys: str) -> int:
    """The number under the first of ``keys`` that is stated and not 0, else ``default``."""
    key = next((key for key in keys if text.get(key)), None)
    return default if key is None else number(text, key)


def recurrent_group(text: Config, layers: int, hidden: int, number: Number) -> RecurrentGroup:
    """The state of ``layers`` recurrent layers. Raises what ``number`` raises for a missing key."""

    def first(*keys: str) -> int:
        return number(text, next((key for key in keys if text.get(key)), keys[0]))

    kda = text.get("linear_attn_config")
    # The file's type, else float32 for Nemotron-H, else the model's (models/config.py:638 and 781).
    default = "float32" if text.get("model_type") == "nemotron_h" else ""
    state = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype") or default
    wide = 4 if state == "float32" else 2
    if text.get("linear_num_value_heads"):  # gated_delta_net_state_shape
        keys, values = first("linear_num_key_heads"), first("linear_num_value_heads")
        key_dim, value_dim = first("linear_key_head_dim"), first("linear_value_head_dim")
        channels = 2 * keys * key_dim + values * value_dim
        inner = values * value_dim
        return RecurrentGroup(
            layers=layers, channels=channels, kernel=first("linear_conv_kernel_dim"),
            values=inner * key_dim, value_bytes=wide, divided=(keys, values), conv_of_drafts=True,
            parameters=hidden * (channels + 2 * inner + 2 * values),
        )  # fmt: skip
    if isinstance(kda, Mapping):  # kda_state_shape
        heads, width = number(kda, "num_heads"), number(kda, "head_dim")
        return RecurrentGroup(
            layers=layers, channels=3 * heads * width, kernel=number(kda, "short_conv_kernel_size"),
            values=heads * width * width, value_bytes=4, divided=(heads,), conv_of_drafts=True,
            parameters=hidden * 4 * heads * width + 4 * hidden * width,
        )  # fmt: skip
    if text.get("conv_L_cache"):  # short_conv_state_shape
        width = _number_or(hidden, text, number, "conv_dim")
        return RecurrentGroup(
            layers=layers, channels=width, kernel=first("conv_L_cache"), values=0,
            divided=(width,), parameters=4 * hidden * width,
        )  # fmt: skip
    if any(text.get(key) for key in _STATE_SIZES):
        return _mamba(text, layers, hidden, number, wide)
    heads = first("num_attention_heads")  # linear_attention_state_shape: Lightning and its kind
    width = _number_or(hidden // heads, text, number, "head_dim")
    return RecurrentGroup(
        layers=layers, channels=0, kernel=1, values=heads * width * width, value_bytes=wide,
        divided=(heads,), parameters=5 * hidden * heads * width,
    )  # fmt: skip


def _mamba(text: Config, layers: int, hidden: int, number: Number, wide: int) -> RecurrentGroup:
    """mamba1_state_shape (without heads) and mamba2_state_shape."""
    state = _number_or(0, text, number, *_STATE_SIZES)
    kernel = _number_or(4, text, number, "mamba_d_conv", "conv_kernel")
    expanded = _number_or(2, text, number, "mamba_expand", "expand") * hidden
    heads = _number_or(0, text, number, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
    if not heads:
        return RecurrentGroup(
            layers=layers, channels=expanded, kernel=kernel, values=expanded * state,
            value_bytes=wide, divided=(expanded,),
            parameters=3 * hidden * expanded + expanded * (2 * state + hidden // 8),
        )  # fmt: skip
    stated = {key: value for key, value in text.items() if value != "auto"}
    sizes = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")
    head_dim = _number_or(max(expanded // heads, 1), stated, number, *sizes)
    groups = _number_or(1, text, number, "mamba_n_groups", "n_groups", "mamba_ngroups")
    inner = heads * head_dim
    return RecurrentGroup(
        layers=layers, channels=inner, groups=groups, group_channels=2 * state, kernel=kernel,
        values=inner * state, value_bytes=wide,
        divided=(heads, groups) if groups > 1 else (heads,),
        conv_of_drafts=text.get("model_type") == "nemotron_h",
        parameters=hidden * (3 * inner + 2 * groups * state + heads),
    )  # fmt: skip


_UNGATED = {
    "apertus", "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "opt", "phi",
    "starcoder2",
}  # fmt: skip
"""``model_type`` of decoders whose feed-forward blocks have two matrices."""


def matrices(text: Config) -> Literal[2, 3]:
    """The matrices of a feed-forward block: with a gate three."""
    squared = "relu2" in (text.get("mlp_hidden_act"), text.get("hidden_act"))
    return 2 if squared or text.get("model_type") in _UNGATED else 3


def feed_forward(text: Config, layers: int, experts: bool) -> tuple[int, int]:
    """How many of ``layers`` layers have a feed-forward block, and how many of these no experts."""
    listed = text.get("hybrid_override_pattern") or text.get("layers_block_type")
    blocks = listed[:layers] if isinstance(listed, str | list) else ()
    dense = sum(block in ("-", "mlp") for block in blocks)
    sparse = sum(block in ("E", "moe") for block in blocks)
    if dense or sparse:
        return dense + sparse, dense if sparse else 0
    if not experts:
        return layers, 0
    return layers, sum(not _is_sparse(text, place) for place in range(layers))


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
    period = text.get("expert_layer_period")
    if type(period) is int and period > 1:
        return bool(place % period == text.get("expert_layer_offset", 0))
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
        return _of_block(block, attention)
    if method == "bitsandbytes":
        four = settings.get("load_in_4bit") or settings.get("_load_in_4bit")
        return QuantizedWeights(element_bytes=0.5 + 4 / 64 if four else 1.0)
    bits = settings.get("bits", settings.get("w_bit"))
    if type(bits) is int and bits in (2, 3, 4, 8) and method != "mxfp4":
        group = settings.get("group_size", settings.get("q_group_size"))
        return _grouped(bits, group, attention)
    return None


def _of_block(block: object, attention: bool) -> QuantizedWeights | None:
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


def _grouped(bits: int, group: object, attention: bool) -> QuantizedWeights:
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
        blocks = _of_block(weights.get("block_structure"), attention)
        if blocks:
            return blocks
        if weights.get("type") != "float":
            grouped = _grouped(weights["num_bits"], weights.get("group_size"), attention)
            whole = weights.get("actorder") != "group"
            return grouped.model_copy(update={"whole_groups": whole})
    return None
