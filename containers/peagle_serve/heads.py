"""What a draft head's config.json and the shapes of its weights say, as vLLM reads them; and
whether the head fits its target, as facts: a code and values.

A config has one of two layouts: that of EAGLE-3 and P-EAGLE checkpoints, and that of the
speculators library, which describes the layers under ``transformer_layer_config``. The container
refuses the first problem; ``peagle check`` has a rule of each code, which knows the fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from peagle_serve.checkpoint import MOST_LAYERS, Tensor, largest_value

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
    are the projections that have one in vLLM (``q_proj``, ...). ``invalid`` says what is wrong with
    the list of layers.
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
    invalid: str

    @property
    def speculators_format(self) -> bool:
        """Whether the config is nested as the speculators library writes it."""
        return self.speculators is not None


def read_head(config: Mapping[str, Any]) -> HeadConfig:
    """The head that ``config`` describes. A number that vLLM could not use is read as absent."""
    invalid = ""
    nested = config.get("transformer_layer_config") or config
    inner: Mapping[str, Any] = nested if isinstance(nested, Mapping) else {}
    eagle_config = inner.get("eagle_config")
    eagle: Mapping[str, Any] = eagle_config if isinstance(eagle_config, Mapping) else {}

    def number(key: str, holder: Mapping[str, Any] = inner) -> int | None:
        value = holder.get(key)
        return value if type(value) is int and 0 < value <= largest_value(key) else None

    def layers(holder: Mapping[str, Any]) -> tuple[int, ...] | None:
        nonlocal invalid
        value = holder.get(AUX_LAYERS) or []
        is_list = isinstance(value, list) and len(value) <= MOST_LAYERS
        if is_list and all(type(layer) is int for layer in value):
            return tuple(value) or None  # vLLM ignores an empty list too
        invalid = f"{AUX_LAYERS} is {ascii(value)[:80]}, not a list of whole numbers"
        return None

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    kind = config.get("speculators_model_type")
    outer = inner if kind is None else config
    model_type = str(inner.get("model_type") or "llama")
    if kind is None:
        kinds = (_LAYERS_OF_CLASS.get(vllm_class(name)) for name in read_classes(config))
        model_type = next(filter(None, kinds), model_type)
    is_qwen = model_type == "qwen3"
    nested_layers, count = layers(eagle), number("num_hidden_layers")
    listed = layers(config) or layers(inner)
    # Llama's class counts the nested list only (llama_eagle3.py), Qwen3's the one that is read.
    counted = listed or nested_layers if is_qwen else nested_layers
    features = number("num_aux_layers") if is_qwen else None
    states = number("num_aux_hidden_states")
    made_for = number("target_hidden_size", config) or number("target_hidden_size")
    # For Qwen3, o_proj and the feed-forward block never have a bias (vLLM 0.28.0, llama.py:266 and
    # 303, qwen3.py:117).
    biases: tuple[str, ...] = ("q_proj", "k_proj", "v_proj") if inner.get("attention_bias") else ()
    if not is_qwen:
        biases += ("o_proj",) if inner.get("attention_bias") or inner.get("bias") else ()
        biases += _FEED_FORWARD if inner.get("mlp_bias") else ()
    windows, problem = _windows(inner, model_type, count or 0, kind is not None)
    return HeadConfig(
        classes=read_classes(config),
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
        biases=biases,
        windows=windows,
        window_problem=problem,
        norm_before_fc=bool(eagle.get("norm_before_fc", outer.get("norm_before_fc"))),
        # vLLM does not pass this key on for P-EAGLE (speculators/algos.py, update_peagle).
        fc_norm=bool((inner if kind == "peagle" else outer).get("fc_norm")),
        quantized=any(isinstance(holder.get("quantization_config"), Mapping)
                      for holder in (config, inner)),
        invalid=invalid,
    )  # fmt: skip


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
    return has_key or any(map(_HEAD_CLASS.search, read_classes(config)))


def _has_any(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    return any(config.get(name) is not None for name in names)


def default_layers(count: int) -> tuple[int, int, int]:
    """The layers that vLLM reads of a target with ``count`` layers when a head lists none."""
    return (2, count // 2, count - 3)


def read_classes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """``architectures``; empty unless that is a list."""
    names = config.get("architectures")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def parse_layer(name: str) -> int | None:
    """The number of the layer that the tensor of this name belongs to."""
    match = _LAYER.search(name)
    return int(match[1] or 0) if match else None


def placeholder(config: Mapping[str, Any], names: Iterable[str]) -> tuple[str, Any] | None:
    """The first of these keys (dotted: nested) that has a value, and the value."""
    for name in names:
        value: Any = config
        for step in name.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            return name, value
    return None


class Head:
    """A head: its config.json (``document``), what that means to vLLM (``config``), and its
    ``tensors`` (empty: they were not readable)."""

    def __init__(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.document, self.config, self.tensors = document, read_head(document), tensors

    def may_be_head(self) -> bool:
        """Whether anything shows that this is a draft head; true where weights are unreadable."""
        return (
            not self.tensors
            or any(_OWN_TENSOR.search(name) for name in self.tensors)
            or _has_any(self.document, (*_HEAD_KEYS, "draft_vocab_size"))
            or self.placeholder() is not None
            or any("eagle" in name.lower() for name in self.config.classes)
        )

    def placeholder(self) -> tuple[str, Any] | None:
        """The key that vLLM reads for the token of the masked slots, and its value."""
        nested = _has_any(self.document, _SPECULATORS)
        return placeholder(self.document, ("mask_token_id",) if nested else VLLM_PLACEHOLDERS)

    def is_parallel(self) -> bool:
        """Whether it drafts in parallel: it has a state for the masked slots; where its weights
        are unreadable, by its config."""
        if self.tensors:
            return self.holding(MASK) is not None
        return self.config.speculators == "peagle" or self.document.get("ptd_token_id") is not None

    def holding(self, *parts: str) -> Sequence[int] | None:
        """The shape of the first tensor that has one of ``parts`` in its name."""
        named = (tensor for part in parts for name, tensor in self.tensors.items() if part in name)
        return next((tensor.shape for tensor in named), None)

    def tensor(self, name: str) -> Sequence[int] | None:
        """The shape of the tensor of that name, under any prefix."""
        named = (each for full, each in self.tensors.items() if f".{full}".endswith(f".{name}"))
        return next((tensor.shape for tensor in named), None)

    def layer_tensors(self) -> dict[int, set[str]]:
        """Layer -> names of its tensors; empty for layers whose names are unknown here."""
        layers: dict[int, set[str]] = {}
        is_readable = not self.config.quantized and self.config.model_type in _KNOWN_LAYERS
        for name in self.tensors if is_readable else ():
            if match := _LAYER.search(name):
                layers.setdefault(int(match[1] or 0), set()).add(name[match.end() :])
        return layers


OTHER_HEAD = "use the head that was trained for this target"
_METHOD = 'use a P-EAGLE head with "parallel_drafting": true, and an EAGLE-3 head without it'
_MIN_VOCABULARY_RATIO = 0.95
"""Minimum ratio of head to target vocabulary; targets often get extra tokens."""


class Problem(NamedTuple):
    """A reason why the head cannot draft for the target; ``values`` by their names."""

    code: str
    fix: str
    values: Mapping[str, object]

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return f"{self.code} ({values})"


def problems(head: Head, target: Mapping[str, Any], is_parallel: bool) -> Iterator[Problem]:
    """What keeps the head from drafting for the model whose config.json is ``target``, started with
    parallel drafting or without; what is unknown is no problem."""
    if not head.may_be_head():
        yield Problem("head-not-a-drafter", OTHER_HEAD, {"architectures": head.config.classes})
        return
    sizes = {name: size for name, size in target.items() if type(size) is int}
    yield from _method_problems(head, sizes.get("vocab_size"), is_parallel)
    if head.config.uses_auxiliary:
        yield from _auxiliary_problems(
            head, sizes.get("num_hidden_layers"), sizes.get("hidden_size"), is_parallel
        )
    yield from _vocabulary_problems(head, sizes.get("vocab_size"))
    yield from _layout_problems(head, sizes.get("hidden_size"))


def _method_problems(head: Head, vocabulary: int | None, is_parallel: bool) -> Iterator[Problem]:
    """Parallel drafting needs a hidden state and a token for the masked slots."""
    config, mask = head.config, head.holding(MASK)
    if not is_parallel:
        if head.is_parallel():
            # vLLM ignores the mask with one line in its log, and drafts half as fast as it could.
            yield Problem("p-eagle-as-eagle3", _METHOD, {"parallel_drafting": False})
        return
    key, token = head.placeholder() or ("", None)
    if head.tensors and mask is None:
        code = "head-without-mask" if config.parallel_drafting else "eagle3-as-p-eagle"
        yield Problem(code, _METHOD, {MASK: None})
    if not key:
        code = "placeholder-missing" if mask else "eagle3-as-p-eagle"
        yield Problem(code, _METHOD, {"token": None})
    elif vocabulary is not None and not (type(token) is int and 0 <= token < vocabulary):
        values = {key: token, "vocab_size": vocabulary}
        yield Problem("placeholder-outside-vocabulary", OTHER_HEAD, values)
    if not config.uses_auxiliary:
        yield Problem("auxiliary-states-off", _METHOD, {"use_aux_hidden_state": False})


def _auxiliary_problems(
    head: Head, count: int | None, width: int | None, is_parallel: bool
) -> Iterator[Problem]:
    """The layers that the head reads exist and differ, and ``fc`` takes their hidden states."""
    config, fc, mask = head.config, head.tensor("fc.weight"), head.holding(MASK)
    layers = config.auxiliary_layers or default_layers(count or 0)
    values: dict[str, object]
    if count is not None:
        if config.invalid:
            yield Problem("config-damaged", OTHER_HEAD, {AUX_LAYERS: config.invalid})
        values = {"layers": list(layers), "num_hidden_layers": count}
        if any(not 0 <= layer <= count for layer in layers):
            yield Problem("aux-layers-outside", OTHER_HEAD, values)
        if len(set(layers)) < len(layers):
            yield Problem("aux-layers-collide", OTHER_HEAD, values)
    has_fc = fc is not None and len(fc) == 2 and not config.quantized
    if has_fc and width is not None and len(layers) != config.built_for:
        values = {"layers": list(layers), "built_for": config.built_for}
        yield Problem("aux-layer-count", MIXED_FILES, values)
        return
    if width is None:
        return
    if config.target_hidden_size not in (None, width):
        values = {"target_hidden_size": config.target_hidden_size, "hidden_size": width}
        yield Problem("hidden-size-mismatch", OTHER_HEAD, values)
    if fc is not None and len(fc) == 2 and not config.quantized:
        shape = (config.hidden_size or fc[0], width * config.built_for)
        if tuple(fc) != shape:
            yield Problem("fc-width", OTHER_HEAD, {"fc.weight": list(fc), "needed": list(shape)})
        elif is_parallel and mask and prod(mask) != fc[1]:
            yield Problem("mask-shape", OTHER_HEAD, {MASK: prod(mask), "fc.weight": fc[1]})


def _vocabulary_problems(head: Head, vocabulary: int | None) -> Iterator[Problem]:
    config = head.config
    vocab_size, drafted = config.vocab_size, config.draft_vocab_size
    # With more tokens than the target, the head reads and writes beyond the target's tables; with
    # far fewer it belongs to another tokenizer.
    if vocabulary is not None:
        values: dict[str, object] = {"of the head": vocab_size, "of the target": vocabulary}
        if (
            vocab_size is not None
            and not _MIN_VOCABULARY_RATIO * vocabulary <= vocab_size <= vocabulary
        ):
            yield Problem("vocabulary-mismatch", OTHER_HEAD, values)
        if drafted is not None and drafted > vocabulary:
            yield Problem("draft-vocabulary", OTHER_HEAD, {**values, "drafted": drafted})
    drafted = drafted or vocab_size
    if drafted is None or config.quantized:
        return
    rows, table = head.tensor("lm_head.weight"), head.holding("d2t", "draft_id_to_target_id")
    for name, shape, wrong, missing in (
        ("lm_head", rows, "draft-vocabulary", "lm-head-missing"),
        ("d2t", table, "d2t-size", "d2t-missing"),
    ):
        values = {name: list(shape or ()), "drafted tokens": drafted, "vocab_size": vocab_size}
        if shape and shape[0] != drafted:
            yield Problem(wrong, MIXED_FILES, values)
        if head.tensors and shape is None and vocab_size is not None and drafted < vocab_size:
            yield Problem(missing, MIXED_FILES, values)


def _layout_problems(head: Head, width: int | None) -> Iterator[Problem]:
    """Where the head's weights are not those that its config.json describes."""
    config, embeddings = head.config, head.tensor("embed_tokens.weight")
    hidden, vocabulary = config.hidden_size, config.vocab_size
    values: dict[str, object] = {"hidden_size": hidden, "of the target": width}
    if head.tensors and None not in (hidden, width) and not config.quantized:
        if embeddings is None and hidden != width:  # it would use the target's
            yield Problem("embeddings-not-shared", MIXED_FILES, values)
        expected = (vocabulary, hidden)
        if embeddings is not None and vocabulary is not None and tuple(embeddings) != expected:
            values = {"embed_tokens.weight": list(embeddings), "needed": list(expected)}
            yield Problem("embeddings-shape", MIXED_FILES, values)
    if config.window_problem:
        yield Problem("layer-types", MIXED_FILES, {"config.json": config.window_problem})
    layers, count = head.layer_tensors(), config.layers
    if layers and set(layers) != set(range(count or 0)):
        code = "config-incomplete" if count is None else "layers-mismatch"
        values = {"layers": sorted(layers), "num_hidden_layers": count}
        yield Problem(code, MIXED_FILES, values)
    # vLLM leaves missing tensors uninitialized. The first layer has an additional norm, and vLLM
    # ignores a bias that its class does not have, in whichever layer.
    biases = {f"self_attn.{name}.bias" for name in config.biases}
    complete = {
        name
        for layer, names in layers.items()
        for name in names
        if layer and (not name.endswith(".bias") or name in biases)
    }
    for layer, names in sorted(layers.items()):
        if lacking := complete - names:
            yield Problem("tensors-missing", MIXED_FILES, {f"layer {layer} lacks": min(lacking)})
