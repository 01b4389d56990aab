"""Texts with placeholders as cells of Markdown tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from tools.docs.templates import CLOSE, OPEN, Text

NOTE = "<!-- Written by `make docs` from the code: change the texts there. -->"

_ALIKE = 0.6
"""Texts at least this similar (difflib's ratio) say the same."""

_PLACE = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def cell(texts: Iterable[Text], most: int) -> str:
    """The first texts that differ, as one cell; empty if none says anything."""
    kept: list[str] = []
    for text in texts:
        shown = _shown(text)
        if shown and all(_ratio(shown, earlier) < _ALIKE for earlier in kept):
            kept.append(shown)
    return "; or ".join(kept[:most])


def _ratio(text: str, other: str) -> float:
    return SequenceMatcher(None, text, other, autojunk=False).ratio()


def _shown(text: Text) -> str:
    """The text in Markdown; empty if only placeholders are in it."""
    parts = []
    if _has_words(text):
        parts.append(_PLACE.sub(r"*\1*", escaped(text.sentence)))
    if _is_program(text):
        words = [_PLACE.sub(lambda match: _word(match[1]), word) for word in text.command]
        command = " ".join(part if part.isupper() else shlex.quote(part) for part in words)
        command = re.sub(r"…( …)+", "…", command.replace("'…'", "…")).replace("…", "...")
        parts.append(f"`{command.replace('|', chr(92) + '|')}`")
    return ": ".join(parts)


def _has_words(text: Text) -> bool:
    return bool(re.search("[a-z]", _PLACE.sub("", text.sentence)))


def says_something(text: Text) -> bool:
    """Whether it is more than placeholders."""
    return _has_words(text) or _is_program(text)


def _is_program(text: Text) -> bool:
    """Whether it has a command whose program is known."""
    return bool(text.command) and text.command[0].isidentifier() and text.command[0].islower()


def _word(name: str) -> str:
    """A placeholder in a command."""
    return name.upper().replace(" ", "-")


def escaped(text: str) -> str:
    """A line of text whose characters mean nothing to Markdown, except backticks."""
    line = " ".join(text.split())
    parts = re.split("(`[^`]*`)", line)
    return "".join(
        part.replace("|", r"\|")
        if part.startswith("`")
        else re.sub(r"([\\*<>|\[\]])", r"\\\1", part)
        for part in parts
    )
