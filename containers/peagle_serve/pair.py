"""What the folder of a draft head says: its config.json, and the header of its weights.

Two layouts, as vLLM reads them: EAGLE-3's and P-EAGLE's own, and that of the speculators library,
which describes the layers under ``transformer_layer_config``.

Whether head and target fit, before the engine starts: the facts that decide.

Read from the two config.json and the header of the head's weights. The toolkit's own check knows
many more rules; these are the ones that end in a crash after minutes, or in a head that loads and
drafts nonsense. What cannot be read from here (a model of the hub, other formats), or differs from
one vLLM to the next, is left to vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from peagle_serve.environment import members
from peagle_serve.folder import is_folder_path, read_json, tensor_shapes
from peagle_serve.model import MODEL, drafter_of, loads_files
from peagle_serve.names import SPECULATION
from peagle_serve.settings import WrongEnvironment

Document = dict[str, Any]
Shapes = Mapping[str, list[int]]

PLACEHOLDERS = (
    "dflash_config.mask_token_id",
    "mask_token_id",
    "dspark_noise_token_id",
    "pard_token",
    "ptd_token_id",
)
"""Where a config keeps the token of the masked slots, in the order in which vLLM 0.28.0 looks
(v1/spec_decode/llm_base_proposer.py). Older versions read fewer, and in another order."""

_AUX = "eagle_aux_hidden_state_layer_ids"
_SPECULATORS = ("speculators_model_type", "speculators_config")
_SIGNS = (*_SPECULATORS, "eagle_config", "draft_vocab_size", _AUX)
"""Keys that only the config of a head has."""
_CLASS = re.compile(r"eagle", re.IGNORECASE)
_OWN_TENSOR = re.compile(r"(?:^|\.)(?:fc|midlayer|d2t|t2d)(?:\.|$)|mask_hidden")
"""Tensors that only a head has. Some name the class of a plain model in their config."""
_LAYER = re.compile(r"(?:^|\.)(?:layers\.(\d+)|midlayer)\.")
_COUNTED = ("llama", "qwen3")
"""Kinds of layers of which vLLM's names are known here (llama_eagle3.py, qwen3_eagle3.py)."""


