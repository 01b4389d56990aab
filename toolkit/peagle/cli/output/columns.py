"""Tables that stay readable on a narrow terminal: whole columns go, and no word is broken."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from textwrap import wrap

Row = tuple[str, ...]

_GAP = 2

WIDE = 10_000
"""Columns of a pipe, for what another program may read: nothing is left out or folded."""


def room(pipe_width: int) -> int:
    """Columns of the terminal, or as ``COLUMNS`` says; else ``pipe_width``."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else pipe_width


def width_of(rows: Sequence[Row]) -> int:
    """Columns of the terminal that these rows take, with two between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1)


def fitted(rows: Sequence[Row], width: int, dispensable: Sequence[str]) -> tuple[list[Row], Row]:
    """The rows, of which the first has the headings, without as many of the ``dispensable`` columns
    as keep them from fitting; and the headings of those, in the order in which they went."""
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
    """A line for each row, columns as wide as what is in them."""
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
    """What says that columns are missing; nothing where none is."""
    return f"Left out for want of room: {', '.join(headings)} (--json has all)." if headings else ""


def folded(text: str, width: int, indent: int) -> str:
    """``text`` in lines of ``width``, all but the first set in; words, addresses and commands stay
    whole, also where one alone is longer."""
    lines = wrap(text, max(width - indent, 1), break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)
