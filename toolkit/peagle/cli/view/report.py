"""The report of ``peagle bench``: each workload in sentences, and one HTML file that loads nothing,
with the sentences, plots and all numbers."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from peagle.bench.result import BenchResult, BenchRow, BenchSetting, Interval
from peagle.bench.winners import crossovers, settings, winners
from peagle.cli.view.choose import crossover_text
from peagle.errors import UserError
from peagle.text import format_usd, shortened
from peagle.workload import Slo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def summarize_workload(
    rows: Sequence[BenchRow], usd_per_hour: float | None = None, slo: Slo | None = None
) -> str:
    """One workload in sentences: the fastest settings by load with their gain, the crossovers, and
    the fastest setting that meets the objective."""
    best = winners(rows)
    parts = []
    for setting, group in groupby(best, key=lambda winner: winner.best.setting):
        members = list(group)
        gains = [winner.gain for winner in members if winner.gain is not None and setting.k]
        low, high = (f"{limit(gains):.2f}" if gains else "" for limit in (min, max))
        notes = [f"{low if low == high else f'{low} to {high}'} times the speed"] if gains else []
        if not any(winner.clear for winner in members):
            notes.append("intervals overlap")
        first, last = members[0].load, members[-1].load
        loads = f"{first:,} to {last:,}" if first != last else f"{last:,}"
        text = f"{setting.text} at {loads} request{'s' if last > 1 else ''}"
        parts.append(f"{text} ({', '.join(notes)})" if notes else text)
    against = ", against no speculation" if any("times" in part for part in parts) else ""
    sentences = [f"Fastest{against}: {', '.join(parts)}." if parts else "Nothing was measured."]
    for text in map(crossover_text, crossovers(rows, usd_per_hour)):
        sentences.append(f"By the fastest repetitions, {text[0].lower()}{text[1:]}")
    if slo is not None and slo != Slo():
        fastest = max(
            winners(rows, slo), key=lambda entry: entry.best.tokens_per_second.value, default=None
        )
        reached = "no setting meets it."
        if fastest is not None:
            reached = (
                f"{fastest.best.setting.text} serves up to {fastest.load:,} concurrent requests at "
                f"{fastest.best.tokens_per_second.value:,.0f} tokens/s."
            )
        sentences.append(f"Within {slo.text} (mean times in seconds): {reached}")
    return " ".join(sentences)


def summaries(result: BenchResult, slo: Slo | None = None) -> list[str]:
    """The summary of each workload, with its name if there are several."""
    workloads = result.by_workload()
    lines = []
    for workload, rows in workloads.items():
        text = summarize_workload(rows, result.usd_per_hour, slo)
        lines.append(f"{workload.name}: {text}" if len(workloads) > 1 else text)
    return lines


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


def report(result: BenchResult, slo: Slo | None = None) -> str:
    """The report as HTML. Raises UserError as ``require_report`` does."""
    require_report()
    from jinja2 import Environment

    def number(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    def usd(value: float | None, digits: int = 3) -> str:
        return "-" if value is None else format_usd(value, digits)

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "usd": usd}
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    all_settings = settings(result.rows)
    workloads = []
    for workload, rows in result.by_workload().items():
        measured = [row for row in rows if row.tokens_per_second.value > 0]
        workloads.append(
            {
                "workload": workload,
                "summary": f"{workload.name}: {summarize_workload(rows, result.usd_per_hour, slo)}",
                "plot": _plot(measured, all_settings, slo) if measured else "",
                "winners": winners(rows),
            }
        )
    drafting = [row for row in reversed(result.rows) if row.acceptance and row.setting.k]
    accepted = {row.setting: row for row in drafting}
    rates = [row.acceptance.per_position for row in accepted.values() if row.acceptance]
    return environment.from_string(template).render(
        result=result,
        workloads=workloads,
        accepted=[accepted[setting] for setting in all_settings if setting in accepted],
        position_headings=[f"position {at + 1}" for at in range(max(map(len, rates), default=0))],
        times=_TIMES,
        statistics=_STATISTICS,
        time_headings=[f"{name} {what}" for name in _TIMES for what in _STATISTICS],
        imposed=any(row.is_imposed for row in result.rows),
        intervals="the slowest and the fastest repetition"
        if result.server.where == "evidence"
        else "the 95 % confidence interval of the repetitions",
        command=shlex.join(result.command),
    )


def _plot(rows: Sequence[BenchRow], all_settings: Sequence[BenchSetting], slo: Slo | None) -> str:
    """All plots of one workload as an SVG element; a setting looks the same in all of a report."""
    from matplotlib.figure import Figure

    def exactly(value: float | None) -> Interval | None:
        return None if value is None else Interval(value, value, value)

    figure = Figure(figsize=(12, 12), layout="constrained")
    speed, gain, cost, *panels = figure.subplots(3, 2).flat
    draw(speed, rows, all_settings, "Output tokens per second", "tokens/s",
         lambda row: row.tokens_per_second)  # fmt: skip
    speed.set_yscale("log")
    draw_gain(gain, rows, all_settings, "Speed against no speculation")
    draw(cost, rows, all_settings, "Cost of a million output tokens", "USD",
         lambda row: exactly(row.usd_per_million_tokens))  # fmt: skip
    limits = (slo.ttft, slo.itl, None) if slo else (None, None, None)
    for panel, (name, attribute), limit in zip(panels, _TIMES.items(), limits, strict=True):

        def mean(row: BenchRow, attribute: str = attribute) -> Interval | None:
            times = getattr(row, attribute)
            return exactly(1000 * times.mean if times else None)

        draw(panel, rows, all_settings, f"{name}, mean", "ms", mean)
        if limit is not None:
            panel.axhline(1000 * limit, color="#57606a", linestyle="--", label="objective")
    for panel in figure.axes:
        panel.set_visible(bool(panel.lines))
    return svg(figure)


def draw(
    axes: Axes,
    rows: Sequence[BenchRow],
    all_settings: Sequence[BenchSetting],
    title: str,
    unit: str,
    value: Callable[[BenchRow], Interval | None],
) -> None:
    """One line per setting with its intervals, by the number of concurrent requests. The place of a
    setting in ``all_settings`` of the report chooses the line's style."""
    for place, setting in enumerate(all_settings):
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
    axes: Axes, rows: Sequence[BenchRow], all_settings: Sequence[BenchSetting], title: str
) -> None:
    """The speed of each setting as a multiple of that without speculation at the same load."""
    alone = {row.load.concurrency: row.tokens_per_second.value for row in rows if not row.setting.k}

    def gain(row: BenchRow) -> Interval | None:
        base, speed = alone.get(row.load.concurrency), row.tokens_per_second
        if base is None or not row.setting.k:
            return None
        return Interval(speed.value / base, speed.low / base, speed.high / base)

    draw(axes, rows, all_settings, title, "times no speculation", gain)
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
