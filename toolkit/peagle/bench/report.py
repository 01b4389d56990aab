"""What follows from the rows of a result: the fastest settings, crossovers and gates; and the
report as one HTML file that loads nothing: a summary, plots, all numbers."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from peagle.bench.result import BenchResult, BenchRow, BenchSetting, Interval
from peagle.errors import Refused, UserError
from peagle.speed.acceptance import NO_DRAFT_ACCEPTANCE
from peagle.speed.models import Performance
from peagle.speed.verdict import Setting, VerdictCrossover, crossover_text, speculation_crossovers
from peagle.text import format_usd, shortened
from peagle.workload import Slo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Winner:
    """The fastest setting at one load. ``alone`` is the row without speculation, ``second`` the
    next best setting. ``clear``: its interval lies above that of the second."""

    best: BenchRow
    second: BenchRow | None
    alone: BenchRow | None

    @property
    def load(self) -> int:
        return self.best.load.concurrency

    @property
    def clear(self) -> bool:
        other = self.second
        return other is None or self.best.tokens_per_second.low > other.tokens_per_second.high

    @property
    def gain(self) -> float | None:
        """The speed as a multiple of that without speculation; ``None`` if that is not known."""
        if self.alone is None:
            return None
        return self.best.tokens_per_second.value / self.alone.tokens_per_second.value


def settings(rows: Iterable[BenchRow]) -> list[BenchSetting]:
    """The settings of the rows: without speculation first, then by drafter and K."""
    distinct = dict.fromkeys(row.setting for row in rows)
    return sorted(distinct, key=lambda setting: (setting.drafter or "", setting.k, setting.text))


def winners(rows: Iterable[BenchRow], slo: Slo | None = None) -> list[Winner]:
    """The fastest setting at each load of one workload, ascending; with ``slo`` only of the
    settings whose mean times are measured and meet it, so that a load may be missing."""

    def meets(row: BenchRow) -> bool:
        if slo is None:
            return True
        excess = slo.excess(row.ttft.mean if row.ttft else None, row.itl.mean if row.itl else None)
        return excess is not None and excess <= 1

    by_load: dict[int, list[BenchRow]] = {}
    for row in rows:
        if row.tokens_per_second.value > 0:  # a load that ended at once has no speed
            by_load.setdefault(row.load.concurrency, []).append(row)
    best = []
    for _, at_load in sorted(by_load.items()):
        alone = next((row for row in at_load if not row.setting.k), None)
        ranked = sorted(filter(meets, at_load), key=lambda row: -row.tokens_per_second.value)
        if ranked:
            best.append(Winner(ranked[0], ranked[1] if ranked[1:] else None, alone))
    return best


def crossovers(
    rows: Iterable[BenchRow], usd_per_hour: float | None = None
) -> tuple[VerdictCrossover, ...]:
    """Where speculation stops or starts to pay for one workload, by the fastest repetition of each
    row: a verdict with these rows as evidence has the same crossovers."""
    loads: dict[int, dict[Setting, Performance]] = {}
    complete = [row for row in rows if row.is_complete and row.setting.is_known]
    for row in sorted(complete, key=lambda row: row.fastest.value):
        drafter, k, speed = row.setting.drafter, row.setting.k, row.fastest
        setting = Setting(drafter=(drafter or row.setting.text) if k else None, k=k)
        loads.setdefault(row.load.concurrency, {})[setting] = Performance(
            "measured", NO_DRAFT_ACCEPTANCE, "", speed.value, speed.low, speed.high
        )
    return speculation_crossovers(loads, usd_per_hour)


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


@dataclass(frozen=True)
class BenchGates:
    """What every load must reach, so that a pipeline goes on: mean times, output tokens per second,
    USD per million output tokens, tokens per verification step. ``None``: no limit."""

    slo: Slo | None = None
    min_tokens_per_second: float | None = None
    max_usd_per_million_tokens: float | None = None
    min_acceptance_length: float | None = None


def require_gates(result: BenchResult, gates: BenchGates) -> None:
    """Raise Refused if a load misses a gate. A limit on what was not measured is missed."""
    slo = gates.slo or Slo()

    def misses(row: BenchRow) -> Iterator[str]:
        length = row.acceptance.length if row.acceptance else None
        measured = (
            ("TTFT in s", row.ttft.mean if row.ttft else None, "at most", slo.ttft),
            ("ITL in s", row.itl.mean if row.itl else None, "at most", slo.itl),
            ("tokens/s", row.tokens_per_second.value, "at least", gates.min_tokens_per_second),
            ("USD per million tokens", row.usd_per_million_tokens, "at most",
             gates.max_usd_per_million_tokens),
            ("acceptance length", length, "at least", gates.min_acceptance_length),
        )  # fmt: skip
        for what, value, bound, limit in measured:
            if limit is not None and (
                value is None or (value > limit if bound == "at most" else value < limit)
            ):
                shown = "unknown" if value is None else f"{value:,.4g}"
                yield f"{row.load.concurrency} at a time: {what} {shown}, {bound} {limit:g}"

    missed = [miss for row in result.rows for miss in misses(row)]
    if missed:
        more = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        raise Refused(
            f"a gate is missed at {missed[0]}{more}",
            "change the plan, or the gates",
            code="gate-missed",
        )


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
