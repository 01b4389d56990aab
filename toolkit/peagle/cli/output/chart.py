"""Small charts of text: several curves over the same loads, which are equally far apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_MARKS = "●▲■◆"
_PLAIN_MARKS = "ox#+"
_AXIS = 6
"""Characters of the labels on the left, with a blank."""


@dataclass(frozen=True)
class Series:
    """A curve: its name, and values by load."""

    name: str
    points: Mapping[float, float]


def draw(
    series: Sequence[Series], width: int, height: int, baseline: float, plain: bool = False
) -> Iterator[str]:
    """The lines of a chart of ``width`` and ``height`` characters, with the loads below it and a
    legend. A line across it marks ``baseline``; ``plain`` uses ASCII."""
    loads = sorted({load for one in series for load in one.points})
    values = [value for one in series for value in one.points.values()]
    if not values:
        return
    low, high = min([*values, baseline]), max([*values, baseline])
    span = (high - low) or 1.0
    marks, dash, dot = (_PLAIN_MARKS, "-", ".") if plain else (_MARKS, "─", "·")
    columns = {load: _column(number, len(loads), width) for number, load in enumerate(loads)}

    def row(value: float) -> int:
        return round((high - value) / span * (height - 1))

    grid = [[" "] * (width - _AXIS) for _ in range(height)]
    grid[row(baseline)] = [dash] * (width - _AXIS)
    for one in series:
        for (before, start), (after, end) in pairwise(sorted(one.points.items())):
            left, right = columns[before], columns[after]
            for column in range(left + 1, right):
                share = (column - left) / (right - left)
                grid[row(start + share * (end - start))][column] = dot
    for number, one in reversed(list(enumerate(series))):
        for load, value in one.points.items():
            grid[row(value)][columns[load]] = marks[number % len(marks)]
    for number, cells in enumerate(grid):
        value = high - span * number / (height - 1)
        label = baseline if number == row(baseline) else value
        shown = (
            f"{label:.{1 if span >= 0.5 else 2}f}"
            if number in (0, height - 1, row(baseline))
            else ""
        )
        yield f"{shown:>{_AXIS - 1}} {''.join(cells)}".rstrip()
    yield _loads(loads, columns, width)
    legend = (f"{marks[n % len(marks)]} {one.name}" for n, one in enumerate(series) if one.points)
    yield " " * _AXIS + "   ".join(legend)


def _column(number: int, count: int, width: int) -> int:
    last = width - _AXIS - 4
    return 1 + round(number * (last - 1) / max(count - 1, 1))


def _loads(loads: Sequence[float], columns: Mapping[float, int], width: int) -> str:
    """The loads below their columns, without those that have no room."""
    line = [" "] * (width + 10)
    free = 0
    for load in loads:
        text, start = f"{load:g}", _AXIS + columns[load]
        if start >= free:
            line[start : start + len(text)] = text
            free = start + len(text) + 1
    return "".join(line).rstrip()
