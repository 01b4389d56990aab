"""What ``peagle check``, ``fit`` and ``verdict`` print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from rich.text import Text

from peagle import api
from peagle.checks import Rule
from peagle.cli.context import command_text
from peagle.cli.output.console import (
    can_print,
    line_width,
    make_console,
    print_facts,
    print_findings,
    print_line,
    print_table,
)
from peagle.fit.estimate import INSIDE
from peagle.fit.models import Fit
from peagle.fit.report import FitReport
from peagle.planning.engines import PLANNED_GPU_MEMORY_UTILIZATION
from peagle.planning.load import USUAL_CONCURRENCY, USUAL_WORKLOAD
from peagle.speed.decision import crossover_text
from peagle.speed.verdict import NO_SPECULATION, LoadVerdict, SettingSpeed, Verdict, WorkloadVerdict
from peagle.text import format_concurrency, format_usd

if TYPE_CHECKING:
    from peagle.checks.report import CheckReport


_RULE_HEADINGS = ("rule", "about", "rejected by vLLM", "what it prevents")


def print_check(report: CheckReport, seconds: float) -> None:
    """Print the report, which took ``seconds``, on stdout."""
    print_line(f"{click.style(report.pair, bold=True)} on vLLM {report.case.runtime.vllm}\n")
    print_findings(report.findings)
    facts: list[tuple[str, str | tuple[str, str]]] = []
    for checkpoint in report.read:
        headers = "" if checkpoint.tensors is not None else ", no weights there"
        facts.append(("read", f"{checkpoint.location} ({checkpoint.bytes_read:,} bytes{headers})"))
    if report.unread:
        unread = f"the {' and the '.join(report.unread)}: only the catalogue's numbers were checked"
        to_read = command_text(report.read_command)
        facts.append(("not read", (f"{unread}; to read the files", to_read)))
    total = sum(checkpoint.bytes_read for checkpoint in report.read)
    verdict = f"{report.rules} rules in {seconds:.2f} s, {total:,} bytes read: {_verdict(report)}"
    print_facts([*facts, ("checked", verdict)], indent=0, err=False)


def print_rules(rules: Sequence[Rule]) -> None:
    """All rules as a table."""
    rows = ((rule.code, rule.about, rule.vllm_notices, rule.guards) for rule in rules)
    print_table(_RULE_HEADINGS, rows)


def _verdict(report: CheckReport) -> str:
    """``2 errors, 1 note``, or ``nothing wrong`` and what that is limited to."""
    findings = report.findings
    counts = [
        f"{count} {level}{'s' if count > 1 else ''}"
        for level in ("error", "warning", "note")
        if (count := sum(finding.level == level for finding in findings))
    ]
    text = ", ".join(counts)
    if any(finding.level == "error" for finding in findings):
        return text
    if not report.read:
        limit = " in the catalogue's values"
    elif report.unread or any(checkpoint.tensors is None for checkpoint in report.read):
        limit = " in what was read"
    else:
        limit = ""
    return f"no problems found{limit}{f' ({text})' if text else ''}"


_BAR_WIDTH = 60
_BLOCKS, _ASCII = ("█", "░"), ("#", ".")

MEANINGS: dict[str, str] = {
    "kept_by_driver": "memory that the GPU driver reserves",
    "kept_free": "reserved: 1 - gpu-memory-utilization",
    "target_weights": "weights of the target",
    "drafter_weights": "weights of the drafter, which proposes tokens for the target to verify",
    "activations_estimate": "activations of one step of max-num-batched-tokens",
    "logits_estimate": "sampling for max-num-seqs requests, beyond the activations",
    "cuda_graphs_estimate": "CUDA graphs, which speed up small batches",
    "libraries_estimate": "CUDA libraries, and NCCL between GPUs",
    "buffers_estimate": "input buffers of vLLM",
    "kv_cache": "KV cache of all requests: the rest of the memory",
    "cache_of_one_full_request": "one request of max-model-len tokens",
    "cache_padding_in_it": "added to give all layer groups one page size",
    "cache_of_drafter_in_it": "of that, what the drafter's layers add",
    "cache_of_draft_slots": "slots for the K drafted tokens of max-num-seqs requests",
}
"""Term -> what it is."""

_NAMES = {
    "kept_by_driver": "GPU driver",
    "kept_free": "reserved",
    "cache_padding_in_it": "padding",
}
"""Terms that are not shown by their key."""

OPTIONS: dict[str, str] = {
    "max-model-len": "the longest context that fits",
    "k": "fewer drafted tokens",
    "kv-cache-dtype": "an 8-bit KV cache, half the size",
    "gpu-memory-utilization": "a larger share of GPU memory for vLLM",
    "max-num-seqs": "fewer concurrent requests; more are queued",
    "max-num-batched-tokens": "a different --max-num-batched-tokens",
    "tp": "tensor parallelism over more GPUs",
    "no-speculation": "without a drafter",
    "text-only": "no images",
    "enforce-eager": "no CUDA graphs, which makes short steps slower",
    "instance-type": "a different instance type",
}


def print_fit(report: FitReport) -> None:
    """The report on stdout."""
    console = make_console()
    print_line(f"{click.style(report.pair, bold=True)}  {_hardware(report)}")
    print_line(f"{_settings(report)}\n")
    console.print(memory_bar(report.fit, _BAR_WIDTH))
    parts = [part for part in memory_parts(report.fit) if part.gib >= 0.05]
    legend = Text("  ").join(Text(f"{part.name} {part.gib:.1f}", part.style) for part in parts)
    console.print(legend.append(f"  of {report.fit.gpu_memory_gib:.1f} GiB"))
    print_line(f"\n{_fit_text(report)}")
    if report.without_speculation:
        print_line(_cost(report))
    if planned := _planned_values(report):
        print_line(f"plan uses different defaults: {' '.join(planned)}")
    click.echo()
    _print_terms(report.fit)
    print_line("~: an estimate")
    if report.advice:
        print_line("\nAny one of these makes it fit", bold=True)
        holds = "{0.kv_cache_tokens:,} tokens, {0.max_concurrency:.2f} requests"
        rows = ((item.option, OPTIONS[item.knob], holds.format(item)) for item in report.advice)
        print_table(("", "", ""), rows)
    if report.findings:
        print_line("\nFindings", bold=True)
        print_findings(report.findings)


class MemoryPart(NamedTuple):
    """One part of a GPU's memory in pictures and legends; ``style`` is rich's."""

    name: str
    style: str
    gib: float
    meaning: str


def memory_parts(fit: Fit) -> list[MemoryPart]:
    """The parts of one GPU's memory, from left to right; the last one is free."""
    terms = fit.terms
    engine = sum(gib for name, gib in terms.items() if name.endswith("_estimate"))
    free = terms.get("kept_free", 0.0) + terms.get("kept_by_driver", 0.0)
    parts = [
        MemoryPart("target", "cyan", fit.weights_gib, "weights of the target"),
        MemoryPart("drafter", "magenta", fit.drafter_gib, "weights of the drafter"),
        MemoryPart("engine", "yellow", engine, "activations, CUDA graphs and CUDA libraries"),
        MemoryPart("cache", "green", fit.kv_cache_gib, "KV cache"),
        MemoryPart("free", "dim", free, "reserved (1 - gpu_memory_utilization) and driver"),
    ]
    return [part for part in parts if part.gib or part.name != "drafter"]


