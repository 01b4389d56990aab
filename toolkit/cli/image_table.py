"""The images of this machine for people, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.images import Image

_HEADINGS = ("NAME", "PAIR", "RUNTIME", "SIZE", "WEIGHTS", "CREATED", "BASE")
_TO_THE_RIGHT = _HEADINGS.index("SIZE")
_MB = 1e6


def table(images: Sequence[Image]) -> Iterator[str]:
    """A line of headings and one for each image; columns as wide as what is in them.

    The base comes last and without its registry, since it is long: `image show` has all of it.
    """
    rows = [_HEADINGS, *(_row(one) for one in images)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(
            f"{cell:>{width}}" if number == _TO_THE_RIGHT else f"{cell:<{width}}"
            for number, (cell, width) in enumerate(cells)
        ).rstrip()


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