class Head:
    """A head's ``config`` and the shapes of its ``tensors`` (none where they could not be read).

    What a config does not say, or says in another way than as a number, is ``None``.
    """

    def __init__(self, config: Document, tensors: Shapes) -> None:
        self.config, self.tensors = config, tensors
        nested = config.get("transformer_layer_config")
        self.inner: Document = nested if isinstance(nested, dict) else config
        eagle = self.inner.get("eagle_config")
        self._eagle: Document = eagle if isinstance(eagle, dict) else {}
        self.hidden_size = number(self.inner, "hidden_size")
        self.vocab_size = number(self.inner, "vocab_size")
        self.layer_count = number(self.inner, "num_hidden_layers")
        self.draft_vocab_size = number(config, "draft_vocab_size")
        self.target_hidden_size = number(config, "target_hidden_size") or number(
            self.inner, "target_hidden_size"
        )
        self.reads_layers = self._eagle.get("use_aux_hidden_state") is not False
        self.quantized = any(
            isinstance(one.get("quantization_config"), dict) for one in (config, self.inner)
        )

    def is_one(self) -> bool:
        """Whether anything shows that this is a head, and not a model or something else; true
        where the weights could not be read."""
        if not self.tensors or any(_OWN_TENSOR.search(name) for name in self.tensors):
            return True
        if any(self.config.get(name) is not None for name in _SIGNS) or self.placeholder():
            return True
        return any(_CLASS.search(name) for name in self.classes())

    def classes(self) -> list[str]:
        """The classes that its config names."""
        classes = self.config.get("architectures")
        return [str(name) for name in classes] if isinstance(classes, list) else []

    def aux_layers(self, count: int) -> tuple[list[Any], bool]:
        """The target's layers that it reads, and whether it names them. By itself vLLM takes three
        of ``count``."""
        layers = self.config.get(_AUX) or self._eagle.get(_AUX)
        if isinstance(layers, list) and layers:
            return layers, True
        return [2, count // 2, count - 3], False

    def placeholder(self) -> tuple[str, Any] | None:
        """Where it keeps the token of the masked slots, and what it says there."""
        nested = any(self.config.get(name) is not None for name in _SPECULATORS)
        for name in ("mask_token_id",) if nested else PLACEHOLDERS:
            value: Any = self.config
            for step in name.split("."):
                value = value.get(step) if isinstance(value, dict) else None
            if value is not None:
                return name, value
        return None

    def is_parallel(self) -> bool:
        """Whether it was made to draft in parallel: it has a state for the masked slots, or where
        its weights could not be read its config says so."""
        if self.tensors:
            return self.mask() is not None
        kind = self.config.get("speculators_model_type")
        return kind == "peagle" or self.config.get("ptd_token_id") is not None

    def mask(self) -> list[int] | None:
        """The shape of the hidden state for the masked slots."""
        return self._holding("mask_hidden")

    def table(self) -> list[int] | None:
        """The shape of ``d2t``, which turns what it drafts into the target's tokens."""
        return self._holding("d2t") or self._holding("draft_id_to_target_id")

    def tensor(self, name: str) -> list[int] | None:
        """The shape of the tensor of that name, whatever stands before it."""
        return next(
            (shape for full, shape in self.tensors.items() if f".{full}".endswith(f".{name}")), None
        )

    def layers(self) -> dict[int, set[str]]:
        """What its weights hold of each layer; nothing where the names are not known."""
        found: dict[int, set[str]] = {}
        if self.quantized or str(self.inner.get("model_type") or _COUNTED[0]) not in _COUNTED:
            return found
        for name in self.tensors:
            place = _LAYER.search(name)
            if place:
                found.setdefault(int(place[1] or 0), set()).add(name[place.end() :])
        return found

    def _holding(self, part: str) -> list[int] | None:
        return next((shape for name, shape in self.tensors.items() if part in name), None)


def number(config: Document, key: str) -> int | None:
    """The number that a config has under this key; ``None`` if it has none there."""
    value = config.get(key)
    return value if type(value) is int else None


_OTHER_HEAD = "take the head that was trained for this target"
_COPY_AGAIN = "copy the head again: config.json and weights are not of the same head"
_LEAST_OF_VOCABULARY = 0.95
"""A target may have that many more tokens than its head: people add some, and both still fit."""


def check_pair(environment: Mapping[str, str]) -> None:
    """Raise WrongEnvironment if the head cannot work with the target that ``environment`` names.

    Only for the method ``eagle3``, with both as folders of this machine that were found whole.
    """
    drafter, target = drafter_of(environment), environment[MODEL]
    if not (drafter and is_folder_path(drafter) and is_folder_path(target)):
        return
    asked = {name: part.value for name, part in members(environment[SPECULATION]).items()}
    if asked.get("method") != "eagle3" or not loads_files(environment):
        return
    files = Path(target) / "config.json", Path(drafter) / "config.json"
    if not all(file.is_file() for file in files):
        return
    served, config = (read_json(SPECULATION, file) for file in files)
    inner = served.get("text_config")
    served = inner if isinstance(inner, dict) else served
    head = _head(Path(drafter), config)
    _check_is_one(head, drafter)
    if asked.get("parallel_drafting") is True:
        _check_parallel(head, served)
    else:
        _check_not_parallel(head)
    if head.reads_layers:
        _check_layers(served, head)
        _check_width(served, head)
    _check_vocabulary(served, head)
    _check_drafted(head)
    _check_shares(served, head)
    _check_own_layers(head)


def _head(folder: Path, config: Document) -> Head:
    tensors: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(tensor_shapes(file))
    return Head(config, tensors)


def _check_is_one(head: Head, folder: str) -> None:
    if not head.is_one():
        what = ", ".join(head.classes()) or "no class"
        raise WrongEnvironment(
            f"the head is {folder}, which holds no draft head: its config.json names {what}",
            'name the folder of the head in "model", not that of a model',
        )


def _check_parallel(head: Head, target: Document) -> None:
    """A head drafts in parallel only with a state and a token for the places that are masked."""
    fix = 'take a P-EAGLE head, or remove "parallel_drafting"'
    mask, fc, placeholder = head.mask(), head.tensor("fc.weight"), head.placeholder()
    if head.tensors and mask is None:
        raise _mismatch("parallel_drafting is asked for, and it has no mask_hidden", fix)
    if placeholder is None:
        names = ", ".join(PLACEHOLDERS)
        raise _mismatch(f"parallel_drafting is asked for, and its config has none of {names}", fix)
    count, (name, token) = number(target, "vocab_size"), placeholder
    if count is not None and not (type(token) is int and 0 <= token < count):
        raise _mismatch(f"its {name} is {token!r}, and the target's tokens are 0 to {count - 1}")
    if not head.reads_layers:
        raise _mismatch("parallel_drafting is asked for, and it sets use_aux_hidden_state to false",
                        fix)  # fmt: skip
    if mask and fc is not None and len(fc) == 2 and prod(mask) != fc[1]:
        raise _mismatch(f"its mask_hidden has {prod(mask)} values, and its fc takes {fc[1]}")


def _check_not_parallel(head: Head) -> None:
    """vLLM leaves the mask away with a line in its log, and drafts from states that the head was
    not trained on: it is half as fast as it could be, and nobody is told."""
    if head.is_parallel():
        raise _mismatch(
            "it is a P-EAGLE head, and parallel_drafting is not asked for",
            'add "parallel_drafting": true, or take an EAGLE-3 head',
        )


def _check_layers(target: Document, head: Head) -> None:
    """The layers whose states the head reads: inside of the target, no two the same."""
    count = number(target, "num_hidden_layers")
    if count is None:
        return
    layers, named = head.aux_layers(count)
    if any(not isinstance(layer, int) or not 0 <= layer <= count for layer in layers):
        raise _mismatch(f"it reads the target's layers {layers}, and there are {count}")
    if len(set(layers)) < len(layers):
        whence = "its config.json names" if named else f"vLLM takes, of {count},"
        raise _mismatch(f"{whence} the layers {layers} of the target, one of them twice")


def _check_width(target: Document, head: Head) -> None:
    """``fc`` takes the hidden states of all those layers, side by side."""
    width, made_for = number(target, "hidden_size"), head.target_hidden_size
    if width is None:
        return
    if made_for not in (None, width):
        raise _mismatch(f"it was made for a hidden size of {made_for}, and the target's is {width}")
    fc = head.tensor("fc.weight")
    if fc is None or len(fc) != 2 or head.quantized:
        return
    layers, _ = head.aux_layers(number(target, "num_hidden_layers") or 0)
    if fc[1] != width * len(layers):
        raise _mismatch(
            f"its fc.weight takes {fc[1]} values, and {len(layers)} layers of the target have "
            f"{width} each: {width * len(layers)}"
        )
    if head.hidden_size not in (None, fc[0]):
        raise _broken(f"its fc.weight gives {fc[0]} values, and its hidden_size is "
                      f"{head.hidden_size}")  # fmt: skip


def _check_vocabulary(target: Document, head: Head) -> None:
    """A head of more tokens than the target has reads and writes beyond the target's tables; one of
    far fewer was made for another tokenizer."""
    count = number(target, "vocab_size")
    if count is None:
        return
    least = {"vocab_size": _LEAST_OF_VOCABULARY * count, "draft_vocab_size": 0}
    named = {"vocab_size": head.vocab_size, "draft_vocab_size": head.draft_vocab_size}
    for name, size in named.items():
        if size is not None and not least[name] <= size <= count:
            raise _mismatch(f"its {name} is {size}, and the target's vocabulary has {count} tokens")


def _check_drafted(head: Head) -> None:
    """The tables for the tokens that it drafts are as long as its config says."""
    count = head.draft_vocab_size or head.vocab_size
    rows, table = head.tensor("lm_head.weight"), head.table()
    if count is None or head.quantized:
        return
    for name, shape in (("lm_head.weight", rows), ("d2t", table)):
        if shape and shape[0] != count:
            raise _broken(f"its {name} has {shape[0]} rows, and its config.json says that it "
                          f"drafts {count} tokens")  # fmt: skip
    if head.tensors and head.vocab_size is not None and count < head.vocab_size:
        for name, shape in (("lm_head", rows), ("d2t", table)):
            if shape is None:
                raise _broken(f"it drafts {count} of {head.vocab_size} tokens, and has no {name}")


def _check_shares(target: Document, head: Head) -> None:
    """Its table of embeddings is of its own sizes; without one it shares the target's."""
    table = head.tensor("embed_tokens.weight")
    width = number(target, "hidden_size")
    if head.quantized or not head.tensors or None in (width, head.hidden_size):
        return
    if table is None and head.hidden_size != width:
        raise _broken(f"it is {head.hidden_size} wide and has no embeddings, and those of the "
                      f"target are {width} wide")  # fmt: skip
    wanted = [head.vocab_size, head.hidden_size]
    if table is not None and head.vocab_size is not None and table != wanted:
        raise _broken(f"its embed_tokens.weight has the shape {table}, and its config.json makes "
                      f"it {wanted}")  # fmt: skip


def _check_own_layers(head: Head) -> None:
    """Its weights hold the layers that its config announces, and all of each: what is not there
    stays as the memory was, and the drafts are noise. The first layer holds a norm more."""
    layers, count = head.layers(), head.layer_count
    if layers and set(layers) != set(range(count or 0)):
        told = "has no num_hidden_layers" if count is None else f"says num_hidden_layers {count}"
        raise _broken(f"its weights hold the layers {sorted(layers)}, and its config.json {told}")
    whole = set().union(*(names for layer, names in layers.items() if layer))
    for layer, names in sorted(layers.items()):
        if not whole <= names:
            raise _broken(f"its layer {layer} has no {min(whole - names)}, as others have")


def _mismatch(what: str, fix: str = _OTHER_HEAD) -> WrongEnvironment:
    return WrongEnvironment(f"the head and the target do not fit: {what}", fix)


def _broken(what: str) -> WrongEnvironment:
    return WrongEnvironment(f"the head is not whole: {what}", _COPY_AGAIN)
