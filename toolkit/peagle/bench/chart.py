"""Line charts as SVG: axes, ticks, lines with intervals and distinct markers, a legend. Pure.

A chart is readable without colour (each line has its own marker), in light and dark mode (colours
are CSS variables), and by a screen reader (title and description).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from peagle.text import shortened

STYLES = 8
"""Lines that differ in colour and marker; a ninth looks like the first."""

CSS = Path(__file__).with_name("chart.css").read_text(encoding="utf-8")
"""Colours and lines. Every colour of a line has at least 4.5 times the contrast of the paper."""

_SIGNS = (
    "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0z",
    "M-4.2,-4.2h8.4v8.4h-8.4z",
    "M0,-5.6L5.4,4.2H-5.4z",
    "M0,-6L6,0L0,6L-6,0z",
    "M0,5.6L5.4,-4.2H-5.4z",
    "M-1.9,-5.5h3.8v3.6h3.6v3.8h-3.6v3.6h-3.8v-3.6h-3.6v-3.8h3.6z",
    "M0,-5.8L5.5,-1.8L3.4,4.7H-3.4L-5.5,-1.8z",
    "M-5.4,-2.7L-2.7,-5.4L0,-2.7L2.7,-5.4L5.4,-2.7L2.7,0L5.4,2.7L2.7,5.4L0,2.7L-2.7,5.4L-5.4,2.7"
    "L-2.7,0z",
)
"""Markers: circle, square, triangle, diamond, triangle upside down, plus, pentagon, cross."""

_WIDTH = 480
_LEFT, _RIGHT, _BOTTOM, _PLOT = 62, 16, 50, 236
_LETTER = 7.9
"""Pixels of a letter, about."""

_HEAD = 62
"""Pixels of the titles above charts in one picture."""

_MOST_LETTERS = 40
_LONGEST_INTERVAL = 4.0
"""How far below the lowest value a logarithmic axis follows an interval, as a factor."""


@dataclass(frozen=True)
class Point:
    """A value at ``x``, with the interval of its repetitions if known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """``style`` chooses colour and marker, the same in all charts of a report; style 0 is dashed:
    what the others are compared with."""

    name: str
    points: tuple[Point, ...]
    style: int


@dataclass(frozen=True)
class Chart:
    """``marks`` are vertical lines, ``level`` a horizontal one: position and text. Values of x and,
    with ``log_y``, of y are positive where the axis is logarithmic."""

    title: str
    description: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    format_y: Callable[[float], str]
    log_x: bool = True
    log_y: bool = False
    level: tuple[float, str] | None = None
    marks: tuple[tuple[float, str], ...] = field(default=())


def draw(chart: Chart, number: int = 1, alone: bool = False) -> str:
    """The chart as an ``<svg>`` element. ``number`` makes its ids unique on a page; ``alone`` gives
    it all that it needs as a file."""
    legend = list(_legend(chart.lines))
    height = _height(chart)
    top = height - _PLOT - _BOTTOM
    x, y = _x_scale(chart), _y_scale(chart, top)
    ids = f"chart{number}-title chart{number}-text"
    size = f' width="{_WIDTH}" height="{height}"' if alone else ""
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        f' role="img" aria-labelledby="{ids}"{size}>',
        f'<title id="chart{number}-title">{escape(chart.title)}</title>',
        f'<desc id="chart{number}-text">{escape(chart.description)}</desc>',
    ]
    if alone:
        parts.append(f"<style>{CSS}</style>")
        parts.append(f'<rect class="paper" width="{_WIDTH}" height="{height}"/>')
    parts += (_legend_entry(*entry) for entry in legend)
    parts += _axes(chart, x, y, top)
    for place, line in enumerate(chart.lines):
        parts += _line(line, x, y, 3.0 * (place - (len(chart.lines) - 1) / 2))
    parts += _marks(chart, x, top)
    return "\n".join([*parts, "</svg>"])


def _height(chart: Chart) -> int:
    """Pixels of the whole chart: a legend of one or several rows, the plot, and its labels."""
    rows = max((row + 1 for _, row, _ in _legend(chart.lines)), default=0)
    return 34 + 24 * rows + _PLOT + _BOTTOM


