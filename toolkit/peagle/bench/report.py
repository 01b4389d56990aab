"""The report of a benchmark as one HTML file that loads nothing: a summary, plots, all numbers."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from peagle.bench.compare import (
    settings,
    slo_summary,
    summary_of,
    usable,
    winners,
)
from peagle.bench.evidence import CONFIDENCE
from peagle.bench.result import BenchResult, BenchRow, BenchSetting, BenchWorkload, Interval
from peagle.errors import UserError
from peagle.speed.slo import Slo
from peagle.text import format_usd, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS, MOST_PLOTS = 1_000, 8
"""Rows of a table, and workloads with plots."""

_MARKERS = "os^Dv*PX"
_TIMES = {"TTFT": "ttft", "ITL per output": "itl", "ITL per token": "tpot"}
_STATISTICS = ("mean", "p50", "p90", "p99")


def require_report() -> None:
    """Raise UserError, with the extra to install, where the report's libraries are missing."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"the report needs {error.name}, which is not installed",
            "pip install 'peagle-toolkit[report]'",
            "report-missing",
        ) from error


def report(result: BenchResult, slo: Slo | None = None, intervals: str = CONFIDENCE) -> str:
    """The report as HTML; ``intervals`` says what low and high of a speed are.

    Raises UserError as ``require_report`` does.
    """
    require_report()
    from jinja2 import Environment

    def number(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    def usd(value: float | None, digits: int = 3) -> str:
        return "-" if value is None else format_usd(value, digits)

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "cut": lambda text: shortened(str(text), 2_000, "…"),
        "number": number,
        "usd": usd,
    }
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    every = settings(result.rows)
    drafting = [row for row in reversed(result.rows) if row.acceptance and row.setting.k]
    accepted = {row.setting: row for row in drafting}
    rates = [row.acceptance.per_position for row in accepted.values() if row.acceptance]
    return environment.from_string(template).render(
        result=result,
        workloads=[
            _workload(workload, rows, every, slo or Slo(), result.usd_per_hour, place < MOST_PLOTS)
            for place, (workload, rows) in enumerate(result.by_workload().items())
        ],
        accepted=[accepted[setting] for setting in every if setting in accepted],
        position_headings=[f"position {at + 1}" for at in range(max(map(len, rates), default=0))],
        times=_TIMES,
        statistics=_STATISTICS,
        time_headings=[f"{name} {what}" for name in _TIMES for what in _STATISTICS],
        rows=result.rows[:MOST_ROWS],
        left_out=len(result.rows) - MOST_ROWS,
        imposed=any(row.is_imposed for row in result.rows),
        intervals=intervals,
        command=shlex.join(result.command),
    )


def _workload(
    workload: BenchWorkload,
    rows: Sequence[BenchRow],
    every: Sequence[BenchSetting],
    slo: Slo,
    usd_per_hour: float | None,
    is_plotted: bool,
) -> dict[str, object]:
    """Summary, plot and the fastest setting at each load of one workload."""
    parts = [summary_of(rows, usd_per_hour), *([slo_summary(rows, slo)] if slo != Slo() else [])]
    measured = usable(rows)
    return {
        "workload": workload,
        "summary": f"{workload.name}: {' '.join(parts)}",
        "plot": _plot(measured, every, slo) if is_plotted and measured else "",
        "winners": winners(rows)[:MOST_ROWS],
    }


def _plot(rows: Sequence[BenchRow], every: Sequence[BenchSetting], slo: Slo) -> str:
    """All plots of one workload as an SVG element; a setting looks the same in all of a report."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 12), layout="constrained")
    speed, gain, cost, *panels = figure.subplots(3, 2).flat
    draw(speed, rows, every, "Output tokens per second", "tokens/s",
         lambda row: row.tokens_per_second)  # fmt: skip
    speed.set_yscale("log")
    draw_gain(gain, rows, every, "Speed against no speculation")
    draw(cost, rows, every, "Cost of a million output tokens", "USD",
         lambda row: _exactly(row.usd_per_million_tokens))  # fmt: skip
    for panel, name, limit in zip(panels, _TIMES, (slo.ttft, slo.itl, None), strict=True):

        def mean(row: BenchRow, attribute: str = _TIMES[name]) -> Interval | None:
            times = getattr(row, attribute)
            return _exactly(1000 * times.mean if times else None)

        draw(panel, rows, every, f"{name}, mean", "ms", mean)
        if limit is not None:
            panel.axhline(1000 * limit, color="#57606a", linestyle="--", label="objective")
    for panel in figure.axes:
        panel.set_visible(bool(panel.lines))
    return svg(figure)


def draw(
    axes: Axes,
    rows: Sequence[BenchRow],
    every: Sequence[BenchSetting],
    title: str,
    unit: str,
    value: Callable[[BenchRow], Interval | None],
) -> None:
    """One line per setting with its intervals, by the number of concurrent requests; ``every``
    setting of the report chooses the line's style."""
    for place, setting in enumerate(every):
        ours = sorted(
            (row for row in rows if row.setting == setting), key=lambda row: row.load.concurrency
        )
        points = [(row.load.concurrency, point) for row in ours if (point := value(row))]
        if points:
            axes.errorbar(
                [load for load, _ in points],
                [point.value for _, point in points],
                yerr=[
                    [max(0.0, point.value - point.low) for _, point in points],
                    [max(0.0, point.high - point.value) for _, point in points],
                ],
                label=shortened(setting.text, 40).replace("$", r"\$"),
                color=f"C{place % 10}" if setting.k else "#3d444d",
                marker=_MARKERS[place % len(_MARKERS)],
                linestyle="-" if setting.k else "--",
                capsize=3,
            )
    loads = sorted({row.load.concurrency for row in rows})
    axes.set(xscale="log", xlabel="concurrent requests", ylabel=unit, title=title)
    if len(loads) <= 12:
        axes.set_xticks(loads, [f"{load:,}" for load in loads])
        axes.minorticks_off()
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize="small")


def draw_gain(
    axes: Axes, rows: Sequence[BenchRow], every: Sequence[BenchSetting], title: str
) -> None:
    """The speed of each setting as a multiple of that without speculation at the same load."""
    alone = {row.load.concurrency: row.tokens_per_second.value for row in rows if not row.setting.k}

    def gain(row: BenchRow) -> Interval | None:
        base, speed = alone.get(row.load.concurrency), row.tokens_per_second
        if base is None or not row.setting.k:
            return None
        return Interval(speed.value / base, speed.low / base, speed.high / base)

    draw(axes, rows, every, title, "times no speculation", gain)
    if axes.lines:
        axes.axhline(1.0, color="#57606a", linewidth=1)


def svg(figure: Figure) -> str:
    """The figure as an SVG element: text stays text, and the same figure gives the same bytes."""
    from matplotlib import rc_context

    stream = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "peagle"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _exactly(value: float | None) -> Interval | None:
    return None if value is None else Interval(value, value, value)
