"""The report of a benchmark as one HTML file that loads nothing: a summary, plots, all numbers."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from peagle.bench.compare import (
    fastest_text,
    line_crossings,
    settings,
    slo_summary,
    usable,
    winners,
)
from peagle.bench.evidence import CONFIDENCE
from peagle.bench.result import BenchResult, BenchRow, BenchSetting, BenchWorkload, Interval, Times
from peagle.errors import UserError
from peagle.speed.slo import Slo
from peagle.text import format_usd, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS, MOST_PLOTS = 1_000, 8
"""Rows of a table, and workloads with plots."""

_NONE = "-"
_MARKERS = "os^Dv*PX"
_FASTEST = (
    "requests", "fastest", "next", "clear", "tokens/s", "times no speculation", "$/1M",
    "next, tokens/s",
)  # fmt: skip
_TIMES = (("TTFT", "ttft"), ("ITL per output", "itl"), ("ITL per token", "tpot"))
_PERCENTILES = ("mean", "p50", "p90", "p99")


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

    Plots, tables and the loads at which lines cross are of the same numbers: the speed of each row.
    Raises UserError as ``require_report`` does.
    """
    require_report()
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters["cut"] = lambda text: shortened(str(text), 2_000, "…")
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    server, every = result.server, settings(result.rows)
    accepted = list(_acceptance(result.rows))
    positions = max((len(cells) for cells in accepted), default=4) - 4
    return environment.from_string(template).render(
        title=f"{server.pair or server.model or server.name}: speed and cost",
        subtitle=_subtitle(result),
        workloads=[
            _workload(workload, rows, every, slo or Slo(), number < MOST_PLOTS)
            for number, (workload, rows) in enumerate(result.by_workload().items())
        ],
        imposed=any(row.is_imposed for row in result.rows),
        result=result,
        fastest_headings=_FASTEST,
        acceptance=accepted,
        acceptance_headings=(
            "setting", "basis", "tokens per step", "drafts",
            *(f"position {at}" for at in range(1, positions + 1)),
        ),
        intervals=intervals,
        headings=(
            "workload", "setting", "notes", "requests", "tokens/s", "low", "high", "repetitions",
            "tokens per step", "$/1M",
            *(f"{name} {what}" for name, _ in _TIMES for what in _PERCENTILES),
        ),
        rows=[_numbers(row) for row in result.rows[:MOST_ROWS]],
        left_out=len(result.rows) - MOST_ROWS,
        method=_method(result, intervals),
        command=shlex.join(result.command),
    )  # fmt: skip


def _subtitle(result: BenchResult) -> str:
    server = result.server
    gpus = f"{server.tensor_parallel_size or server.gpu_count or 1} x {server.gpu}"
    parts = [
        gpus if server.gpu else result.host.cpu if server.where == "local" else "",
        f"vLLM {server.vllm}" if server.vllm else "",
        server.instance_type or "",
        f"stand-in {server.stand_in}" if server.stand_in else "",
        f"{format_usd(result.usd_per_hour)} per hour" if result.usd_per_hour is not None else "",
        result.started[:10],
    ]
    return " · ".join(part for part in parts if part)


def _workload(
    workload: BenchWorkload,
    rows: Sequence[BenchRow],
    every: Sequence[BenchSetting],
    slo: Slo,
    is_plotted: bool,
) -> dict[str, object]:
    """Summary, plot and table of the fastest setting of one workload."""
    size = workload.size
    prompt = f"{size.prompt_tokens:,} prompt tokens, " if size.prompt_tokens else ""
    limit = "" if workload.fixed_length else "up to "
    crossings = (
        f"Speculation {direction} paying at about {load:,.0f} requests, where the lines cross."
        for load, direction in line_crossings(rows)
    )
    parts = [fastest_text(rows), *crossings, slo_summary(rows, slo) if slo != Slo() else ""]
    fastest = []
    for winner in winners(rows)[:MOST_ROWS]:
        best, second = winner.best, winner.second
        fastest.append(
            (
                f"{winner.load:,}",
                best.setting.text,
                second.setting.text if second else _NONE,
                ("yes" if winner.clear else "intervals overlap") if second else _NONE,
                f"{best.tokens_per_second.value:,.1f}",
                f"{winner.gain:.2f}" if winner.gain is not None else _NONE,
                _usd(best.usd_per_million_tokens),
                f"{second.tokens_per_second.value:,.1f}" if second else _NONE,
            )
        )
    return {
        "name": f"{workload.name} ({prompt}{limit}{size.output_tokens:,} output tokens)",
        "summary": f"{workload.name}: {' '.join(part for part in parts if part)}",
        "plot": _plot(usable(rows), every, slo) if is_plotted and usable(rows) else "",
        "fastest": fastest,
    }