def beside(charts: Sequence[Chart], title: str) -> str:
    """The charts side by side, each with its title, as an SVG file with a title of its own."""
    drawn = [draw(one, number) for number, one in enumerate(charts, 1)]
    width, height = _WIDTH * len(charts), max(map(_height, charts)) + _HEAD
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>{CSS}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="title" x="8" y="24">{escape(title)}</text>',
    ]
    for number, (chart, one) in enumerate(zip(charts, drawn, strict=True)):
        left, high = number * _WIDTH, _height(chart)
        parts.append(f'<text class="title" x="{left + 8}" y="52">{escape(chart.title)}</text>')
        place = f'<svg x="{left}" y="{_HEAD}" width="{_WIDTH}" height="{high}"'
        parts.append(one.replace("<svg", place, 1))
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True)
class _Axis:
    """Values to pixels, and the values with ticks."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        share = max(0.0, (value - low) / (high - low))
        return round(self.start + share * (self.end - self.start), 1)


def _x_scale(chart: Chart) -> _Axis:
    values = sorted({point.x for line in chart.lines for point in line.points}) or [1.0]
    low, high = values[0], values[-1]
    if low == high:
        low, high = (low / 2, high * 2) if chart.log_x else (low - 1, high + 1)
    start, end = _LEFT + 18, _WIDTH - _RIGHT - 18
    scale = _Axis(low, high, start, end, chart.log_x, tuple(values))
    kept: list[float] = []
    for value in values:  # a tick that would touch the one before has no label
        if not kept or scale(value) - scale(kept[-1]) > _LETTER * (len(f"{value:,g}") + 1):
            kept.append(value)
    return _Axis(low, high, start, end, chart.log_x, tuple(kept))


def _y_scale(chart: Chart, top: float) -> _Axis:
    points = [point for line in chart.lines for point in line.points]
    values = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    values += [chart.level[0]] if chart.level else []
    low, high = min(values, default=0.0), max(values, default=1.0)
    least = min((point.y for point in points), default=0.0)
    if chart.log_y and least > 0:
        low = max(low, least / _LONGEST_INTERVAL)
        ticks = log_ticks(low, high)
        low, high = min(low, ticks[0]) / 1.05, max(high, ticks[-1]) * 1.05
        return _Axis(low, high, top + _PLOT, top, True, ticks)
    ticks = linear_ticks(max(high, 1e-12))
    return _Axis(0.0, max(high, ticks[-1]), top + _PLOT, top, False, ticks)


def linear_ticks(high: float) -> tuple[float, ...]:
    """At most six round values from 0 to the first that is ``high`` or more."""
    power = 10.0 ** math.floor(math.log10(high / 5))
    step = next((power * n for n in (1, 2, 2.5, 5) if power * n * 5 >= high), power * 10)
    count = math.ceil(round(high / step, 6))
    return tuple(round(step * number, 12) for number in range(count + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten from ``low`` to ``high``, or powers of ten if they are many;
    the values around them if there are fewer than two."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1, 2, 5), (1,)):
        every = [n * 10.0**power for power in range(first, last + 1) for n in steps]
        inside = tuple(value for value in every if low <= value <= high)
        if 2 <= len(inside) <= 9:
            return inside
    if len(inside) > 9:
        return inside[:: math.ceil(len(inside) / 9)]
    below = [n * 10.0**first for n in (1, 2, 5) if n * 10.0**first <= low]
    return below[-1], next(value for value in every_one_two_five(below[-1]) if value >= high)


def every_one_two_five(start: float) -> Iterator[float]:
    """1, 2 and 5 times powers of ten above ``start``."""
    power = math.floor(math.log10(start))
    while True:
        yield from (n * 10.0**power for n in (1, 2, 5) if n * 10.0**power > start)
        power += 1


def _legend(lines: Sequence[Line]) -> Iterator[tuple[Line, int, float]]:
    """Each line with its row and position."""
    row, at = 0, 8.0
    for line in lines:
        width = 34 + _LETTER * len(_short(line.name)) + 14
        if at > 8 and at + width > _WIDTH:
            row, at = row + 1, 8.0
        yield line, row, at
        at += width


def _legend_entry(line: Line, row: int, at: float) -> str:
    y, style = 16 + 24 * row, line.style % STYLES
    return (
        f'<path class="line s{style}{_dashed(line)}" d="M{at:.0f},{y}h28"/>'
        f'{_sign(style, at + 14, y)}<text x="{at + 34:.0f}" y="{y + 5}">'
        f"{escape(_short(line.name))}</text>"
    )


def _axes(chart: Chart, x: _Axis, y: _Axis, top: float) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, top + _PLOT
    yield f'<text class="soft" x="4" y="{top - 12:.0f}">{escape(chart.y_label)}</text>'
    for value in y.ticks:
        at = y(value)
        yield f'<path class="grid" d="M{_LEFT},{at}H{right}"/>'
        label = escape(chart.format_y(value))
        place = f'x="{_LEFT - 8}" y="{at + 5:.1f}" text-anchor="end"'
        yield f'<text class="soft" {place}>{label}</text>'
    if chart.level:
        at = y(chart.level[0])
        yield f'<path class="axis" d="M{_LEFT},{at}H{right}"/>'
        place = f'x="{_LEFT + 4}" y="{at + 17:.1f}"'
        yield f'<text class="soft halo" {place}>{escape(_short(chart.level[1]))}</text>'
    yield f'<path class="axis" d="M{_LEFT},{bottom}H{right}"/>'
    for value in x.ticks:
        label = f'x="{x(value)}" y="{bottom + 20}" text-anchor="middle"'
        yield f'<path class="axis" d="M{x(value)},{bottom}v5"/>'
        yield f'<text class="soft" {label}>{value:,g}</text>'
    middle = (_LEFT + right) / 2
    label = f'x="{middle:.0f}" y="{bottom + 42}" text-anchor="middle"'
    yield f'<text class="soft" {label}>{escape(chart.x_label)}</text>'


def _marks(chart: Chart, x: _Axis, top: float) -> Iterator[str]:
    """Vertical lines, labelled at the bottom, where curves that rise leave room."""
    for row, (value, text) in enumerate(reversed(chart.marks)):
        at = x(value)
        anchor, shift = ("end", -6) if at > _WIDTH * 0.55 else ("start", 6)
        yield f'<path class="mark" d="M{at},{top}v{_PLOT}"/>'
        place = f'x="{at + shift:.1f}" y="{top + _PLOT - 9 - 19 * row:.0f}" text-anchor="{anchor}"'
        yield f'<text class="halo" {place}>{escape(_short(text))}</text>'


def _line(line: Line, x: _Axis, y: _Axis, shift: float) -> Iterator[str]:
    """The line, and at each of its points the interval and the marker. ``shift`` keeps intervals at
    the same load apart."""
    style = line.style % STYLES
    places = [(round(x(point.x) + shift, 1), y(point.y), point) for point in line.points]
    if len(places) > 1:
        path = "L".join(f"{across},{down}" for across, down, _ in places)
        yield f'<path class="line s{style}{_dashed(line)}" d="M{path}"/>'
    for across, _, point in places:
        if point.low is not None and point.high is not None and point.low < point.high:
            low, high = y(point.low), y(point.high)
            ends = f"M{across - 4:.1f},{high}h8M{across - 4:.1f},{low}h8"
            yield f'<path class="line range s{style}" d="M{across},{high}V{low}{ends}"/>'
    for across, down, _ in places:
        yield _sign(style, across, down)


def _sign(style: int, across: float, down: float) -> str:
    place = f"translate({across:.1f},{down:.1f})"
    return f'<path class="sign f{style}" d="{_SIGNS[style]}" transform="{place}"/>'


def _dashed(line: Line) -> str:
    return "" if line.style else " base"


def _short(text: str) -> str:
    return shortened(text, _MOST_LETTERS, "…")
