"""Whether head and target fit, before the engine starts.

Reads the two config.json and the header of the head's weights. ``peagle check`` knows many more
rules; these are the ones that end in a crash after minutes, or in a head that loads and drafts
nonsense. What is not readable here (a model of the hub, other formats), or differs between
versions of vLLM, is left to vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from peagle_serve.contract import MODEL, SPECULATION, WrongEnvironment
from peagle_serve.environment import speculation_of
from peagle_serve.folder import is_folder_path, read_json
from peagle_serve.heads import AUX_LAYERS, MASK, VLLM_PLACEHOLDERS, HeadFiles
from peagle_serve.safetensors import read_header
from peagle_serve.weights import drafter_of, loads_files

_OTHER_HEAD = "use the head that was trained for this target"
_COPY_AGAIN = "copy the head again: config.json and weights are from different heads"
_LEAST_OF_VOCABULARY = 0.95
"""People add tokens to a target: a head whose vocabulary is this much smaller still fits."""


def check_pair(environment: Mapping[str, str]) -> None:
    """Raise WrongEnvironment if the head cannot work with the target that ``environment`` names.

    Only for the method ``eagle3``, with both as complete folders of this machine.
    """
    drafter, target_path = drafter_of(environment), environment[MODEL]
    if not (drafter and is_folder_path(drafter) and is_folder_path(target_path)):
        return
    speculation = speculation_of(environment)
    if speculation.get("method") != "eagle3" or not loads_files(environment):
        return
    files = Path(target_path) / "config.json", Path(drafter) / "config.json"
    if not all(file.is_file() for file in files):
        return
    target, config = (read_json(SPECULATION, file) for file in files)
    inner = target.get("text_config")
    target = inner if isinstance(inner, dict) else target
    shapes: dict[str, list[int]] = {}
    for file in sorted(Path(drafter).glob("*.safetensors")):
        shapes.update((name, list(one.shape)) for name, one in read_header(file).items())
    head = HeadFiles(config, shapes)
    if not head.may_be_head():
        classes = ", ".join(head.config.classes) or "no class"
        raise WrongEnvironment(
            f"the head is {drafter}, which holds no draft head: its config.json names {classes}",
            'set "model" to the folder of a draft head, not of a model',
        )
    if speculation.get("parallel_drafting") is True:
        _check_parallel(head, target)
    elif head.is_parallel():
        # vLLM ignores the mask with one line in its log, and drafts half as fast as it could.
        raise _mismatch(
            "it is a P-EAGLE head, and parallel_drafting is not set",
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
    """A head drafts in parallel only with a state and a token for the masked slots."""
    fix = 'use a P-EAGLE head, or remove "parallel_drafting"'
    mask, fc, placeholder = head.holding(MASK), head.tensor("fc.weight"), head.placeholder()
    if head.tensors and mask is None:
        raise _mismatch(f"parallel_drafting is set, and it has no {MASK}", fix)
    if placeholder is None:
        keys = ", ".join(VLLM_PLACEHOLDERS)
        raise _mismatch(f"parallel_drafting is set, and its config has none of {keys}", fix)
    count, (name, token) = _number(target, "vocab_size"), placeholder
    if count is not None and not (type(token) is int and 0 <= token < count):
        raise _mismatch(f"its {name} is {token!r}, and the target's tokens are 0 to {count - 1}")
    if not head.config.uses_auxiliary:
        raise _mismatch("parallel_drafting is set, and it sets use_aux_hidden_state to false", fix)
    if mask and fc is not None and len(fc) == 2 and prod(mask) != fc[1]:
        raise _mismatch(f"its {MASK} has {prod(mask)} values, and its fc takes {fc[1]}")


def _check_layers(head: HeadFiles, target: Mapping[str, Any]) -> None:
    """The layers whose states the head reads: in the target, and no two the same."""
    count = _number(target, "num_hidden_layers")
    if count is None:
        return
    if AUX_LAYERS in head.config.invalid:
        raise _mismatch(f"its {head.config.invalid[AUX_LAYERS]}")
    layers, named = head.auxiliary_layers(count)
    if any(not 0 <= layer <= count for layer in layers):
        raise _mismatch(f"it reads the target's layers {list(layers)}, and there are {count}")
    if len(set(layers)) < len(layers):
        source = "its config.json names" if named else f"vLLM takes, of {count},"
        raise _mismatch(f"{source} the layers {list(layers)} of the target, one of them twice")


def _check_width(head: HeadFiles, target: Mapping[str, Any]) -> None:
    """``fc`` takes the hidden states of all those layers, concatenated."""
    width, made_for = _number(target, "hidden_size"), head.config.target_hidden_size
    if width is None:
        return
    if made_for not in (None, width):
        raise _mismatch(f"it is for a hidden size of {made_for}, and the target's is {width}")
    fc = head.tensor("fc.weight")
    if fc is None or len(fc) != 2 or head.config.quantized:
        return
    layers, _ = head.auxiliary_layers(_number(target, "num_hidden_layers") or 0)
    if fc[1] != width * len(layers):
        raise _mismatch(
            f"its fc.weight takes {fc[1]} values, and {len(layers)} layers of the target have "
            f"{width} each: {width * len(layers)}"
        )
    if head.config.hidden_size not in (None, fc[0]):
        raise _inconsistent(
            f"its fc.weight gives {fc[0]} values, and its hidden_size is {head.config.hidden_size}"
        )


def _check_vocabulary(head: HeadFiles, target: Mapping[str, Any]) -> None:
    """A head with more tokens than the target reads and writes beyond the target's tables; one with
    far fewer was made for another tokenizer."""
    count = _number(target, "vocab_size")
    if count is None:
        return
    least = {"vocab_size": _LEAST_OF_VOCABULARY * count, "draft_vocab_size": 0}
    sizes = {"vocab_size": head.config.vocab_size, "draft_vocab_size": head.config.draft_vocab_size}
    for name, size in sizes.items():
        if size is not None and not least[name] <= size <= count:
            raise _mismatch(f"its {name} is {size}, and the target's vocabulary has {count} tokens")


def _check_drafted_tokens(head: HeadFiles) -> None:
    """The tables of drafted tokens are as long as the config says."""
    config = head.config
    count = config.draft_vocab_size or config.vocab_size
    if count is None or config.quantized:
        return
    rows, table = head.tensor("lm_head.weight"), head.holding("d2t", "draft_id_to_target_id")
    for name, shape in (("lm_head.weight", rows), ("d2t", table)):
        if shape and shape[0] != count:
            raise _inconsistent(
                f"its {name} has {shape[0]} rows, and according to its config.json it drafts "
                f"{count} tokens"
            )
    if head.tensors and config.vocab_size is not None and count < config.vocab_size:
        for name, shape in (("lm_head", rows), ("d2t", table)):
            if shape is None:
                raise _inconsistent(
                    f"it drafts {count} of {config.vocab_size} tokens, and has no {name}"
                )


def _check_embeddings(head: HeadFiles, target: Mapping[str, Any]) -> None:
    """Its embeddings have its own sizes; without embeddings it uses those of the target."""
    config, width = head.config, _number(target, "hidden_size")
    if config.quantized or not head.tensors or None in (width, config.hidden_size):
        return
    table = head.tensor("embed_tokens.weight")
    if table is None and config.hidden_size != width:
        raise _inconsistent(
            f"its hidden size is {config.hidden_size} and it has no embeddings, and those of the "
            f"target have {width} columns"
        )
    expected = [config.vocab_size, config.hidden_size]
    if table is not None and config.vocab_size is not None and table != expected:
        raise _inconsistent(
            f"its embed_tokens.weight has the shape {table}, not {expected} as in its config.json"
        )


def _check_own_layers(head: HeadFiles) -> None:
    """Its weights hold all layers of its config, and each layer is complete: vLLM leaves missing
    tensors uninitialized. The first layer has one norm more."""
    layers, count = head.layer_tensors(), head.config.layers
    if layers and set(layers) != set(range(count or 0)):
        has = "no num_hidden_layers" if count is None else f"num_hidden_layers {count}"
        raise _inconsistent(
            f"its weights hold the layers {sorted(layers)}, and its config.json has {has}"
        )
    complete = set().union(*(names for layer, names in layers.items() if layer))
    for layer, names in sorted(layers.items()):
        if not complete <= names:
            raise _inconsistent(f"its layer {layer} lacks {min(complete - names)}")


def _mismatch(what: str, fix: str = _OTHER_HEAD) -> WrongEnvironment:
    return WrongEnvironment(f"head and target do not fit: {what}", fix)


def _inconsistent(what: str) -> WrongEnvironment:
    return WrongEnvironment(f"the head's files are inconsistent: {what}", _COPY_AGAIN)
