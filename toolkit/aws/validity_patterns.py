"""Patterns of AWS's service models, which are Java's, as Python reads them.

Java knows classes of Unicode (``\\p{L}``: letters), Python does not. So a pattern is translated for
one value at a time: the class becomes those characters of the value that belong to it.
"""

from __future__ import annotations

import functools
import re
import unicodedata
import warnings

_CLASS = re.compile(r"\\p\{(?P<name>\w+)\}")
_ASCII_CLASSES = {"Alnum": "a-zA-Z0-9", "Alpha": "a-zA-Z", "Digit": "0-9", "Print": r"\x20-\x7e"}
"""Java's POSIX classes mean ASCII only."""

_SURROGATES = r"\uD800\uDC00-\uDBFF\uDFFF"
_ABOVE_BMP = r"\U00010000-\U0010FFFF"
"""All characters beyond U+FFFF, written as Java writes them and as Python does."""

_NO_CHARACTER = r"\udfff"
"""Half a surrogate pair: no text that can be sent holds it, so it stands for an empty class."""


def matches(pattern: str, value: str) -> bool:
    """Whether AWS would take ``value`` for ``pattern``; True for one that Python cannot read."""
    regex = _compiled(_for_value(pattern, value))
    return regex is None or regex.fullmatch(value) is not None


def _for_value(pattern: str, value: str) -> str:
    # A class that ends in its hyphen may not be read as a range by Python.
    pattern = pattern.replace(_SURROGATES, _ABOVE_BMP).replace(r"\w-_", r"\w\-_")

    def members(found: re.Match[str]) -> str:
        name = found["name"]
        if name in _ASCII_CLASSES:
            return _ASCII_CLASSES[name]
        inside = {c for c in value if unicodedata.category(c).startswith(name)}
        return "".join(map(re.escape, sorted(inside))) or _NO_CHARACTER

    return _CLASS.sub(members, pattern)


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # [[ means a bracket here, and no set
        try:
            return re.compile(pattern, re.ASCII)
        except re.error:
            return None
