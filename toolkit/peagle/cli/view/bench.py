"""The output of ``peagle bench``: loads, sweeps, acceptance on a text, the lossless check; and its
report, one HTML file that loads nothing, with sentences, plots and all numbers."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle.bench.acceptance import AcceptanceResult
from peagle.bench.lossless import LosslessResult
from peagle.bench.result import BenchResult, BenchRow, BenchSetting, Interval, Times, is_compiling
from peagle.bench.sweep import EndpointSweep, SweepProgress
from peagle.bench.winners import crossovers, settings, winners
from peagle.cli import view
from peagle.cli.view.choose import crossover_text
from peagle.errors import UserError
from peagle.text import format_duration, format_price, format_usd, sanitize, shortened
from peagle.workload import Slo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEADINGS = (
    "REQUESTS", "TOKENS/S", "95 % INTERVAL", "TTFT P50", "P90", "P99", "ITL P50", "P90 ", "P99 ",
    "TPOT", "ACCEPTANCE", "$/1M",
)  # fmt: skip

_NONE = "-"


def print_measured(result: BenchResult) -> None:
    """The server, the rows of each workload as a table, and what to know about them."""
    server = result.server
    parts = (
        server.pair or server.model,
        server.instance_type and f"{server.instance_count or 1} x {server.instance_type}",
        server.gpu and f"{server.gpu_count or 1} x {server.gpu}",
        server.vllm and f"vLLM {server.vllm}",
        "in the sandbox: speeds are of this machine's CPU" if server.where == "sandbox" else "",
        server.stand_in and f"{server.stand_in} answers",
    )
    view.print_line(f"{sanitize(server.name)}: {sanitize(', '.join(filter(None, parts)))}")
    for workload, rows in result.by_workload().items():
        prompt = sum(row.prompt_tokens for row in rows) / len(rows)
        answer = sum(row.output_tokens for row in rows) / len(rows)
        source = "prompts of the file" if workload.digest else "random words"
        if workload.turns > 1:
            think = f", {workload.think_seconds:g} s apart" if workload.think_seconds else ""
            source = f"turns 2 to {workload.turns} of conversations{think}, {source}"
        settings = ", ".join(dict.fromkeys(row.setting.text for row in rows))
        times = max(row.load.repetitions for row in rows)
        view.print_line(
            f"{sanitize(workload.name)}, {settings}: prompts of {prompt:.0f} tokens ({source}), "
            f"answers of {answer:.0f}{'' if workload.fixed_length else ', of their natural length'}"
            f"; measured, {times} repetition{'' if times == 1 else 's'}"
        )
        view.print_table(_HEADINGS, map(_cells, rows), right=_HEADINGS)
        for row in rows:
            for note in _notes(row):
                view.print_line(f"  {row.load.concurrency} at a time: {note}")
    view.print_status(
        "Times in ms. TTFT: to the first output; ITL: between outputs; TPOT: per token after the "
        f"first. Sent by {' '.join(result.sender)}."
    )
    if result.usd_per_hour is not None:
        price = format_usd(result.usd_per_hour)
        view.print_status(f"Price: {price} per hour, {result.price_source}.")


def _cells(row: BenchRow) -> tuple[str, ...]:
    speed, cost = row.tokens_per_second, row.usd_per_million_tokens
    return (
        str(row.load.concurrency),
        f"{speed.value:,.1f}",
        f"{speed.low:,.1f} to {speed.high:,.1f}" if speed.spread else _NONE,
        *_milliseconds(row.ttft),
        *_milliseconds(row.itl),
        _milliseconds(row.tpot)[0],
        f"{row.acceptance.length:.2f}" if row.acceptance else _NONE,
        format_usd(cost) if cost is not None else _NONE,
    )


def _milliseconds(times: Times | None) -> tuple[str, ...]:
    """Median, 90th and 99th percentile."""
    if times is None:
        return _NONE, _NONE, _NONE
    return tuple(f"{1e3 * value:,.1f}" for value in (times.p50, times.p90, times.p99))


def _notes(row: BenchRow) -> Iterator[str]:
    if row.acceptance:
        rates = ", ".join(f"{rate:.0%}" for rate in row.acceptance.per_position)
        basis = "" if row.acceptance.basis == "measured" else f" ({row.acceptance.basis})"
        text = "the file's prompts" if row.load.workload.digest else "random words"
        yield f"accepted by position {rates}; {row.acceptance.drafts:,} drafts on {text}{basis}"
    if row.load.workload.size.cached_prompt_tokens:
        yield cache_text(row)
    if row.incomplete:
        yield f"incomplete: {row.incomplete}"


def cache_text(row: BenchRow) -> str:
    """``prefix cache 96% of a prompt (6,640 tokens), TTFT of first turns 310.2 ms``."""
    text, cached = "hits of the prefix cache unknown", row.cached_prompt_tokens
    if cached is not None:
        text = f"prefix cache {row.cached_share or 0:.0%} of a prompt ({cached:,.0f} tokens)"
    if row.lacks_cache:
        expected = row.load.workload.size.cached_share
        text += f" instead of {expected:.0%}: it is off in this engine, or too small"
    if first := row.first_turn_ttft:
        text += f", TTFT of first turns {1e3 * first.p50:,.1f} ms"
    return text


def print_sweep(result: BenchResult, summaries: Sequence[str]) -> None:
    """Print tokens per second by load and setting, then the summaries, one for each workload."""
    for workload, rows in result.by_workload().items():
        view.print_line(f"{workload.name}: output tokens per second, with 95 % confidence interval")
        settings = list(dict.fromkeys(row.setting for row in rows))
        cells: dict[tuple[int, BenchSetting], str] = {}
        for row in rows:
            speed = row.tokens_per_second
            text = f"{speed.value:,.{0 if speed.value >= 100 else 1}f}"
            text += f" ±{speed.spread:.0%}" if speed.spread else ""
            cells[row.load.concurrency, row.setting] = text
        headings = ("requests", *(setting.text for setting in settings))
        table = [
            (f"{load:,}", *(cells.get((load, setting), _NONE) for setting in settings))
            for load in sorted({load for load, _ in cells})
        ]
        view.print_table(headings, table, right=headings)
        for row in rows if workload.size.cached_prompt_tokens else ():
            times = f"TTFT P50 {_milliseconds(row.ttft)[0]} ms, {cache_text(row)}"
            view.print_line(f"  {row.setting.text}, {row.load.concurrency} at a time: {times}")
    for summary in summaries:
        view.print_line(summary)


def progress_text(progress: SweepProgress) -> str:
    """``row 3 of 12: p-eagle K=3, short-prompt x 8, 40%, about 5m left``."""
    row, left = min(progress.done + 1, progress.total), progress.seconds_left
    text = f"row {row} of {progress.total}: {progress.setting.text}, {progress.load.text}"
    text += f", {progress.share:.0%}" if progress.share else ""
    return text if left is None else f"{text}, about {format_duration(left)} left"


def print_sweep_price(prepared: EndpointSweep, sandbox: bool, max_cost: float | None) -> None:
    """What a sweep of a deployment takes and costs: on stderr, before asking."""
    settings, total = len(prepared.sweep.settings), prepared.sweep.total
    text = f"{prepared.record.name}: settings {settings}, rows {total}"
    usd = format_usd(prepared.usd) if prepared.usd is not None else "unknown"
    free = " on AWS (free in the sandbox)" if sandbox else ""
    limit = prepared.default_limit if max_cost is None else max_cost
    spent = f", of which {format_usd(prepared.spent)} is spent" if prepared.spent else ""
    facts = (
        ("sweep", f"{text}, about {format_duration(prepared.seconds)}"),
        ("price", f"the endpoint: {format_price(prepared.usd_per_hour, sandbox)}"),
        ("cost", f"about {usd}{free}; during each update the instances of both revisions are paid"),
        ("limit", "" if limit is None else f"{format_usd(limit)} in all{spent}"),
    )
    view.print_facts(facts)


def print_text_results(results: Mapping[str, Any]) -> None:
    """The acceptance on a text, the check that nothing is lost, or both."""
    if results["acceptance"]:
        _print_acceptance(results["acceptance"])
    if results["lossless"]:
        print_lossless(results["lossless"])


def _print_acceptance(result: AcceptanceResult) -> None:
    """A table by domain, and what is uncertain."""
    where = "the engine's counters" if result.source == "counters" else "the endpoint's log"
    kind = "imposed" if result.total.acceptance.basis == "imposed" else "measured"
    prompts = f"{result.total.prompts:,} prompt{'' if result.total.prompts == 1 else 's'}"
    view.print_line(
        f"Acceptance of {result.server.name} with K={result.k}: {kind} on {prompts}, from {where}",
        bold=True,
    )
    positions = tuple(str(position) for position in range(1, result.k + 1))
    headings = ("DOMAIN", "LENGTH", "95 % INTERVAL", "DRAFTS", "PROMPTS", "TOKENS", *positions)
    table = []
    for part in (*result.domains, *([result.total] if len(result.domains) > 1 else [])):
        low, high = part.interval.low, part.interval.high
        rates = [f"{rate:.2f}" for rate in part.acceptance.per_position]
        length, drafts = part.acceptance.length, part.acceptance.drafts
        interval = f"{low:.2f} to {high:.2f}" if part.groups > 1 else "unknown"
        counts = (f"{count:,}" for count in (drafts, part.prompts, part.output_tokens))
        none = [_NONE] * (result.k - len(rates))
        table.append((part.domain, f"{length:.2f}", interval, *counts, *rates, *none))
    view.print_table(headings, table, right=headings[1:])
    if few := [part.domain for part in result.domains if not part.is_reliable]:
        view.print_status(f"Few drafts, so the length is not reliable: {', '.join(few)}.")
    if result.server.stand_in:
        view.print_status(f"{result.server.stand_in} answers: on AWS the acceptance is another.")


def print_lossless(result: LosslessResult) -> None:
    """How many answers are the same, and the differences."""
    same = result.prompts - len(result.differences)
    verdict = "the same" if result.passed else "not the same"
    view.print_line(
        f"Greedy answers of {result.server} and {result.against} are {verdict}: {same} of "
        f"{result.prompts} equal, {result.tokens:,} tokens compared",
        bold=True,
    )
    if explained := len(result.differences) - len(result.unexplained):
        view.print_line(
            f"Different where the target itself is undecided: {explained}. Its two best log "
            f"probabilities are less than {result.largest_gap:g} apart."
        )
    differences = result.unexplained
    view.print_documents(differences[:5], ("line", "position", "gap", "other_text", "target_text"))
    if differences[5:]:
        view.print_status(f"In --json: {len(differences) - 5} more.")
    if result.refused:
        lines = ", ".join(str(prompt.line) for prompt in result.refused[:10])
        view.print_status(f"Refused by the engine, and left out: line {lines}.")


def summarize_workload(rows: Sequence[BenchRow], slo: Slo | None = None) -> str:
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
    for text in map(crossover_text, crossovers(rows)):
        sentences.append(f"By the fastest repetitions, {text[0].lower()}{text[1:]}")
    if any(is_compiling(row.fastest.low, row.fastest.value) for row in rows if row.is_complete):
        sentences.append("Repetitions differ, as while kernels compile: add --repetitions.")
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
        text = summarize_workload(rows, slo)
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
        message = f"the report needs {error.name}, which is not installed"
        fix = "pip install 'peagle-toolkit[report]'"
        raise UserError(message, fix, "report-missing") from error


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
                "summary": f"{workload.name}: {summarize_workload(rows, slo)}",
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
