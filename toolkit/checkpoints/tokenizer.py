"""What can be told of a tokenizer without downloading it, so that two can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt",
    "special_tokens_map.json", "tekken.json",
)  # fmt: skip
"""Files that make a tokenizer."""

COMPARED = ("tokenizer.json", "tokenizer.model", "tekken.json")
"""Files that hold a whole vocabulary: where these agree, so do the tokenizers."""

SETTINGS = "tokenizer_config.json"
VOCABULARY = "tokenizer.json"

LONGEST_READ = 1_000_000
"""Bytes. A larger file is known by its size and digest only."""


def describe_tokenizer(
    sizes: Mapping[str, int],
    digests: Mapping[str, Mapping[str, str]],
    contents: Mapping[str, bytes],
) -> dict[str, Any]:
    """The sizes of the tokenizer's files by name, and, as far as they are known:

    ``digests``         file -> algorithm -> hexadecimal digits
    ``vocab_size``      tokens in a small tokenizer.json, the added ones included
    ``class``           ``tokenizer_class`` of tokenizer_config.json
    ``special_tokens``  id -> text of the added tokens of tokenizer_config.json

    ``contents`` holds the small files. One that cannot be read says nothing: vLLM does not read a
    drafter's tokenizer either.
    """
    settings, vocabulary = _object(contents.get(SETTINGS)), _object(contents.get(VOCABULARY))
    found: dict[str, Any] = {name: sizes[name] for name in FILES if name in sizes}
    known = {name: dict(said) for name, said in digests.items() if said}
    size = _vocabulary_size(vocabulary)
    special = _special_tokens(settings) or _special_tokens_of(vocabulary)
    kind = settings.get("tokenizer_class")
    return found | {
        key: value
        for key, value in {
            "digests": known,
            "vocab_size": size,
            "class": kind if isinstance(kind, str) else None,
            "special_tokens": special,
        }.items()
        if value
    }


def same_tokenizer(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Whether two descriptions are of the same tokenizer; ``None`` when they do not tell.

    True: a whole vocabulary is the same, byte for byte. False: a token id means two things, or the
    sizes of the vocabularies differ. Files that differ prove nothing, since the same vocabulary can
    be written in two ways.
    """
    for name in COMPARED:
        mine, theirs = (side.get("digests", {}).get(name, {}) for side in (one, other))
        if any(mine[how] == theirs[how] for how in mine.keys() & theirs.keys()):
            return True
    special = one.get("special_tokens", {}), other.get("special_tokens", {})
    if any(special[0][number] != special[1][number] for number in special[0].keys() & special[1]):
        return False
    sizes = one.get("vocab_size"), other.get("vocab_size")
    return False if None not in sizes and sizes[0] != sizes[1] else None


def _object(content: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads((content or b"").decode())
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _vocabulary_size(document: Mapping[str, Any]) -> int | None:
    model, added = document.get("model"), document.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        ids = {number for number in vocabulary.values() if type(number) is int}
    elif isinstance(vocabulary, list):
        ids = set(range(len(vocabulary)))
    else:
        return None
    ids.update(number for number, _ in _added(added))
    return max(ids) + 1 if ids else None


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    added = settings.get("added_tokens_decoder")
    entries = added.items() if isinstance(added, dict) else ()
    return {
        number: token["content"]
        for number, token in entries
        if isinstance(token, dict) and isinstance(token.get("content"), str)
    }


def _special_tokens_of(vocabulary: Mapping[str, Any]) -> dict[str, str]:
    return {str(number): text for number, text in _added(vocabulary.get("added_tokens"))}


def _added(tokens: Any) -> list[tuple[int, str]]:
    entries = tokens if isinstance(tokens, list) else []
    return [
        (entry["id"], entry["content"])
        for entry in entries
        if isinstance(entry, dict)
        and type(entry.get("id")) is int
        and isinstance(entry.get("content"), str)
    ]