def memory_bar(fit: Fit, width: int) -> Text:
    """The parts as a bar of ``width`` characters: blocks, or ``#`` and ``.`` if stdout cannot
    encode blocks."""
    full, empty = _BLOCKS if can_print("█░") else _ASCII
    used = memory_parts(fit)[:-1]
    whole = max(fit.gpu_memory_gib, sum(part.gib for part in used))
    text, drawn, filled = Text(), 0, 0.0
    for part in used:
        filled += part.gib
        end = round(width * filled / whole)
        text.append(full * (end - drawn), part.style)
        drawn = end
    return text.append(empty * (width - drawn), "dim")


def _hardware(report: FitReport) -> str:
    engine, memory = report.case.engine, f"{report.fit.gpu_memory_gib:.1f} GiB"
    over = f"{engine.tensor_parallel_size} x " if engine.tensor_parallel_size > 1 else ""
    drafts = f", K={engine.k}" if engine.k else ""
    if report.instance_type:
        where = f"{over}{engine.gpu} ({memory}) of {report.instance_type}"
    else:
        where = f"{over}{memory} (GPU assumed: {engine.gpu})"
    return f"on {where}, vLLM {engine.vllm}{drafts}"


def _settings(report: FitReport) -> str:
    """The engine settings of the estimate, given or the defaults of ``vllm serve``."""
    engine = report.case.engine
    is_auto = engine.kv_cache_dtype == "auto"
    dtype = report.case.target.dtype if is_auto else engine.kv_cache_dtype
    return (
        f"context {engine.max_model_len:,}, "
        f"{format_concurrency(engine.max_num_seqs)}, max-num-batched-tokens "
        f"{engine.max_num_batched_tokens:,}, gpu-memory-utilization "
        f"{engine.gpu_memory_utilization:g}, KV cache {dtype}"
    )


def _planned_values(report: FitReport) -> list[str]:
    """The options, not given here, for which a plan has other defaults than ``vllm serve``."""
    request, engine = report.request, report.case.engine
    values = (
        ("gpu_memory_utilization", PLANNED_GPU_MEMORY_UTILIZATION),
        ("max_num_seqs", USUAL_CONCURRENCY),
    )
    return [
        f"--{name.replace('_', '-')} {value:g}"
        for name, value in values
        if report.planned and getattr(request, name) is None and getattr(engine, name) != value
    ]


