"""What config.json says of a model: its architecture, as Hugging Face writes it and vLLM reads it,
and catalogue entries for the user's own models.

gpt_oss, qwen3, qwen3_moe, llama, gemma4 (nested under ``text_config``, with two kinds of heads) and
``speculators`` heads (nested under ``transformer_layer_config``) have tests of their own. Any other
decoder is read by the usual keys.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from peagle.catalog import pair_name
from peagle.catalog.schema import Architecture, AttentionGroup, Drafter, ProofPrompts, Target
from peagle.checkpoints.heads import attention_of, read_head, weight_bytes
from peagle.checkpoints.models import Checkpoint, split_revision
from peagle.errors import DamagedCheckpoint
from peagle.vllm.gpus import served_dtype
from peagle_serve.config_numbers import largest_value
from peagle_serve.heads import HeadConfig

Config = Mapping[str, Any]

_NESTED = ("text_config", "llm_config", "transformer_layer_config")
"""Keys of the decoder's config in the config of a larger model."""

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "top_k_experts")


def read_architecture(config: Config) -> Architecture:
    """The decoder that ``config`` describes.

    ``intermediate_size`` is that of one expert where there are experts. Raises DamagedCheckpoint,
    with the key, for a number that is missing or not a positive whole number.
    """
    text = decoder_config(config)
    hidden, layers = number(text, "hidden_size"), number(text, "num_hidden_layers")
    heads, experts = number(text, "num_attention_heads"), _first(text, _EXPERTS)
    if text.get("enable_moe_block") is False:
        experts = None
    mixture = bool(experts) and _count(text, "moe_intermediate_size") is not None
    try:
        return Architecture(
            class_name=class_name(config),
            hidden_size=hidden,
            layers=layers,
            query_heads=heads,
            attention=_attention(text, layers, hidden, heads),
            vocab_size=number(text, "vocab_size"),
            intermediate_size=number(
                text, "moe_intermediate_size" if mixture else "intermediate_size"
            ),
            max_positions=number(text, "max_position_embeddings"),
            tied_embeddings=_tied(config, text),
            experts=experts,
            experts_per_token=_first(text, _EXPERTS_PER_TOKEN) if experts else None,
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DamagedCheckpoint(f"config.json: {where}: {first['msg']}", _FIX) from error


_FIX = "compare config.json with that of the original model"


def decoder_config(config: Config) -> Config:
    """The part of ``config`` that describes the decoder: the whole, or a nested object."""
    for key in _NESTED:
        nested = config.get(key)
        if nested is None:
            continue
        if not isinstance(nested, Mapping):
            raise DamagedCheckpoint(f"config.json: {key} is {nested!r}, not an object", _FIX)
        return nested
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
    key = "quantization_config"
    settings = config.get(key) or decoder_config(config).get(key)
    if not isinstance(settings, Mapping):
        return None
    method = str(settings.get("quant_method", "unknown")).lower()
    if method == "compressed-tensors":
        return _compressed(settings)
    if method == "modelopt":
        algorithm = str(settings.get("quant_algo", "")).lower()
        return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(algorithm, "modelopt")
    return {"fbgemm_fp8": "fp8"}.get(method, method)


def number(config: Config, key: str) -> int:
    """The positive whole number under ``key``. Raises DamagedCheckpoint with key and value."""
    value = optional_number(config, key)
    if value is None:
        raise DamagedCheckpoint(f"config.json has no {key}", _FIX)
    return value


def optional_number(config: Config, key: str) -> int | None:
    """Like ``number``, but ``None`` for a key that is missing or null."""
    value = config.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= largest_value(key):
        expected = f"a positive whole number of at most {largest_value(key):,}"
        raise DamagedCheckpoint(f"config.json: {key} is {ascii(value)[:80]}, not {expected}", _FIX)
    return value


def _count(config: Config, key: str) -> int | None:
    """Like ``optional_number``; 0 is ``None``: configs write it for parts that they lack."""
    return None if config.get(key) == 0 else optional_number(config, key)


def _compressed(settings: Config) -> str:
    """compressed-tensors: 8-bit floats are ``fp8``, 4-bit ones ``nvfp4`` or ``mxfp4``."""
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and weights.get("type") == "float":
            if weights.get("num_bits") == 8:
                return "fp8"
            return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
    return "compressed-tensors"


def _first(text: Config, keys: tuple[str, ...]) -> int | None:
    return next((found for key in keys if (found := _count(text, key))), None)


def _tied(config: Config, text: Config) -> bool:
    """Gemma ties its matrices by default; other configs have a key."""
    default = str(text.get("model_type", "")).startswith("gemma")
    return bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", default)))


def _attention(text: Config, layers: int, hidden: int, heads: int) -> tuple[AttentionGroup, ...]:
    """Layers grouped by their KV cache; layers that share another layer's cache are left out."""
    width = optional_number(text, "head_dim") or hidden // heads
    kv_heads = optional_number(text, "num_key_value_heads") or heads
    shared = _count(text, "num_kv_shared_layers") or 0
    kinds = _layer_kinds(text, layers)[: layers - shared]
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
        for kind, count in Counter(kinds).items()
    )


