"""Tables for narrow terminals: columns are dropped as a whole, and no word is broken."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from textwrap import wrap

Row = tuple[str, ...]

_GAP = 2

WIDE = 10_000
"""The width of a pipe, which another program may read: nothing is dropped or wrapped."""


def room(pipe_width: int) -> int:
    """The width of the terminal or from ``COLUMNS``; else ``pipe_width``."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else pipe_width


def width_of(rows: Sequence[Row]) -> int:
    """The width of these rows in characters, with two blanks between columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1)


def fitted(rows: Sequence[Row], width: int, dispensable: Sequence[str]) -> tuple[list[Row], Row]:
    """The rows (headings first) without as many ``dispensable`` columns as needed to fit, and the
    headings of the dropped columns."""
    kept, gone = list(rows), []
    for heading in dispensable:
        if width_of(kept) <= width:
            break
        if heading in kept[0]:
            at = kept[0].index(heading)
            kept = [row[:at] + row[at + 1 :] for row in kept]
            gone.append(heading)
    return kept, tuple(gone)


def aligned(rows: Sequence[Row], to_the_right: Collection[str] = ()) -> Iterator[str]:
    """One line per row, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [heading in to_the_right for heading in rows[0]]
    for row in rows:
        cells = zip(row, widths, right, strict=True)
        yield (
            (" " * _GAP)
            .join(f"{cell:>{width}}" if last else f"{cell:<{width}}" for cell, width, last in cells)
            .rstrip()
        )


def left_out(headings: Row) -> str:
    """A note on dropped columns; empty if none was dropped."""
    return (
        f"Hidden columns (too narrow): {', '.join(headings)}; --json shows all." if headings else ""
    )


def folded(text: str, width: int, indent: int) -> str:
    """``text`` in lines of ``width``, all but the first indented; words, addresses and commands are
    not broken, even if longer than a line."""
    lines = wrap(text, max(width - indent, 1), break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)
