"""``peagle fit`` as text: a bar of the GPU's memory, every term, and what would make it fit."""

from __future__ import annotations

from typing import NamedTuple

import click
from rich.text import Text

from peagle import api
from peagle.cli.output.console import (
    can_print,
    make_console,
    print_findings,
    print_line,
    print_table,
)
from peagle.fit.estimate import INSIDE
from peagle.fit.models import Fit
from peagle.fit.report import FitReport
from peagle.planning.candidates import PLANNED_GPU_MEMORY_UTILIZATION
from peagle.planning.load import USUAL_CONCURRENCY
from peagle.text import format_concurrency

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


def print_report(report: FitReport) -> None:
    """The report on stdout."""
    console = make_console()
    print_line(f"{click.style(report.pair, bold=True)}  {_hardware(report)}")
    print_line(f"{_settings(report)}\n")
    console.print(memory_bar(report.fit, _BAR_WIDTH))
    parts = [part for part in memory_parts(report.fit) if part.gib >= 0.05]
    legend = Text("  ").join(Text(f"{part.name} {part.gib:.1f}", part.style) for part in parts)
    console.print(legend.append(f"  of {report.fit.gpu_memory_gib:.1f} GiB"))
    print_line(f"\n{_verdict(report)}")
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


def _verdict(report: FitReport) -> str:
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
