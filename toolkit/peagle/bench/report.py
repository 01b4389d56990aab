"""The report of a benchmark as one HTML file: a summary, plots, and tables of all numbers. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from peagle.bench import compare
from peagle.bench.chart import CSS, Chart, draw
from peagle.bench.html import Html, element, joined, page, table
from peagle.bench.models import BenchResult, BenchRow, BenchSetting, BenchWorkload, Times
from peagle.bench.plots import Plots
from peagle.speed.slo import Slo
from peagle.text import format_usd

LARGEST_REPORT = 1_000_000
"""Bytes of a report; the table of all numbers ends before it would be larger."""

CONFIDENCE = "the 95 % confidence interval of the repetitions"
"""What ``Interval`` holds in a result of ``peagle bench``."""

_AMOUNTS = ((1_000, 8), (500, 8), (200, 4), (50, 1), (0, 0))
"""Rows of each table and workloads with plots: the first that keep the report small enough."""

_MOST_WORKLOADS = 50
_NONE = "-"
_STYLE = CSS + Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def report(result: BenchResult, slo: Slo | None = None, intervals: str = CONFIDENCE) -> str:
    """The report as a document of at most ``LARGEST_REPORT`` bytes.

    ``intervals`` says what low and high of a speed are.
    """
    for amount in _AMOUNTS:
        text = page(_title(result), _STYLE, _body(result, slo, intervals, amount))
        if len(text.encode()) <= LARGEST_REPORT:
            break
    return text


def _title(result: BenchResult) -> str:
    return f"{result.server.pair or result.server.model or result.server.name}: speed and cost"


def _body(result: BenchResult, slo: Slo | None, intervals: str, amount: tuple[int, int]) -> Html:
    most_rows, most_plots = amount
    workloads = compare.workloads(result.rows)
    parts = [element("h1", _title(result)), element("p", _subtitle(result), class_="soft")]
    parts += _summary(result, workloads, slo)
    figures = _Figures(result, intervals)
    for number, workload in enumerate(workloads[:_MOST_WORKLOADS]):
        rows = [row for row in result.rows if row.load.workload == workload]
        parts.append(element("h2", workload_text(workload)))
        if number < most_plots:
            parts.append(figures.of_workload(rows, slo))
        parts.append(_fastest(rows, most_rows))
    parts += _acceptance(result.rows, figures)
    parts += [_all_numbers(result.rows, intervals, most_rows), _method(result, intervals)]
    return element("main", *parts)


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


def _summary(
    result: BenchResult, workloads: Sequence[BenchWorkload], slo: Slo | None
) -> Iterator[Html]:
    for workload in workloads:
        rows = [row for row in result.rows if row.load.workload == workload]
        name = [element("strong", workload.name), Html(": ")] if workloads[1:] else []
        text = compare.summary_of(rows, result.usd_per_hour)
        text += f" {compare.slo_summary(rows, slo)}" if slo else ""
        yield element("p", *name, text, class_="summary")
    if not workloads:
        yield element("p", "Nothing was measured.", class_="summary")
    imposed = [row for row in result.rows if _is_imposed(row)]
    if imposed:
        yield element(
            "p",
            "Acceptance was imposed by vLLM's synthetic sampler, not measured on text: on other "
            "text the speeds with speculation differ.",
        )
    if result.incomplete:
        yield element("p", f"The benchmark ended early: {result.incomplete}", role="note")


def workload_text(workload: BenchWorkload) -> str:
    """Name and size of the workload's requests."""
    prompt, answer = workload.size.prompt_tokens, workload.size.output_tokens
    size = f"{prompt:,} prompt tokens, " if prompt else ""
    limit = "" if workload.fixed_length else "up to "
    return f"{workload.name} ({size}{limit}{answer:,} output tokens)"


class _Figures:
    """Draws the plots; each has a number, which makes its ids unique."""

    def __init__(self, result: BenchResult, intervals: str) -> None:
        self._plots = Plots(result.rows, intervals)
        self._number = 0

    def of_workload(self, rows: Sequence[BenchRow], slo: Slo | None) -> Html:
        return self._drawn(self._plots.of_workload(rows, slo))

    def acceptance(self, curves: Sequence[tuple[BenchSetting, tuple[float, ...]]]) -> Html:
        return self._drawn([self._plots.acceptance(curves)])

    def _drawn(self, charts: Iterable[Chart]) -> Html:
        figures = []
        for one in charts:
            self._number += 1
            picture = Html(draw(one, self._number))
            figures.append(element("figure", element("figcaption", one.title), picture))
        return element("div", *figures, class_="plots")


def _fastest(rows: Sequence[BenchRow], most: int) -> Html:
    """The table of the fastest setting at each load of one workload."""

    def line(one: compare.Winner) -> tuple[str, ...]:
        second = one.second
        return (
            f"{one.load:,}",
            one.best.setting.text,
            second.setting.text if second else _NONE,
            ("yes" if one.clear else "intervals overlap") if second else _NONE,
            f"{one.best.tokens_per_second.value:,.0f}",
            f"{one.gain:.2f}" if one.gain is not None else _NONE,
            _usd(one.best.usd_per_million_tokens),
            f"{second.tokens_per_second.value:,.0f}" if second else _NONE,
        )

    headings = (
        "requests", "fastest", "next", "clear", "tokens/s", "times no speculation", "$/1M",
        "next, tokens/s",
    )  # fmt: skip
    return table(
        "Fastest setting at each load", headings, map(line, compare.winners(rows)[:most]), 4
    )


