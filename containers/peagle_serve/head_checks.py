"""Checks that head and target match before the engine starts.

Reads the two config.json and the header of the head's weights. ``peagle check`` knows many more
rules; these are the ones that end in a crash after minutes, or in a head that loads and drafts
nonsense. vLLM itself checks what is
unreadable here (a model of the Hub, other formats) or differs between versions of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from peagle_serve.contract import MODEL, SPECULATION, InvalidEnvironment
from peagle_serve.environment import read_speculative_config
from peagle_serve.folder import is_folder_path, read_json, read_tensors
from peagle_serve.heads import AUX_LAYERS, MASK, MIXED_FILES, VLLM_PLACEHOLDERS, HeadFiles
from peagle_serve.weights import drafter_model, loads_files

_OTHER_HEAD = "use the head that was trained for this target"
_MIN_VOCABULARY_RATIO = 0.95
"""Minimum ratio of head to target vocabulary; targets often get extra tokens."""


def check_pair(environment: Mapping[str, str]) -> None:
    """Raise InvalidEnvironment if the head cannot work with the target that ``environment`` names.

    Only for the method ``eagle3``, with both as complete folders of this machine.
    """
    drafter, target_path = drafter_model(environment), environment[MODEL]
    if not (drafter and is_folder_path(drafter) and is_folder_path(target_path)):
        return
    speculation = read_speculative_config(environment)
    if speculation.get("method") != "eagle3" or not loads_files(environment):
        return
    files = Path(target_path) / "config.json", Path(drafter) / "config.json"
    if not all(file.is_file() for file in files):
        return
    target, config = (read_json(SPECULATION, file) for file in files)
    inner = target.get("text_config")
    target = inner if isinstance(inner, dict) else target
    tensors = read_tensors(f'"model" of {SPECULATION}', Path(drafter))
    head = HeadFiles(config, {name: list(one.shape) for name, one in tensors.items()})
    if not head.may_be_head():
        classes = ", ".join(head.config.classes) or "none"
        raise InvalidEnvironment(
            f"{drafter} is not a draft head: config.json has architecture {classes}",
            'set "model" to the folder of a draft head, not of a model',
        )
    if speculation.get("parallel_drafting") is True:
        _check_parallel(head, target)
    elif head.is_parallel():
        # vLLM ignores the mask with one line in its log, and drafts half as fast as it could.
        raise _mismatch(
            "the head is P-EAGLE, but parallel_drafting is not set",
            'add "parallel_drafting": true, or use an EAGLE-3 head',
        )
    if head.config.uses_auxiliary:
        _check_layers(head, target)
        _check_width(head, target)
    _check_vocabulary(head, target)
    _check_drafted_tokens(head)
    _check_embeddings(head, target)
    _check_own_layers(head)


def _number(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int else None


def _check_parallel(head: HeadFiles, target: Mapping[str, Any]) -> None:
    """Parallel drafting needs a hidden state and a token for the masked slots."""
    fix = 'use a P-EAGLE head, or remove "parallel_drafting"'
    mask, fc, placeholder = head.holding(MASK), head.tensor("fc.weight"), head.placeholder()
    if head.tensors and mask is None:
        raise _mismatch(f"parallel_drafting is set, but the head has no {MASK}", fix)
    if placeholder is None:
        keys = ", ".join(VLLM_PLACEHOLDERS)
        raise _mismatch(f"parallel_drafting is set, but the head's config has none of {keys}", fix)
    count, (name, token) = _number(target, "vocab_size"), placeholder
    if count is not None and not (type(token) is int and 0 <= token < count):
        raise _mismatch(
            f"the head's {name} is {token!r}; target token IDs range from 0 to {count - 1}"
        )
    if not head.config.uses_auxiliary:
        raise _mismatch(
            "parallel_drafting is set, but the head sets use_aux_hidden_state to false", fix
        )
    if mask and fc is not None and len(fc) == 2 and prod(mask) != fc[1]:
        raise _mismatch(f"{MASK} of the head has {prod(mask)} values; its fc takes {fc[1]}")


def _check_layers(head: HeadFiles, target: Mapping[str, Any]) -> None:
    """The target layers that the head reads exist, and all differ."""
    count = _number(target, "num_hidden_layers")
    if count is None:
        return
    if AUX_LAYERS in head.config.invalid:
        raise _mismatch(f"the head's {head.config.invalid[AUX_LAYERS]}")
    layers, named = head.auxiliary_layers(count)
    if any(not 0 <= layer <= count for layer in layers):
        raise _mismatch(f"the head reads target layers {list(layers)}; the target has {count}")
    if len(set(layers)) < len(layers):
        source = "the head's" if named else f"with {count} target layers, vLLM's default"
        raise _mismatch(f"{source} auxiliary layers are {list(layers)}, which repeats one")


def _check_width(head: HeadFiles, target: Mapping[str, Any]) -> None:
    """``fc`` takes the concatenated hidden states of those layers."""
    width, made_for = _number(target, "hidden_size"), head.config.target_hidden_size
    if width is None:
        return
    if made_for not in (None, width):
        raise _mismatch(f"the head needs a target of hidden size {made_for}; this one has {width}")
    fc = head.tensor("fc.weight")
    if fc is None or len(fc) != 2 or head.config.quantized:
        return
    layers, _ = head.auxiliary_layers(_number(target, "num_hidden_layers") or 0)
    built_for = head.config.built_for
    if fc[1] != width * len(layers):
        raise _mismatch(
            f"fc.weight has input width {fc[1]}; {len(layers)} target layers x {width} = "
            f"{width * len(layers)} expected"
        )
    if len(layers) != built_for:
        raise _inconsistent(
            f"the head reads {len(layers)} target layers, but vLLM builds fc for {built_for}"
        )
    if head.config.hidden_size not in (None, fc[0]):
        raise _inconsistent(
            f"fc.weight has output width {fc[0]}; hidden_size is {head.config.hidden_size}"
        )


def _check_vocabulary(head: HeadFiles, target: Mapping[str, Any]) -> None:
    """A head with more tokens than the target reads and writes beyond the target's tables; one with
    far fewer belongs to another tokenizer."""
    count = _number(target, "vocab_size")
    if count is None:
        return
    minimum = {"vocab_size": _MIN_VOCABULARY_RATIO * count, "draft_vocab_size": 0}
    sizes = {"vocab_size": head.config.vocab_size, "draft_vocab_size": head.config.draft_vocab_size}
    for name, size in sizes.items():
        if size is not None and not minimum[name] <= size <= count:
            raise _mismatch(
                f"the head's {name} is {size}; the target's vocabulary has {count} tokens"
            )


def _check_drafted_tokens(head: HeadFiles) -> None:
    """The tables of drafted tokens have the length that the config requires."""
    config = head.config
    count = config.draft_vocab_size or config.vocab_size
    if count is None or config.quantized:
        return
    rows, table = head.tensor("lm_head.weight"), head.holding("d2t", "draft_id_to_target_id")
    for name, shape in (("lm_head.weight", rows), ("d2t", table)):
        if shape and shape[0] != count:
            raise _inconsistent(f"{name} has {shape[0]} rows; config.json requires {count}")
    if head.tensors and config.vocab_size is not None and count < config.vocab_size:
        for name, shape in (("lm_head", rows), ("d2t", table)):
            if shape is None:
                raise _inconsistent(
                    f"the head has a reduced vocabulary ({count} of {config.vocab_size}) but no "
                    f"{name}"
                )


def _check_embeddings(head: HeadFiles, target: Mapping[str, Any]) -> None:
    """The head's embeddings have its sizes; a head without embeddings uses the target's."""
    config, width = head.config, _number(target, "hidden_size")
    if config.quantized or not head.tensors or None in (width, config.hidden_size):
        return
    table = head.tensor("embed_tokens.weight")
    if table is None and config.hidden_size != width:
        raise _inconsistent(
            f"the head has hidden size {config.hidden_size} but no embeddings; the target's have "
            f"{width} columns"
        )
    expected = [config.vocab_size, config.hidden_size]
    if table is not None and config.vocab_size is not None and table != expected:
        raise _inconsistent(
            f"embed_tokens.weight has shape {table}; config.json requires {expected}"
        )


def _check_own_layers(head: HeadFiles) -> None:
    """The weights hold all layers of the config, and each layer is complete: vLLM leaves missing
    tensors uninitialized. The first layer has an additional norm. layer_types fit the layers."""
    if head.config.window_problem:
        raise _inconsistent(head.config.window_problem)
    layers, count = head.layer_tensors(), head.config.layers
    if layers and set(layers) != set(range(count or 0)):
        has = "no num_hidden_layers" if count is None else f"num_hidden_layers {count}"
        raise _inconsistent(f"the weights hold layers {sorted(layers)}; config.json has {has}")
    # vLLM ignores a bias that its class does not have, in whichever layer.
    biases = {f"self_attn.{name}.bias" for name in head.config.biases}
    complete = {
        name
        for layer, names in layers.items()
        for name in names
        if layer and (not name.endswith(".bias") or name in biases)
    }
    for layer, names in sorted(layers.items()):
        if not complete <= names:
            raise _inconsistent(f"layer {layer} of the head has no tensor {min(complete - names)}")


def _mismatch(what: str, fix: str = _OTHER_HEAD) -> InvalidEnvironment:
    return InvalidEnvironment(f"head and target do not match: {what}", fix)


def _inconsistent(what: str) -> InvalidEnvironment:
    return InvalidEnvironment(f"config.json and weights of the head disagree: {what}", MIXED_FILES)
