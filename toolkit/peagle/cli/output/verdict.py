"""``peagle verdict`` as text: for each size of requests a table by load, then a chart of them all,
and what would change the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from peagle import api
from peagle.cli.context import command_text
from peagle.cli.output.chart import Series, draw
from peagle.cli.output.console import (
    Row,
    align_columns,
    can_print,
    fit_columns,
    hidden_columns,
    print_line,
    table_width,
    terminal_width,
    wrapped,
)
from peagle.planning.load import USUAL_CONCURRENCY, USUAL_WORKLOAD
from peagle.speed.crossover import crossover_text
from peagle.speed.verdict import (
    NO_SPECULATION,
    LoadVerdict,
    SettingSpeed,
    Verdict,
    WorkloadVerdict,
)
from peagle.text import format_usd

_WIDTH = 120
"""Of a pipe; a terminal has its own."""

_UNKNOWN = "-"
_DISPENSABLE = ("TTFT", "break-even", "acceptance", "target $/1M", "range", "target")
_LEFT = ("best", "basis")
_MOST_REGRETS = 5

_LEGEND = (
    "target: without speculation; acceptance: tokens per step; break-even: the acceptance "
    "above which speculation pays; measured: the best repetition, or between those of the loads "
    "around"
)


def print_verdict(verdict: Verdict, written: Path | None) -> None:
    """The verdict on stdout; ``written`` is its file, if it has one."""
    width = terminal_width(_WIDTH)
    gpus = f"{verdict.tensor_parallel_size} x {verdict.gpu}"
    context = f", context {verdict.max_model_len:,}" if verdict.max_model_len else ""
    print_line(f"{verdict.target} on {gpus}, vLLM {verdict.vllm}{context}", bold=True)
    for text in (f"{price_text(verdict)}; speeds are of one engine", _LEGEND):
        for line in wrapped(text, width):
            click.echo(line)
    for size in verdict.workloads:
        click.echo()
        for line in _of_size(size, verdict.tensor_parallel_size, width):
            click.echo(line)
    for line in _chart(verdict.workloads, width):
        click.echo(line)
    if verdict.changes:
        print_line("\nWhat would change it", bold=True)
        for change in verdict.changes:
            lines = wrapped(change.text, width - 4)
            print_line(
                "\n".join(f"  {'-' if not n else ' '} {line}" for n, line in enumerate(lines))
            )
    if written is not None:
        load = _load_options(verdict)
        command = ("peagle", "plan", verdict.target, *load, "--verdict", str(written))
        print_line("\nPlan with it", command_text(command))


def _load_options(verdict: Verdict) -> tuple[str, ...]:
    """Planning options of a load that the verdict covers; empty if it covers the usual one."""
    size, entry = verdict.at(USUAL_WORKLOAD, USUAL_CONCURRENCY)
    if api.is_covered(size, entry, USUAL_WORKLOAD, USUAL_CONCURRENCY):
        return ()
    sizes = {
        "--concurrency": entry.concurrency,
        "--prompt-tokens": size.prompt_tokens,
        "--output-tokens": size.output_tokens,
        "--cached-prompt-tokens": size.cached_prompt_tokens,
        "--shared-prompt-tokens": size.shared_prompt_tokens,
    }
    return tuple(word for flag, value in sizes.items() if value for word in (flag, str(value)))


def price_text(verdict: Verdict) -> str:
    """``ml.g6e.xlarge: $2.61 per hour in us-east-1``."""
    several = f" ({verdict.gpu_count} GPUs)" if verdict.gpu_count > 1 else ""
    if verdict.usd_per_hour is None:
        return f"{verdict.instance_type}{several}: price unknown"
    price = f"{format_usd(verdict.usd_per_hour)} per hour in {verdict.region}"
    return f"{verdict.instance_type}{several}: {price}"


def _of_size(size: WorkloadVerdict, gpus: int, width: int) -> Iterator[str]:
    words = _words(size.name)
    title = f"{words[:1].upper()}{words[1:]}"
    hits = f" ({size.workload.cached_text})" if size.cached_prompt_tokens else ""
    tokens = f"{size.prompt_tokens:,} tokens in{hits}, {size.output_tokens:,} out"
    yield click.style(f"{title}: {tokens}", bold=True)
    several = any(load.tensor_parallel_size for load in size.loads)
    known = _without_empty([_HEADINGS, *(_row(load, gpus, several) for load in size.loads)])
    rows, hidden = fit_columns(known, width, _DISPENSABLE)
    right = [heading for heading in rows[0] if heading not in _LEFT]
    yield from align_columns(rows, right)
    if hidden:
        yield from wrapped(hidden_columns(hidden), width)
    yield from (line for text in _summary(size) for line in wrapped(text, width))
    yield from _regrets(size, width)


_HEADINGS: Row = (
    "requests", "GPUs", "best", "tokens/s", "range", "target", "gain", "$/1M", "target $/1M",
    "TTFT", "acceptance", "break-even", "basis",
)  # fmt: skip


def _row(load: LoadVerdict, gpus: int, several: bool) -> Row:
    """The winner at one load compared with the target alone; of a winner without speculation,
    the gain is that of the best drafter."""
    number = f"{load.concurrency:,g}"
    best, alone = load.speed(load.best), load.speed(NO_SPECULATION)
    engine = str(load.tensor_parallel_size or gpus) if several else ""
    if best is None:
        return (number, engine, "unknown", *[_UNKNOWN] * (len(_HEADINGS) - 4), "unknown")
    drafts = best.setting.k > 0
    tied = " =" if load.ties else ""
    return (
        number,
        engine,
        f"{best.setting.text}{tied}",
        _count(best.tokens_per_second),
        f"{_count(best.low)}-{_count(best.high)}" if best.low and best.high else _UNKNOWN,
        _count(alone.tokens_per_second if alone else None),
        _gain(best, alone) if drafts else "",
        _money(best.usd_per_million_tokens),
        _money(alone.usd_per_million_tokens if alone else None),
        _seconds(best.ttft_seconds),
        f"{best.acceptance_length:.2f}" if drafts else "",
        f"{best.break_even_acceptance_length:.2f}" if best.break_even_acceptance_length else "",
        f"{best.basis}, extrapolated" if best.extrapolated else best.basis,
    )


def _without_empty(rows: list[Row]) -> list[Row]:
    """The rows without columns in which nothing is known."""
    kept = [
        number
        for number, column in enumerate(zip(*rows[1:], strict=True))
        if any(cell not in ("", _UNKNOWN) for cell in column)
    ]
    return [tuple(row[number] for number in kept) for row in rows]


def _count(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _money(value: float | None) -> str:
    return _UNKNOWN if value is None else format_usd(value)


def _seconds(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def _gain(best: SettingSpeed, alone: SettingSpeed | None) -> str:
    if alone is None or not alone.tokens_per_second or not best.tokens_per_second:
        return _UNKNOWN
    return f"{100 * best.tokens_per_second / alone.tokens_per_second - 100:+.0f}%"


def _summary(size: WorkloadVerdict) -> Iterator[str]:
    """Where the winner changes, and the setting for all loads."""
    if any(load.ties for load in size.loads):
        yield "= ties with others; the simplest is shown."
    yield from map(crossover_text, size.crossovers)
    known = (one for load in size.loads for one in load.speeds if one.basis != "unknown")
    if not any(one.setting.k for one in known):
        yield "No drafter could be compared: see below."
    elif not size.crossovers:
        yield _one_sided(size)


def _one_sided(size: WorkloadVerdict) -> str:
    """The summary where one side is at least as fast at all loads."""
    decided = [load for load in size.loads if load.best]
    alone = [f"{load.concurrency:,}" for load in decided if load.best == NO_SPECULATION]
    if len(alone) == len(decided):
        return "Speculation does not pay at any of these loads."
    if alone:
        return f"Speculation pays, except with {', '.join(alone)} requests, where it is a tie."
    return "Speculation pays at all of these loads."


def _regrets(size: WorkloadVerdict, width: int) -> Iterator[str]:
    """How much slower than the fastest, in percent, the settings that win somewhere are elsewhere,
    and the one for all loads."""
    winners = dict.fromkeys(load.best for load in size.loads if load.best)
    shown = dict.fromkeys([size.robust, *winners] if size.robust else winners)
    if len(shown) < 2:
        return
    loads = tuple(f"{load.concurrency:,g}" for load in size.loads)
    full, short = [("% slower than the best at", *loads)], [("", *loads)]
    for setting in list(shown)[:_MOST_REGRETS]:
        found = [load.speed(setting) for load in size.loads]
        regrets = [one.regret_percent if one else None for one in found]
        cells = [_UNKNOWN if one is None else f"{one:.0f}" for one in regrets]
        is_robust, text = setting == size.robust, setting.text if setting else _UNKNOWN
        full.append((f"  {text}{' (for all loads)' if is_robust else ''}", *cells))
        short.append((f"{'*' if is_robust else ' '} {text}", *cells))
    if table_width(full) <= width:
        yield from align_columns(full, loads)
        return
    yield "% slower than the best at (* for all loads)" if size.robust else full[0][0]
    yield from align_columns(short, loads)


def _words(workload: str) -> str:
    """``short prompt`` for ``short-prompt``."""
    return workload.replace("-", " ")


def _chart(sizes: Iterable[WorkloadVerdict], width: int) -> Iterator[str]:
    """How many times as fast the best drafting setting is, by load, for each size of requests."""
    series = []
    for size in sizes:
        points: dict[float, float] = {
            load.concurrency: ratio for load in size.loads if (ratio := _ratio(load)) is not None
        }
        series.append(Series(_words(size.name), points))
    if not any(len(one.points) > 1 for one in series):
        return
    yield ""
    yield click.style("Speedup of the best speculation (none: 1.0), by requests", bold=True)
    yield from draw(series, min(width, 76), 10, baseline=1.0, plain=not can_print("●─"))


def _ratio(load: LoadVerdict) -> float | None:
    alone = load.speed(NO_SPECULATION)
    drafting = [one for one in load.speeds if one.setting.k and one.tokens_per_second]
    known = [one for one in drafting if one.setting == load.best]
    known = known or [one for one in drafting if one.basis == "measured"] or drafting
    if alone is None or not alone.tokens_per_second or not known:
        return None
    return max(one.tokens_per_second or 0 for one in known) / alone.tokens_per_second
