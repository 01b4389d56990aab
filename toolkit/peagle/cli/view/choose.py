"""What ``peagle check``, ``fit`` and ``verdict`` print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from peagle.checks import Rule
from peagle.cli.context import command_text
from peagle.cli.view.console import (
    bar,
    count_text,
    make_console,
    print_facts,
    print_findings,
    print_line,
    print_table,
    seconds_text,
)
from peagle.findings import errors
from peagle.fit.estimate import INSIDE
from peagle.fit.models import Comparison, Fit
from peagle.fit.report import FitReport
from peagle.planning.engines import PLANNED_GPU_MEMORY_UTILIZATION
from peagle.planning.load import USUAL_CONCURRENCY, USUAL_WORKLOAD
from peagle.planning.verdict import is_covered
from peagle.speed.decision import crossover_text
from peagle.speed.verdict import NO_SPECULATION, LoadVerdict, Verdict, WorkloadVerdict
from peagle.text import format_concurrency, format_usd

if TYPE_CHECKING:
    from peagle.checks.report import CheckReport


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
    print_table(("rule", "about", "rejected by vLLM", "what it prevents"), rows)


def _verdict(report: CheckReport) -> str:
    """``2 errors, 1 note``, or that there are none, and what that is limited to."""
    text = count_text(report.findings)
    if errors(report.findings):
        return text
    limit = ""
    if not report.read:
        limit = " in the catalogue's values"
    elif report.unread or any(checkpoint.tensors is None for checkpoint in report.read):
        limit = " in what was read"
    return f"no problems found{limit}{f'; {text}' if text else ''}"


_BAR_WIDTH = 60

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


def print_fit(report: FitReport) -> None:
    """The report on stdout."""
    engine = report.case.engine
    print_line(f"{click.style(report.pair, bold=True)}  {_hardware(report)}")
    print_line(f"{_settings(report)}\n")
    print_memory(report.fit)
    text = f"does not fit: {report.refusal}"
    print_line(f"\n{text if report.refusal else capacity_text(report.fit, engine.max_model_len)}")
    if report.without_speculation:
        print_line(_cost(report.without_speculation))
    if planned := _planned_values(report):
        print_line(f"plan uses different defaults: {' '.join(planned)}")
    click.echo()
    _print_terms(report.fit)
    holds = "{0.kv_cache_tokens:,} tokens, {0.max_concurrency:.2f} requests"
    rows = [(item.option, holds.format(item)) for item in report.advice]
    print_table(("option", "then the cache holds"), rows, title="Any one of these makes it fit")
    print_findings(report.findings, title="Findings")


def print_memory(fit: Fit) -> None:
    """One GPU's memory on stdout: a bar of its parts, and their GiB."""
    terms, total = fit.terms, fit.gpu_memory_gib
    engine = sum(gib for name, gib in terms.items() if name.endswith("_estimate"))
    parts = {
        "target": (fit.weights_gib, "cyan"),
        "drafter": (fit.drafter_gib, "magenta"),
        "engine": (engine, "yellow"),
        "cache": (fit.kv_cache_gib, "green"),
        "free": (terms.get("kept_free", 0.0) + terms.get("kept_by_driver", 0.0), "dim"),
    }
    *used, _ = parts.values()
    whole = max(total, sum(gib for gib, _ in used))
    console = make_console()
    console.print(bar(((gib / whole, style) for gib, style in used), _BAR_WIDTH))
    shown = ((name, gib, style) for name, (gib, style) in parts.items() if gib >= 0.05)
    legend = Text("  ").join(Text(f"{name} {gib:.1f}", style) for name, gib, style in shown)
    console.print(legend.append(f"  of {total:.1f} GiB"))


def capacity_text(fit: Fit, max_model_len: int, load: int = 0) -> str:
    """Whether it fits, and how many requests of ``max_model_len`` tokens its cache holds; with a
    ``load``, whether these are all of it."""
    if not fit.fits:
        return "does not fit: see the findings"
    requests = f"{fit.max_concurrency:,.2f}"
    part = f", for {requests} of {load:,} requests at full length"
    return (
        f"fits{part if fit.max_concurrency < load else ''}: the KV cache holds "
        f"{fit.kv_cache_tokens:,} tokens, or {requests} requests of {max_model_len:,} tokens"
    )


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


def _cost(without: Comparison) -> str:
    """What the cache holds without speculation, and what speculation costs of it."""
    text = f"without speculation {without.kv_cache_tokens:,} tokens"
    text += f", or {without.max_concurrency:,.2f} requests"
    kept = without.concurrency_kept
    return (
        text if kept is None or kept >= 1 else f"{text}: speculation reduces it by {1 - kept:.0%}"
    )


def _print_terms(fit: Fit) -> None:
    """Every term with GiB, estimates with a tilde; those inside the cache follow it."""
    terms = {**fit.terms, "kv_cache": fit.kv_cache_gib}
    rows = [
        (
            f"{'  ' if name.startswith(INSIDE) else ''}"
            f"{name.replace('_estimate', ' ~').replace('_', ' ')}",
            f"{terms[name]:.2f}",
            meaning,
        )
        for name, meaning in MEANINGS.items()
        if name in terms
    ]
    print_table(("term", "GiB", "description"), rows, right=("GiB",))
    print_line("~: an estimate")


_MOST_REGRETS = 5

_HEADINGS = ("requests", "GPUs", "best", "tokens/s", "range", "gain", "$/1M", "TTFT", "break-even")

_LEGEND = (
    "~: estimated, ?: with an extrapolated acceptance, else measured (the best repetition, or "
    "between those of the loads around); "
    "gain: over the target alone; break-even: tokens per step above which speculation pays, of "
    "those expected"
)


