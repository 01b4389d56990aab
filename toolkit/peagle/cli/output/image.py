"""The images of this machine for people, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from peagle.cli.output.columns import WIDE, aligned, fitted, folded, left_out
from peagle.images import Image

_HEADINGS = ("NAME", "PAIR", "RUNTIME", "SIZE", "WEIGHTS", "CREATED", "BASE")
_DISPENSABLE = ("BASE", "CREATED", "WEIGHTS", "RUNTIME", "PAIR", "SIZE")
"""Columns that go where the terminal is too narrow, in this order."""

_MB = 1e6


def table(images: Sequence[Image], width: int = WIDE) -> Iterator[str]:
    """A line of headings and one for each image, in ``width`` columns of the terminal; and what
    is left out of them.

    The base comes last and without its registry, since it is long: `image show` has all of it.
    """
    rows, gone = fitted([_HEADINGS, *map(_row, images)], width, _DISPENSABLE)
    yield from aligned(rows, ("SIZE",))
    if gone:
        yield folded(left_out(gone), width, 0)


def _row(image: Image) -> tuple[str, ...]:
    return (
        image.name,
        image.pair,
        image.runtime,
        f"{image.size / _MB:,.0f} MB",
        "baked in" if image.baked else "mounted",
        image.created[:10],
        image.base.rpartition("/")[2] or "?",
    )
