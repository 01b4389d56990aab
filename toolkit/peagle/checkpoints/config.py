"""Parses config.json and checks the values that planning reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from peagle.errors import DamagedCheckpoint

CONFIG = "config.json"

LONGEST_CONFIG = 1_000_000
"""Bytes; a typical file has a few thousand."""

SIZES = frozenset({
    "draft_vocab_size", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "target_hidden_size",
    "vocab_size",
})  # fmt: skip
"""Keys whose value is a positive whole number, or null."""

COUNTS = frozenset({
    "global_head_dim", "hidden_size_per_layer_input", "moe_intermediate_size", "n_routed_experts",
    "num_experts", "num_experts_per_tok", "num_global_key_value_heads", "num_kv_shared_layers",
    "num_local_experts", "shared_expert_intermediate_size", "sliding_window",
    "vocab_size_per_layer_input",
})  # fmt: skip
"""Keys whose value is a whole number, 0 included, or null."""

TOKENS = frozenset({"mask_token_id", "pard_token", "ptd_token_id"})
"""Keys whose value is a token id, or null. A check decides whether it is in the vocabulary."""

NESTED = ("text_config", "transformer_layer_config", "eagle_config")
"""Keys of nested parts with numbers of their own."""

_QUANTIZATION = "quantization_config"
_LARGEST = 2**31 - 1
_FIX = "correct config.json, or copy it again"


def parse_config(content: bytes) -> dict[str, Any]:
    """The object in config.json. Raises DamagedCheckpoint for other content and invalid numbers.

    Infinity and NaN are rejected in numbers that planning reads. Other keys of valid configs have
    them, and transformers reads them.
    """
    if not content.strip():
        raise DamagedCheckpoint(f"{CONFIG} is empty", "copy it again")
    try:
        document = json.loads(content.decode())
        # Half of a surrogate pair can neither be printed nor written.
        json.dumps(document, ensure_ascii=False).encode()
    except RecursionError as error:
        raise DamagedCheckpoint(f"{CONFIG} is nested too deeply", _FIX) from error
    except ValueError as error:
        raise DamagedCheckpoint(
            f"{CONFIG} is not JSON: {_reason(error)}", "copy it again"
        ) from error
    if not isinstance(document, dict):
        raise DamagedCheckpoint(f"{CONFIG} is not a JSON object", "copy it again")
    for path, part in _parts(document):
        _check_numbers(path, part)
        if not isinstance(part.get(_QUANTIZATION) or {}, dict):
            _refuse(path + _QUANTIZATION, part[_QUANTIZATION], "an object")
    return document


def _reason(error: ValueError) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    return str(error).partition(";")[0]


def _parts(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The document and its nested parts, each with the prefix of its keys."""
    yield "", document
    for key in NESTED:
        part = document.get(key)
        if part is None:
            continue
        if not isinstance(part, dict):
            _refuse(key, part, "an object")
        yield f"{key}.", part


def _check_numbers(path: str, part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if value is None or key not in SIZES | COUNTS | TOKENS:
            continue
        if type(value) is not int:
            _refuse(path + key, value, "a whole number")
        if key in SIZES and value < 1:
            _refuse(path + key, value, "a positive number")
        if key in COUNTS and value < 0:
            _refuse(path + key, value, "a number of at least 0")
        if abs(value) > _LARGEST:
            _refuse(path + key, value, f"a number of at most {_LARGEST:,}")


def _refuse(key: str, value: Any, expected: str) -> NoReturn:
    shown = ascii(value) if isinstance(value, float) else json.dumps(value)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    raise DamagedCheckpoint(f"{CONFIG}: {key} is {shown}, not {expected}", _FIX)
