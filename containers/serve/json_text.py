"""Parts of a JSON text as they are spelled in it, so that nothing is written anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_DECODER = json.JSONDecoder()
_BLANK = " \t\n\r"


class Part(NamedTuple):
    """A value, and where its spelling begins and ends in the text."""

    value: Any
    start: int
    end: int


def elements(text: str) -> list[Part]:
    """The elements of the array that ``text`` is. Raises ValueError if it is no JSON array."""
    whole = _load(text)
    if not isinstance(whole, list):
        raise ValueError("not a JSON array")
    parts = []
    at = text.index("[") + 1
    for _ in whole:
        part = _value_at(text, at)
        parts.append(part)
        at = _skip_blank(text, part.end) + 1
    return parts


def members(text: str) -> dict[str, Part]:
    """The members of the object that ``text`` is, by name; of equal names the last, as vLLM reads
    them. Raises ValueError if it is no JSON object."""
    whole = _load(text, object_pairs_hook=_Pairs)
    if not isinstance(whole, _Pairs):
        raise ValueError("not a JSON object")
    found = {}
    at = text.index("{") + 1
    for _ in whole:
        name = _value_at(text, at)
        part = _value_at(text, _skip_blank(text, name.end) + 1)
        found[str(name.value)] = part
        at = _skip_blank(text, part.end) + 1
    return found


def object_sequence(text: str) -> list[Part]:
    """The objects of ``{...} {...}``; empty if ``text`` is anything else."""
    try:
        parts = list(_values(text))
    except (ValueError, RecursionError):
        return []
    return parts if all(isinstance(part.value, dict) for part in parts) else []


class _Pairs(list[tuple[str, Any]]):
    """An object with all its members, also those of equal names."""


def _load(text: str, **settings: Any) -> Any:
    try:
        return json.loads(text, **settings)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _values(text: str) -> Iterator[Part]:
    at = _skip_blank(text, 0)
    while at < len(text):
        part = _value_at(text, at)
        yield part
        at = _skip_blank(text, part.end)


def _value_at(text: str, at: int) -> Part:
    start = _skip_blank(text, at)
    value, end = _DECODER.raw_decode(text, start)
    return Part(value, start, end)


def _skip_blank(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at