def _acceptance(rows: Sequence[BenchRow], figures: _Figures) -> Iterator[Html]:
    measured: dict[BenchSetting, BenchRow] = {}
    for row in rows:
        if row.acceptance and row.setting.k:
            measured.setdefault(row.setting, row)
    if not measured:
        return
    yield element("h2", "Acceptance")
    chosen = [measured[one] for one in compare.settings(measured.values())]
    curves = [(row.setting, rates) for row in chosen if (rates := _rates(row))]
    if curves:
        yield figures.acceptance(curves)
    positions = max((len(rates) for _, rates in curves), default=0)
    body: list[list[str]] = []
    for row in chosen:
        shares = [f"{rate:.1%}" for rate in _rates(row)]
        body.append([row.setting.text, *_counted(row), *shares, *[""] * (positions - len(shares))])
    headings = ["setting", "basis", "tokens per step", "drafts"]
    headings += [f"position {at}" for at in range(1, positions + 1)]
    yield table("Acceptance of each setting, at its first measured load", headings, body, 2)


def _counted(row: BenchRow) -> tuple[str, str, str]:
    """Basis, length, and the number of drafts."""
    if row.acceptance is None:
        return _NONE, _NONE, _NONE
    found = row.acceptance
    basis = "imposed" if _is_imposed(row) else found.basis
    return basis, f"{found.length:.2f}", f"{found.drafts:,}" if found.drafts else _NONE


def _is_imposed(row: BenchRow) -> bool:
    basis = row.acceptance.basis if row.acceptance else None
    return bool(row.setting.imposed_rates) or basis == "imposed"


def _rates(row: BenchRow) -> tuple[float, ...]:
    """The share accepted at each position: as counted, else as imposed."""
    counted = row.acceptance.per_position if row.acceptance else ()
    return counted or row.setting.imposed_rates


def _all_numbers(rows: Sequence[BenchRow], intervals: str, most: int) -> Html:
    times = ("TTFT", "ITL", "TPOT")
    headings = (
        "workload", "setting", "notes", "requests", "tokens/s", "low", "high", "repetitions",
        "tokens per step", "$/1M",
        *(f"{name} {what}" for name in times for what in ("mean", "p50", "p90", "p99")),
    )  # fmt: skip
    body = map(_numbers, rows[:most])
    caption = f"All numbers: low and high are {intervals}, times are in milliseconds"
    left_out = len(rows) - most
    note = f"{left_out:,} more rows are in the result file." if left_out > 0 else ""
    parts = [element("h2", "All numbers"), table(caption, headings, body, 3)]
    return joined([*parts, *([element("p", note)] if note else [])])


def _numbers(row: BenchRow) -> tuple[str, ...]:
    speed = row.tokens_per_second
    errors = f"{len(row.errors):,} failed requests" if row.errors else ""
    notes = "; ".join(filter(None, (row.saturated, row.incomplete, errors)))
    return (
        row.load.workload.name,
        row.setting.text,
        notes[:200] or _NONE,
        f"{row.load.concurrency:,}",
        f"{speed.value:,.1f}",
        f"{speed.low:,.1f}",
        f"{speed.high:,.1f}",
        f"{row.load.repetitions:,}",
        _counted(row)[1],
        _usd(row.usd_per_million_tokens),
        *_milliseconds(row.ttft),
        *_milliseconds(row.itl),
        *_milliseconds(row.tpot),
    )


def _milliseconds(times: Times | None) -> tuple[str, ...]:
    if times is None or not compare.known(times):
        return (_NONE,) * 4
    return tuple(f"{1000 * one:,.1f}" for one in (times.mean, times.p50, times.p90, times.p99))


def _usd(usd: float | None) -> str:
    return _NONE if usd is None else format_usd(usd, 3)


def _method(result: BenchResult, intervals: str) -> Html:
    server = result.server
    price = (
        f"{format_usd(result.usd_per_hour)} per hour, {result.price_source or 'source unknown'}"
        if result.usd_per_hour is not None
        else "unknown"
    )
    facts = (
        ("model", f"{server.pair or server.model} at {server.base_url or server.name}"),
        ("engine", f"vLLM {server.vllm}" if server.vllm else "unknown"),
        ("load from", " ".join(result.sender).strip()),
        ("toolkit", f"peagle-toolkit {result.toolkit}" if result.toolkit else ""),
        ("host", _host(result)),
        ("measured", result.started),
        ("price", price),
        ("intervals", intervals),
    )
    pairs = (
        part for name, text in facts if text for part in (element("dt", name), element("dd", text))
    )
    command = element("dd", element("code", shlex.join(result.command)))
    inner = element("dl", *pairs, element("dt", "command"), command)
    return joined([element("h2", "How it was measured"), inner])


def _host(result: BenchResult) -> str:
    host = result.host
    cpus = f"{host.cpus} CPUs" if host.cpus else ""
    python = f"Python {host.python}" if host.python else ""
    return ", ".join(part for part in (host.cpu, cpus, host.system, python) if part)
