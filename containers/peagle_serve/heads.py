"""What a draft head's config.json and the shapes of its weights say, as vLLM reads them.

A config has one of two layouts: that of EAGLE-3 and P-EAGLE checkpoints, and that of the
speculators library, which describes the layers under ``transformer_layer_config``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from peagle_serve.checkpoint import MOST_LAYERS, largest_value

AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
MASK = "mask_hidden"
"""The tensor for the masked slots, without which vLLM loads no parallel-drafting head."""
DEFAULT_AUXILIARY = 3
"""The number of hidden states for which vLLM builds a head whose config does not say."""

PLACEHOLDERS = ("ptd_token_id", "pard_token", "mask_token_id")
"""Keys under which the config of an EAGLE head keeps the token for the masked slots."""
VLLM_PLACEHOLDERS = (
    "dflash_config.mask_token_id",
    "mask_token_id",
    "dspark_noise_token_id",
    "pard_token",
    "ptd_token_id",
)
"""Keys (dotted: nested) that vLLM 0.28.0 reads for that token, in its order
(v1/spec_decode/llm_base_proposer.py). Older versions read fewer, in another order."""

_SPECULATORS = ("speculators_model_type", "speculators_config")
_HEAD_KEYS = (*_SPECULATORS, "eagle_config", AUX_LAYERS)
"""Keys that only the config of a head has."""
_HEAD_CLASS = re.compile(r"eagle3|p_?eagle", re.IGNORECASE)
_OWN_TENSOR = re.compile(rf"(?:^|\.)(?:fc|midlayer|d2t|t2d)(?:\.|$)|{MASK}")
"""Tensors that only a head has; some heads name the class of a plain model in their config."""
_LAYER = re.compile(r"(?:^|\.)(?:layers\.(\d{1,9})|midlayer)\.")

_KNOWN_LAYERS = ("llama", "qwen3")
"""Model types whose layer names in vLLM are known here (llama_eagle3.py, qwen3_eagle3.py)."""

_LAYERS_OF_CLASS = {
    "Eagle3Qwen3ForCausalLM": "qwen3",
    **dict.fromkeys(
        ("Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3MiniMaxM2ForCausalLM",
         "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM"), "llama"),
}  # fmt: skip
"""Class of a head in vLLM's own format -> the kind of its layers (vLLM 0.28.0, registry.py)."""
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")

MIXED_FILES = "copy the head again: config.json and weights are from different heads"
"""The fix for a head whose tensors are not those that its config describes."""


