"""Bars of a GPU's memory, in characters that the terminal can show."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.text import Text

FULL, EMPTY = "█", "░"
_PLAIN = {FULL: "#", EMPTY: "."}


def bar(parts: Iterable[tuple[str, float]], whole: float, width: int) -> Text:
    """``parts`` (style and size, in the unit of ``whole``) beside each other, then what is left.

    ``width`` is in characters: blocks, or ``#`` and ``.`` where stdout has no blocks.
    """
    sized = list(parts)
    whole = max(whole, sum(size for _, size in sized))
    full, empty = _shown(FULL), _shown(EMPTY)
    text, drawn, filled = Text(), 0, 0.0
    for style, size in sized:
        filled += size
        upto = round(width * filled / whole)
        text.append(full * (upto - drawn), style)
        drawn = upto
    return text.append(empty * (width - drawn), "dim")


def _shown(block: str) -> str:
    try:
        block.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return _PLAIN[block]
    return block