def print_verdict(verdict: Verdict, written: Path | None) -> None:
    """The verdict on stdout; ``written`` is its file, if it has one."""
    gpus = f"{verdict.tensor_parallel_size} x {verdict.gpu}"
    context = f", context {verdict.max_model_len:,}" if verdict.max_model_len else ""
    print_line(f"{verdict.target} on {gpus}, vLLM {verdict.vllm}{context}", bold=True)
    print_line(f"{_price(verdict)}; speeds are of one engine")
    print_line(_LEGEND)
    for size in verdict.workloads:
        _print_size(size, verdict.tensor_parallel_size)
    if verdict.changes:
        print_line("\nWhat would change it", bold=True)
        for change in verdict.changes:
            print_line(f"  - {change.text}")
    if written is not None:
        load = _load_options(verdict)
        command = ("peagle", "plan", verdict.target, *load, "--verdict", str(written))
        print_line("\nPlan with it", command_text(command))
        if shared := verdict.at(USUAL_WORKLOAD, USUAL_CONCURRENCY)[0].shared_prompt_tokens:
            print_line(f"with shared_prompt_tokens: {shared} in peagle.yaml")


def _load_options(verdict: Verdict) -> tuple[str, ...]:
    """Planning options of a load that the verdict covers; empty if it covers the usual one."""
    size, entry = verdict.at(USUAL_WORKLOAD, USUAL_CONCURRENCY)
    if is_covered(size, entry, USUAL_WORKLOAD, USUAL_CONCURRENCY):
        return ()
    sizes = {
        "--concurrency": entry.concurrency,
        "--prompt-tokens": size.prompt_tokens,
        "--output-tokens": size.output_tokens,
        "--cached-prompt-tokens": size.cached_prompt_tokens,
    }
    return tuple(word for flag, value in sizes.items() if value for word in (flag, str(value)))


def _price(verdict: Verdict) -> str:
    price = "price unknown"
    if verdict.usd_per_hour is not None:
        price = f"{format_usd(verdict.usd_per_hour)} per hour in {verdict.region}"
    several = f" ({verdict.gpu_count} GPUs)" if verdict.gpu_count > 1 else ""
    return f"{verdict.instance_type}{several}: {price}"


def _print_size(size: WorkloadVerdict, gpus: int) -> None:
    words = size.name.replace("-", " ").capitalize()
    hits = f" ({size.workload.cached_text})" if size.cached_prompt_tokens else ""
    tokens = f"{size.prompt_tokens:,} tokens in{hits}, {size.output_tokens:,} out"
    several = any(load.tensor_parallel_size for load in size.loads)
    table = [_HEADINGS, *(_row(load, gpus, several) for load in size.loads)]
    columns = [column for column in zip(*table, strict=True) if any(column[1:])]
    headings, *rows = zip(*columns, strict=True)
    right = [heading for heading in headings if heading != "best"]
    print_table(headings, rows, right, title=f"{words}: {tokens}")
    for text in _summary(size):
        print_line(text)
    _print_regrets(size)


def _row(load: LoadVerdict, gpus: int, several: bool) -> tuple[str, ...]:
    """The winner at one load, and the gain of the best drafter over the target alone."""
    best, ratio = load.speed(load.best), _ratio(load)
    engine = str(load.tensor_parallel_size or gpus) if several else ""
    if best is None or best.tokens_per_second is None:
        return (f"{load.concurrency:,}", engine, "unknown", *[""] * (len(_HEADINGS) - 3))
    even = best.break_even_acceptance_length
    mark = " ?" if best.extrapolated else "" if best.basis == "measured" else " ~"
    return (
        f"{load.concurrency:,}",
        engine,
        f"{best.setting.text}{' =' if load.ties else ''}",
        f"{best.tokens_per_second:,.0f}{mark}",
        f"{best.low:,.0f}-{best.high:,.0f}" if best.low and best.high else "",
        "" if ratio is None else f"{100 * ratio - 100:+.0f}%",
        "" if best.usd_per_million_tokens is None else format_usd(best.usd_per_million_tokens),
        _seconds(best.ttft_seconds),
        f"{even:.2f}/{best.acceptance_length:.2f}" if even else "",
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds_text(value)


def _summary(size: WorkloadVerdict) -> Iterator[str]:
    """Where the winner changes, or which one is at least as fast at all loads."""
    if any(load.ties for load in size.loads):
        yield "= ties with others; the simplest is shown."
    yield from map(crossover_text, size.crossovers)
    decided = [load for load in size.loads if load.best]
    alone = [f"{load.concurrency:,}" for load in decided if load.best == NO_SPECULATION]
    if all(_ratio(load) is None for load in size.loads):
        yield "No drafter could be compared: see below."
    elif size.crossovers:
        return
    elif len(alone) == len(decided):
        yield "Speculation does not pay at any of these loads."
    elif alone:
        yield f"Speculation pays, except with {', '.join(alone)} requests, where it is a tie."
    else:
        yield "Speculation pays at all of these loads."


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
        cells = ["-" if regret is None else f"{regret:.0f}" for regret in regrets]
        robust = " (for all loads)" if setting == size.robust else ""
        rows.append((f"  {setting.text if setting else '-'}{robust}", *cells))
    print_table(("% slower than the best at", *loads), rows, right=loads)


def _ratio(load: LoadVerdict) -> float | None:
    alone = load.speed(NO_SPECULATION)
    drafting = [speed for speed in load.speeds if speed.setting.k and speed.tokens_per_second]
    speeds = [speed for speed in drafting if speed.setting == load.best]
    speeds = speeds or [speed for speed in drafting if speed.basis == "measured"] or drafting
    if alone is None or not alone.tokens_per_second or not speeds:
        return None
    return max(speed.tokens_per_second or 0 for speed in speeds) / alone.tokens_per_second