class HeadConfig(NamedTuple):
    """The config of a head. ``None``: the key is absent or invalid, and vLLM takes a default.

    ``model_type`` is the kind of its layers: in vLLM's own format the class decides it.
    ``speculators`` is its type in the speculators format (``eagle3``, ``peagle``), ``None`` in
    vLLM's own. ``target_hidden_size`` defaults to ``hidden_size``. ``auxiliary_layers`` are the
    target's layers whose hidden states it reads; ``built_for`` is the number of hidden states for
    which vLLM builds ``fc``, from another key. ``windows`` has the sliding window of each layer
    (``None``: full attention); ``window_problem`` is why vLLM does not start with them. ``biases``
    are the projections that have one in vLLM (``q_proj``, ...). ``invalid`` maps keys with unusable
    values to a message about them.
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
    kv_heads: int | None
    head_dim: int | None
    biases: tuple[str, ...]
    windows: tuple[int | None, ...]
    window_problem: str
    norm_before_fc: bool
    fc_norm: bool
    quantized: bool
    invalid: Mapping[str, str]

    @property
    def speculators_format(self) -> bool:
        """Whether the config is nested as the speculators library writes it."""
        return self.speculators is not None


def read_head(config: Mapping[str, Any]) -> HeadConfig:
    """The head that ``config`` describes; what is wrong with it is in ``invalid``."""
    invalid: dict[str, str] = {}
    nested = config.get("transformer_layer_config") or config
    if not isinstance(nested, Mapping):
        invalid["transformer_layer_config"] = "transformer_layer_config is not an object"
    inner: Mapping[str, Any] = nested if isinstance(nested, Mapping) else {}
    eagle_config = inner.get("eagle_config")
    eagle: Mapping[str, Any] = eagle_config if isinstance(eagle_config, Mapping) else {}

    def number(key: str, holder: Mapping[str, Any] = inner) -> int | None:
        value = holder.get(key)
        if value is None or (type(value) is int and 0 < value <= largest_value(key)):
            return value
        expected = f"a positive whole number of at most {largest_value(key):,}"
        invalid[key] = f"{key} is {ascii(value)[:80]}, not {expected}"
        return None

    def layers(holder: Mapping[str, Any]) -> tuple[int, ...] | None:
        value = holder.get(AUX_LAYERS)
        value = [] if value is None else value
        is_list = isinstance(value, list) and len(value) <= MOST_LAYERS
        if is_list and all(type(layer) is int for layer in value):
            return tuple(value) or None  # vLLM ignores an empty list too
        invalid[AUX_LAYERS] = f"{AUX_LAYERS} is {ascii(value)[:80]}, not a list of whole numbers"
        return None

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    kind = config.get("speculators_model_type")
    outer = inner if kind is None else config
    model_type = str(inner.get("model_type") or "llama")
    if kind is None:
        kinds = (_LAYERS_OF_CLASS.get(vllm_class(name)) for name in classes_of(config))
        model_type = next(filter(None, kinds), model_type)
    nested_layers, count = layers(eagle), number("num_hidden_layers")
    listed = layers(config) or layers(inner)
    # Llama's class counts the nested list only (llama_eagle3.py), Qwen3's the one that is read.
    counted = listed or nested_layers if model_type == "qwen3" else nested_layers
    features = number("num_aux_layers") if model_type == "qwen3" else None
    states = number("num_aux_hidden_states")
    made_for = number("target_hidden_size", config) or number("target_hidden_size")
    windows, problem = _windows(inner, model_type, count or 0, kind is not None)
    return HeadConfig(
        classes=classes_of(config),
        model_type=model_type,
        speculators=None if kind is None else str(kind),
        parallel_drafting=kind == "peagle" or _has_any(config, PLACEHOLDERS),
        target_hidden_size=made_for or hidden,
        hidden_size=hidden,
        vocab_size=number("vocab_size"),
        draft_vocab_size=number("draft_vocab_size", config),
        auxiliary_layers=listed or nested_layers,
        built_for=features or states or len(counted or ()) or DEFAULT_AUXILIARY,
        uses_auxiliary=eagle.get("use_aux_hidden_state") is not False,
        max_positions=number("max_position_embeddings"),
        layers=count,
        intermediate_size=number("intermediate_size"),
        query_heads=heads,
        kv_heads=number("num_key_value_heads") or heads,
        head_dim=number("head_dim") or (hidden // heads if hidden and heads else None) or None,
        biases=_biases(inner, model_type),
        windows=windows,
        window_problem=problem,
        norm_before_fc=bool(eagle.get("norm_before_fc", outer.get("norm_before_fc"))),
        # vLLM does not pass this key on for P-EAGLE (speculators/algos.py, update_peagle).
        fc_norm=bool((inner if kind == "peagle" else outer).get("fc_norm")),
        quantized=any(isinstance(holder.get("quantization_config"), Mapping)
                      for holder in (config, inner)),
        invalid=invalid,
    )  # fmt: skip


def _biases(layer: Mapping[str, Any], model_type: str) -> tuple[str, ...]:
    """The projections with a bias in vLLM's layers; for Qwen3 ``o_proj`` and the feed-forward
    block never have one (vLLM 0.28.0, llama.py:266 and 303, qwen3.py:117)."""
    attention = ("q_proj", "k_proj", "v_proj") if layer.get("attention_bias") else ()
    if model_type == "qwen3":
        return attention
    output = ("o_proj",) if layer.get("attention_bias") or layer.get("bias") else ()
    return attention + output + (_FEED_FORWARD if layer.get("mlp_bias") else ())


def _windows(
    layer: Mapping[str, Any], model_type: str, count: int, speculators: bool
) -> tuple[tuple[int | None, ...], str]:
    """The sliding window of each of ``count`` layers, and why vLLM does not start with them: it
    reads layer_types (0.28.0, llama.py:184, qwen3_eagle3.py:46), whose length transformers checks.
    """
    full = (None,) * min(count, MOST_LAYERS)
    kinds, window = layer.get("layer_types"), layer.get("sliding_window")
    if not isinstance(kinds, list):
        return full, ""
    if len(kinds) != count:
        return full, f"layer_types has {len(kinds)} entries for {count} layers"
    if "sliding_attention" not in kinds:
        return full, ""
    is_qwen = model_type == "qwen3"
    if not is_qwen and "sliding_window" not in layer:
        return full, "layer_types has sliding_attention, but there is no sliding_window"
    if is_qwen and not speculators and not layer.get("use_sliding_window"):
        return full, ""  # transformers' Qwen3Config drops the window
    size = window if type(window) is int and window > 0 else None
    return tuple(size if kind == "sliding_attention" else None for kind in kinds), ""


def vllm_class(name: str) -> str:
    """The class that vLLM looks up for a head in its own format with this architecture
    (transformers_utils/configs/eagle.py)."""
    is_eagle3 = name.startswith("Eagle3") or name.endswith("Eagle3")
    return name if is_eagle3 else f"Eagle3{name}"


def is_head(config: Mapping[str, Any]) -> bool:
    """Whether this is the config.json of an EAGLE-3 or P-EAGLE head, not of a model."""
    has_key = _has_any(config, (*_HEAD_KEYS, *PLACEHOLDERS))
    return has_key or any(map(_HEAD_CLASS.search, classes_of(config)))


def _has_any(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    return any(config.get(name) is not None for name in names)


def default_layers(count: int) -> tuple[int, int, int]:
    """The layers that vLLM reads of a target with ``count`` layers when a head lists none."""
    return (2, count // 2, count - 3)


def classes_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """``architectures``; empty unless that is a list."""
    names = config.get("architectures")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def layer_of(name: str) -> int | None:
    """The number of the layer that the tensor of this name belongs to."""
    match = _LAYER.search(name)
    return int(match[1] or 0) if match else None


def has_mask(tensors: Iterable[str]) -> bool:
    """Whether the tensor for the masked slots is among these names."""
    return any(MASK in name for name in tensors)


def placeholder(config: Mapping[str, Any], names: Iterable[str]) -> tuple[str, Any] | None:
    """The first of these keys (dotted: nested) that has a value, and the value."""
    for name in names:
        value: Any = config
        for step in name.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            return name, value
    return None


class HeadFiles:
    """A head's ``config`` and the shapes of its ``tensors`` (empty: they were not readable)."""

    def __init__(self, document: Mapping[str, Any], tensors: Mapping[str, Sequence[int]]) -> None:
        self.config = read_head(document)
        self.tensors = tensors
        self._document = document

    def may_be_head(self) -> bool:
        """Whether anything shows that this is a draft head; true where weights are unreadable."""
        if not self.tensors or any(_OWN_TENSOR.search(name) for name in self.tensors):
            return True
        has_key = _has_any(self._document, (*_HEAD_KEYS, "draft_vocab_size"))
        return (
            has_key
            or self.placeholder() is not None
            or any("eagle" in name.lower() for name in self.config.classes)
        )

    def placeholder(self) -> tuple[str, Any] | None:
        """The key that vLLM reads for the token of the masked slots, and its value."""
        nested = _has_any(self._document, _SPECULATORS)
        return placeholder(self._document, ("mask_token_id",) if nested else VLLM_PLACEHOLDERS)

    def is_parallel(self) -> bool:
        """Whether it drafts in parallel: it has a state for the masked slots; where its weights
        are unreadable, by its config."""
        if self.tensors:
            return has_mask(self.tensors)
        return self.config.speculators == "peagle" or self._document.get("ptd_token_id") is not None

    def auxiliary_layers(self, count: int) -> tuple[int, ...]:
        """The layers that it reads of a target with ``count`` layers: listed, or vLLM's default."""
        return self.config.auxiliary_layers or default_layers(count)

    def holding(self, *parts: str) -> Sequence[int] | None:
        """The shape of the first tensor that has one of ``parts`` in its name."""
        named = (name for part in parts for name in self.tensors if part in name)
        return self.tensors.get(next(named, ""))

    def tensor(self, name: str) -> Sequence[int] | None:
        """The shape of the tensor of that name, under any prefix."""
        named = (full for full in self.tensors if f".{full}".endswith(f".{name}"))
        return self.tensors.get(next(named, ""))

    def layer_tensors(self) -> dict[int, set[str]]:
        """Layer -> names of its tensors; empty for layers whose names are unknown here."""
        layers: dict[int, set[str]] = {}
        is_readable = not self.config.quantized and self.config.model_type in _KNOWN_LAYERS
        for name in self.tensors if is_readable else ():
            if match := _LAYER.search(name):
                layers.setdefault(int(match[1] or 0), set()).add(name[match.end() :])
        return layers