def _layer_kinds(text: Config, layers: int) -> list[str]:
    """``full`` or ``sliding`` for each layer, from ``layer_types`` or from the older keys."""
    types = text.get("layer_types")
    if types is None:
        return _older_kinds(text, layers)
    if not isinstance(types, list) or len(types) != layers:
        found = len(types) if isinstance(types, list) else repr(types)
        raise DamagedCheckpoint(
            f"config.json: layer_types has {found} entries and num_hidden_layers is {layers}", _FIX
        )
    return ["sliding" if "sliding" in str(kind) else "full" for kind in types]


def _older_kinds(text: Config, layers: int) -> list[str]:
    window = text.get("sliding_window")
    if not window or text.get("use_sliding_window") is False:
        return ["full"] * layers
    if text.get("model_type") == "gpt_oss":
        return ["full" if layer % 2 else "sliding" for layer in range(layers)]
    pattern = optional_number(text, "sliding_window_pattern")
    if pattern:
        return ["sliding" if (layer + 1) % pattern else "full" for layer in range(layers)]
    first = text.get("max_window_layers", 0) if text.get("use_sliding_window") else 0
    first = first if type(first) is int else 0
    return ["sliding" if layer >= first else "full" for layer in range(layers)]


OWN = "own"
"""The name of a head, or of a target, that is not in the catalogue."""

_UNKNOWN_HEAD_K = 5
"""K for a head of which only the checkpoint is known: P-EAGLE's model cards have 5 and more."""

_OLDEST = "0.1.0"
"""``min_vllm`` of a model that is not in the catalogue: the version rules know what it needs."""

_DTYPES = ("bfloat16", "float16", "float32")
_QUANTIZATIONS = ("mxfp4", "fp8", "nvfp4")


def own_drafter(location: str, target: Target, kind: Drafter, read: Checkpoint | None) -> Drafter:
    """The user's own head at ``location`` as a drafter like ``kind``.

    If its checkpoint was read, it determines sizes and whether the head drafts in parallel; other
    values are those of ``kind``. A ``kind`` that is not public describes this head itself. Only a
    head that is known to be a copy of the catalogue's has a licence. Raises CheckpointError.
    """
    weights, revision = split_revision(location)
    own: dict[str, Any] = {
        "title": f"your own head {location}",
        "public": True,
        "weights": weights,
        "revision": revision,
        "licence": None,
        "fallback": None,
    }
    unknown = {"name": OWN, "k_trained": None, "published": ()}
    if kind.public:
        own |= unknown
    if read is not None:
        head = read_head(read.config)
        if head.parallel_drafting != kind.parallel_drafting:
            own |= unknown
            alike = (one for one in target.drafters if one.method == kind.method)
            same = (one for one in alike if one.parallel_drafting == head.parallel_drafting)
            kind = next(same, kind)
        stored = sum(tensor.size for tensor in (read.tensors or {}).values())
        own |= _read_values(head) | {
            "weight_bytes": stored or weight_bytes(head) or kind.weight_bytes,
            "attention": attention_of(head) or kind.attention,
        }
    if read is not None and read.pair == pair_name(target, kind):
        own["licence"] = kind.licence
    return kind.model_copy(update=own | {"source": f"{kind.title} ({kind.source})"})


def drafter_from_checkpoint(read: Checkpoint) -> Drafter:
    """A head known only from its checkpoint. Raises CheckpointError."""
    head = read_head(read.config)
    return Drafter(
        name=OWN,
        title=f"the head {read.location}",
        method="eagle3",
        min_vllm=_OLDEST,
        k_recommended=_UNKNOWN_HEAD_K,
        source=read.location,
        attention=attention_of(head),
        **_read_values(head),
    )


def _read_values(head: HeadConfig) -> dict[str, Any]:
    return {
        "parallel_drafting": head.parallel_drafting,
        "format": "speculators" if head.speculators_format else "vllm",
        "hidden_layers": head.layers,
        "max_positions": head.max_positions,
    }


def target_from_checkpoint(read: Checkpoint) -> Target:
    """A target known only from its checkpoint. Raises CheckpointError."""
    shape, dtype = read_architecture(read.config), read_dtype(read.config)
    quantization = read_quantization(read.config)
    name = re.sub(r"[^A-Za-z0-9]+", "-", read.location).strip("-") or "target"
    return Target(
        id=f"{OWN}/{name}",
        short_name=OWN,
        title=read.location,
        weights=read.location,
        revision="main",
        licence="",
        weight_bytes=sum(tensor.size for tensor in (read.tensors or {}).values()) or 1,
        parameters=1,
        dtype=dtype if dtype in _DTYPES else "bfloat16",  # type: ignore[arg-type]
        quantization=quantization if quantization in _QUANTIZATIONS else None,  # type: ignore[arg-type]
        min_vllm=_OLDEST,
        default_max_model_len=shape.max_positions,
        architecture=shape,
        default_drafter=OWN,
        drafters=(),
        proof=ProofPrompts(prompts=("",)),
        source=read.location,
    )