def _plot(rows: Sequence[BenchRow], every: Sequence[BenchSetting], slo: Slo) -> str:
    """All plots of one workload as an SVG element; a setting looks the same in all of a report."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 12), layout="constrained")
    speed, gain, cost, *panels = figure.subplots(3, 2).flat
    draw(speed, rows, every, "Output tokens per second", "tokens/s",
         lambda row: row.tokens_per_second)  # fmt: skip
    speed.set_yscale("log")
    for load, direction in line_crossings(rows):
        speed.axvline(load, color="#57606a", linestyle=":")
        speed.annotate(
            f"speculation {direction} paying at {load:,.0f} ",
            (load, 0.02),
            xycoords=("data", "axes fraction"),
            horizontalalignment="right",
        )
    draw_gain(gain, rows, every, "Speed against no speculation")
    draw(cost, rows, every, "Cost of a million output tokens", "USD",
         lambda row: _exactly(row.usd_per_million_tokens))  # fmt: skip
    limits = (slo.ttft, slo.itl, None)
    for panel, (name, attribute), limit in zip(panels, _TIMES, limits, strict=True):

        def mean(row: BenchRow, attribute: str = attribute) -> Interval | None:
            times: Times | None = getattr(row, attribute)
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


def _acceptance(rows: Sequence[BenchRow]) -> Iterator[tuple[str, ...]]:
    """The cells of each setting that drafts, at its first measured load."""
    seen: set[BenchSetting] = set()
    for row in sorted(rows, key=lambda row: (row.setting.drafter or "", row.setting.k)):
        accepted, setting = row.acceptance, row.setting
        if accepted is None or not setting.k or setting in seen:
            continue
        seen.add(setting)
        yield (
            setting.text,
            "imposed" if row.is_imposed else accepted.basis,
            f"{accepted.length:.2f}",
            f"{accepted.drafts:,}" if accepted.drafts else _NONE,
            *(f"{rate:.1%}" for rate in accepted.per_position or setting.imposed_rates),
        )


def _numbers(row: BenchRow) -> tuple[str, ...]:
    speed = row.tokens_per_second
    errors = f"{len(row.errors):,} failed requests" if row.errors else ""
    measured: list[Times | None] = [getattr(row, attribute) for _, attribute in _TIMES]
    return (
        row.load.workload.name,
        row.setting.text,
        "; ".join(filter(None, (row.saturated, row.incomplete, errors)))[:200] or _NONE,
        f"{row.load.concurrency:,}",
        *(f"{value:,.1f}" for value in (speed.value, speed.low, speed.high)),
        f"{row.load.repetitions:,}",
        f"{row.acceptance.length:.2f}" if row.acceptance else _NONE,
        _usd(row.usd_per_million_tokens),
        *(
            f"{1000 * getattr(times, name):,.1f}" if times else _NONE
            for times in measured
            for name in _PERCENTILES
        ),
    )


def _usd(usd: float | None) -> str:
    return _NONE if usd is None else format_usd(usd, 3)


def _method(result: BenchResult, intervals: str) -> tuple[tuple[str, str], ...]:
    server, host = result.server, result.host
    price = "unknown"
    if result.usd_per_hour is not None:
        source = result.price_source or "source unknown"
        price = f"{format_usd(result.usd_per_hour)} per hour, {source}"
    cpus = f"{host.cpus} CPUs" if host.cpus else ""
    python = f"Python {host.python}" if host.python else ""
    return (
        ("model", f"{server.pair or server.model} at {server.base_url or server.name}"),
        ("engine", f"vLLM {server.vllm}" if server.vllm else "unknown"),
        ("load from", " ".join(result.sender).strip()),
        ("toolkit", f"peagle-toolkit {result.toolkit}" if result.toolkit else ""),
        ("host", ", ".join(filter(None, (host.cpu, cpus, host.system, python)))),
        ("measured", result.started),
        ("price", price),
        ("intervals", intervals),
    )
