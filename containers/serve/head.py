"""What the folder of a draft head says: its config.json, and the header of its weights.

Two layouts, as vLLM reads them: EAGLE-3's and P-EAGLE's own, and that of the speculators library,
which describes the layers under ``transformer_layer_config``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
