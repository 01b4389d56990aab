"""Whether a draft head fits its target, as facts: a code and values.

The container refuses the first problem. ``peagle check`` has a rule of each code, which knows more:
the catalogue, the version of vLLM, and what to say about the fix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from peagle_serve.heads import AUX_LAYERS, MASK, MIXED_FILES, HeadFiles

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


def problems(head: HeadFiles, target: Mapping[str, Any], is_parallel: bool) -> Iterator[Problem]:
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


def _method_problems(
    head: HeadFiles, vocabulary: int | None, is_parallel: bool
) -> Iterator[Problem]:
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
    head: HeadFiles, count: int | None, width: int | None, is_parallel: bool
) -> Iterator[Problem]:
    """The layers that the head reads exist and differ, and ``fc`` takes their hidden states."""
    config, fc, mask = head.config, head.tensor("fc.weight"), head.holding(MASK)
    layers = head.auxiliary_layers(count or 0)
    values: dict[str, object]
    if count is not None:
        if AUX_LAYERS in config.invalid:
            yield Problem("config-damaged", OTHER_HEAD, {AUX_LAYERS: config.invalid[AUX_LAYERS]})
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


def _vocabulary_problems(head: HeadFiles, vocabulary: int | None) -> Iterator[Problem]:
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


def _layout_problems(head: HeadFiles, width: int | None) -> Iterator[Problem]:
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
