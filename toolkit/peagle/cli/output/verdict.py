"""``peagle verdict`` as text: for each size of requests a table by load, then a chart of them all,
and what would change the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from peagle import api
from peagle.cli.context import command_text
from peagle.cli.output.chart import Series, draw
from peagle.cli.output.console import can_print, line_width, print_line, print_table
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

_UNKNOWN = "-"
_LEFT = ("best", "basis")
_MOST_REGRETS = 5

_LEGEND = (
    "target: without speculation; acceptance: tokens per step; break-even: the acceptance "
    "above which speculation pays; measured: the best repetition, or between those of the loads "
    "around"
)


def print_verdict(verdict: Verdict, written: Path | None) -> None:
    """The verdict on stdout; ``written`` is its file, if it has one."""
    gpus = f"{verdict.tensor_parallel_size} x {verdict.gpu}"
    context = f", context {verdict.max_model_len:,}" if verdict.max_model_len else ""
    print_line(f"{verdict.target} on {gpus}, vLLM {verdict.vllm}{context}", bold=True)
    print_line(f"{price_text(verdict)}; speeds are of one engine")
    print_line(_LEGEND)
    for size in verdict.workloads:
        _print_size(size)
    for line in _chart(verdict.workloads):
        click.echo(line)
    if verdict.changes:
        print_line("\nWhat would change it", bold=True)
        for change in verdict.changes:
            print_line(f"  - {change.text}")
    if written is not None:
        load = _load_options(verdict)
        command = ("peagle", "plan", verdict.target, *load, "--verdict", str(written))
        print_line("\nPlan with it", command_text(command))


def _load_options(verdict: Verdict) -> tuple[str, ...]:
    """Planning options of a load that the verdict covers; empty if it covers the usual one."""
    size, entry = verdict.at(USUAL_WORKLOAD, USUAL_CONCURRENCY)
    if api.is_covered(size, entry, USUAL_WORKLOAD, USUAL_CONCURRENCY):
        return ()
    tokens = ("--prompt-tokens", str(size.prompt_tokens), "--output-tokens")
    cached = size.cached_prompt_tokens
    hits = ("--cached-prompt-tokens", str(cached)) if cached else ()
    return ("--concurrency", str(entry.concurrency), *tokens, str(size.output_tokens), *hits)


def price_text(verdict: Verdict) -> str:
    """``ml.g6e.xlarge: $2.61 per hour in us-east-1``."""
    several = f" ({verdict.gpu_count} GPUs)" if verdict.gpu_count > 1 else ""
    if verdict.usd_per_hour is None:
        return f"{verdict.instance_type}{several}: price unknown"
    price = f"{format_usd(verdict.usd_per_hour)} per hour in {verdict.region}"
    return f"{verdict.instance_type}{several}: {price}"


def _print_size(size: WorkloadVerdict) -> None:
    words = size.name.replace("-", " ")
    cached = size.cached_prompt_tokens
    hits = f" ({cached:,} of them cached)" if cached else ""
    tokens = f"{size.prompt_tokens:,} tokens in{hits}, {size.output_tokens:,} out"
    print_line(f"\n{words[:1].upper()}{words[1:]}: {tokens}", bold=True)
    headings, *rows = _without_empty([_HEADINGS, *map(_row, size.loads)])
    print_table(headings, rows, right=[one for one in headings if one not in _LEFT])
    for text in _summary(size):
        print_line(text)
    _print_regrets(size)


_HEADINGS = (
    "requests", "best", "tokens/s", "range", "target", "gain", "$/1M", "target $/1M", "TTFT",
    "acceptance", "break-even", "basis",
)  # fmt: skip


def _row(load: LoadVerdict) -> tuple[str, ...]:
    """The winner at one load compared with the target alone; of a winner without speculation,
    the gain is that of the best drafter."""
    number = f"{load.concurrency:,g}"
    best, alone = load.speed(load.best), load.speed(NO_SPECULATION)
    if best is None:
        return (number, "unknown", *[_UNKNOWN] * (len(_HEADINGS) - 3), "unknown")
    drafts = best.setting.k > 0
    tied = " =" if load.ties else ""
    return (
        number,
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


def _without_empty(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
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


def _print_regrets(size: WorkloadVerdict) -> None:
    """How much slower than the fastest, in percent, the settings that win somewhere are elsewhere,
    and the one for all loads."""
    winners = dict.fromkeys(load.best for load in size.loads if load.best)
    settings = dict.fromkeys([size.robust, *winners] if size.robust else winners)
    if len(settings) < 2:
        return
    loads = tuple(f"{load.concurrency:,g}" for load in size.loads)
    rows = []
    for setting in list(settings)[:_MOST_REGRETS]:
        speeds = [load.speed(setting) for load in size.loads]
        regrets = [speed.regret_percent if speed else None for speed in speeds]
        cells = [_UNKNOWN if regret is None else f"{regret:.0f}" for regret in regrets]
        robust = " (for all loads)" if setting == size.robust else ""
        rows.append((f"  {setting.text if setting else _UNKNOWN}{robust}", *cells))
    print_table(("% slower than the best at", *loads), rows, right=loads)


def _chart(sizes: Iterable[WorkloadVerdict]) -> Iterator[str]:
    """How many times as fast the best drafting setting is, by load, for each size of requests."""
    series = []
    for size in sizes:
        points: dict[float, float] = {
            load.concurrency: ratio for load in size.loads if (ratio := _ratio(load)) is not None
        }
        series.append(Series(size.name.replace("-", " "), points))
    if not any(len(one.points) > 1 for one in series):
        return
    yield ""
    yield click.style("Speedup of the best speculation (none: 1.0), by requests", bold=True)
    yield from draw(series, min(line_width(), 76), 10, baseline=1.0, plain=not can_print("●─"))


def _ratio(load: LoadVerdict) -> float | None:
    alone = load.speed(NO_SPECULATION)
    drafting = [one for one in load.speeds if one.setting.k and one.tokens_per_second]
    known = [one for one in drafting if one.setting == load.best]
    known = known or [one for one in drafting if one.basis == "measured"] or drafting
    if alone is None or not alone.tokens_per_second or not known:
        return None
    return max(one.tokens_per_second or 0 for one in known) / alone.tokens_per_second