def _fit_text(report: FitReport) -> str:
    fit, engine = report.fit, report.case.engine
    if report.refusal:
        return f"does not fit: {report.refusal}"
    return (
        f"fits: the cache holds {fit.kv_cache_tokens:,} tokens, or "
        f"{fit.max_concurrency:.2f} requests of {engine.max_model_len:,} tokens at a time"
    )


def _cost(report: FitReport) -> str:
    without, engine = report.without_speculation, report.case.engine
    assert without is not None
    alone = f"{without.kv_cache_tokens:,} tokens, or {without.max_concurrency:.2f} requests"
    kept = without.concurrency_kept
    if without.max_concurrency < 1:
        return "without speculation it would not fit either"
    if report.refusal or kept is None:
        return f"without speculation the cache would hold {alone}"
    if kept > 1 and not api.schedules_ahead(engine, report.case.drafter):
        cost = (
            f"\n{engine.draftless} drafting disables asynchronous scheduling, so sliding-window "
            "layers cache one step less per request;\nthat costs speed, not memory"
        )
    else:
        reduces = f"reduces capacity by {1 - kept:.0%}" if kept < 0.995 else "hardly reduces it"
        cost = f" speculation {reduces}"
    return f"without speculation it would hold {alone}:{cost}"


def _print_terms(fit: Fit) -> None:
    """Every term with GiB; those inside the cache are indented."""
    terms = fit.terms.items()
    rows = [(_shown(name), gib, MEANINGS[name]) for name, gib in terms if not _is_inside(name)]
    rows.append(("kv cache", fit.kv_cache_gib, MEANINGS["kv_cache"]))
    inside = ((name, gib) for name, gib in terms if _is_inside(name))
    rows += [(f"  {_shown(name)}", gib, MEANINGS[name]) for name, gib in inside]
    shown = ((name, f"{gib:.2f}", meaning) for name, gib, meaning in rows)
    print_table(("term", "GiB", "description"), shown, right=("GiB",))


def _is_inside(name: str) -> bool:
    return name.startswith(INSIDE)


def _shown(name: str) -> str:
    """A term's name as words; a tilde marks an estimate."""
    if name in _NAMES:
        return _NAMES[name]
    words = name.removesuffix("_estimate").removeprefix(INSIDE).replace("_", " ")
    return f"{words} ~" if name.endswith("_estimate") else words


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
    loads = sorted({load for curve in series for load in curve.points})
    values = [value for curve in series for value in curve.points.values()]
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
    for curve in series:
        for (before, start), (after, end) in pairwise(sorted(curve.points.items())):
            left, right = columns[before], columns[after]
            for column in range(left + 1, right):
                share = (column - left) / (right - left)
                grid[row(start + share * (end - start))][column] = dot
    for number, curve in reversed(list(enumerate(series))):
        for load, value in curve.points.items():
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
    legend = (
        f"{marks[n % len(marks)]} {curve.name}" for n, curve in enumerate(series) if curve.points
    )
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
        _print_size(size, verdict.tensor_parallel_size)
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


def _print_size(size: WorkloadVerdict, gpus: int) -> None:
    words = size.name.replace("-", " ")
    hits = f" ({size.workload.cached_text})" if size.cached_prompt_tokens else ""
    tokens = f"{size.prompt_tokens:,} tokens in{hits}, {size.output_tokens:,} out"
    print_line(f"\n{words[:1].upper()}{words[1:]}: {tokens}", bold=True)
    several = any(load.tensor_parallel_size for load in size.loads)
    headings, *rows = _without_empty(
        [_HEADINGS, *(_row(load, gpus, several) for load in size.loads)]
    )
    print_table(headings, rows, right=[heading for heading in headings if heading not in _LEFT])
    for text in _summary(size):
        print_line(text)
    _print_regrets(size)


_HEADINGS = (
    "requests", "GPUs", "best", "tokens/s", "range", "target", "gain", "$/1M", "target $/1M",
    "TTFT", "acceptance", "break-even", "basis",
)  # fmt: skip


def _row(load: LoadVerdict, gpus: int, several: bool) -> tuple[str, ...]:
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
    speeds = (speed for load in size.loads for speed in load.speeds if speed.basis != "unknown")
    if not any(speed.setting.k for speed in speeds):
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
    if not any(len(curve.points) > 1 for curve in series):
        return
    yield ""
    yield click.style("Speedup of the best speculation (none: 1.0), by requests", bold=True)
    yield from draw(series, min(line_width(), 76), 10, baseline=1.0, plain=not can_print("●─"))


def _ratio(load: LoadVerdict) -> float | None:
    alone = load.speed(NO_SPECULATION)
    drafting = [speed for speed in load.speeds if speed.setting.k and speed.tokens_per_second]
    speeds = [speed for speed in drafting if speed.setting == load.best]
    speeds = speeds or [speed for speed in drafting if speed.basis == "measured"] or drafting
    if alone is None or not alone.tokens_per_second or not speeds:
        return None
    return max(speed.tokens_per_second or 0 for speed in speeds) / alone.tokens_per_second
