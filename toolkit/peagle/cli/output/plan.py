"""``peagle plan --verbose``: facts, GPU memory, best instances, findings, decisions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from peagle.cli.output.answer import (
    is_planned,
    is_priced,
    speed_of_plan,
    times_text,
)
from peagle.cli.output.console import (
    Row,
    fit_columns,
    hidden_columns,
    indented,
    make_console,
    print_findings,
)
from peagle.cli.output.fit import memory_bar, memory_parts
from peagle.cli.output.plan_facts import (
    company_facts,
    licences_text,
    observability_facts,
    pinned_text,
    price_text,
    proof_text,
    scaling_text,
    speculation_text,
)
from peagle.fit.estimate import INSIDE
from peagle.planning import Plan
from peagle.planning.plan import Alternative, SpeedEstimate
from peagle.planning.rollout import cost_text
from peagle.text import format_concurrency, format_requests, json_object

UNKNOWN = "unknown"
"""The text for a speed that is neither measured nor estimated."""

_DIM = (UNKNOWN, "-")

HEADINGS = (
    "",
    "instances",
    "GPUs each",
    "USD/hour",
    "requests",
    "drafter, K",
    "tokens/s",
    "USD/1M",
)
_LEFT = HEADINGS[:3]
_DISPENSABLE = ("GPUs each", "USD/1M", "tokens/s")
"""Columns to drop on a narrow terminal, in this order."""

LEGEND = (
    "*: planned. requests: full-length requests that fit in the KV cache. "
    "tokens/s: total output. USD/1M: per million output tokens. -: unknown."
)

MEANINGS: dict[str, str] = {
    "--model": "the target: a Hugging Face id, folder or s3:// prefix",
    "--revision": "revision of the weights",
    "--load-format": "how weights are loaded; runai_streamer reads them from S3 in parallel",
    "--served-model-name": "the model name in requests",
    "--max-model-len": "longest context, prompt and output together, in tokens",
    "--max-num-seqs": "concurrent requests; excess requests queue",
    "--tensor-parallel-size": "GPUs that share one copy of the model",
    "--gpu-memory-utilization": "share of each GPU's memory that the engine may use",
    "--kv-cache-dtype": "data type of the KV cache; fp8 takes half the memory of 16 bits",
    "--dtype": "data type of weights and activations",
    "--enforce-eager": "no CUDA graphs and no compilation: starts sooner, runs slower",
    "--max-num-batched-tokens": "most tokens per step; longer prompts are split into chunks",
    "--max-cudagraph-capture-size": "largest batch with a CUDA graph",
    "--block-size": "tokens per block of the KV cache",
    "--stream-interval": "tokens per chunk of a streamed response",
    "--enable-prefix-caching": "reuses the KV cache of common prompt prefixes",
    "--no-enable-prefix-caching": "disables prefix caching",
    "--async-scheduling": "schedules the next step while the GPU computes",
    "--no-async-scheduling": "schedules the next step after the GPU has finished",
    "--trust-remote-code": "runs Python code from the model repository",
    "--enable-auto-tool-choice": "the model decides whether it calls one of the request's tools",
    "--tool-call-parser": "reads the model's tool calls",
    "--reasoning-parser": "tells the model's reasoning from its answer",
    "--speculative-config": "speculation: a drafter proposes tokens, the target verifies them",
}
"""Argument -> its meaning."""

SPECULATION: dict[str, str] = {
    "method": "how tokens are drafted",
    "model": "the drafter: a Hugging Face id, folder or s3:// prefix",
    "revision": "revision of the weights",
    "num_speculative_tokens": "K, the tokens drafted per step",
    "parallel_drafting": "P-EAGLE: drafts all K tokens in one pass",
    "prompt_lookup_max": "longest n-gram to look up in the prompt",
    "prompt_lookup_min": "shortest n-gram to look up",
}
"""Key of ``--speculative-config`` -> its meaning."""

BEST_INSTANCES = "Best instances for this load"
_BAR_WIDTH = 48
_INDENT = len("GPU memory") + 2
_FACTS = len("speculation") + 2


def instances_table(plan: Plan, width: int) -> Table:
    """One line for each of the best instances, and for the planned one, marked with a star."""
    rows, _ = _fitted(plan, width)
    table = Table.grid(padding=(0, 2))
    for heading in rows[0]:
        table.add_column(justify="left" if heading in _LEFT else "right", no_wrap=True)
    table.add_row(*(Text(heading, "dim") for heading in rows[0]))
    for row in rows[1:]:
        table.add_row(*(Text(cell, "dim" if cell in _DIM else "") for cell in row))
    return table


def _fitted(plan: Plan, width: int) -> tuple[list[Row], Row]:
    """The rows of the table that fit, and the headings of the dropped columns."""
    instances = [*plan.alternatives]
    if not any(is_planned(plan, one) for one in instances):
        instances.insert(0, _own(plan))
    return fit_columns([HEADINGS, *(_row(plan, one) for one in instances)], width, _DISPENSABLE)


def _own(plan: Plan) -> Alternative:
    fit, speed = plan.fit, plan.speed or _NO_SPEED
    return Alternative(
        **dict(speed),
        instance_type=plan.instance_type,
        instance_count=plan.instance_count,
        copies=plan.copies.per_instance if plan.copies else None,
        gpu=fit.gpu,
        tensor_parallel_size=fit.tensor_parallel_size,
        price_per_hour_usd=plan.price_per_hour_usd,
        max_concurrency=fit.max_concurrency,
        kv_cache_tokens=fit.kv_cache_tokens,
        drafter=plan.drafter.name if plan.drafter else None,
        k=plan.speculation.k if plan.speculation else 0,
        verified=speed.tokens_per_second is not None,
        speed_source=speed.source,
    )


_NO_SPEED = SpeedEstimate(
    tokens_per_second=None,
    low=None,
    high=None,
    basis="unknown",
    ttft_seconds=None,
    itl_seconds=None,
    usd_per_million_tokens=None,
    acceptance_length=None,
    acceptance_basis="unknown",
    source="a plan of an earlier version",
)


def _row(plan: Plan, one: Alternative) -> tuple[str, ...]:
    speed = one.tokens_per_second
    return (
        "*" if is_planned(plan, one) else "",
        f"{one.instance_count} x {one.instance_type}".removeprefix("1 x "),
        f"{f'{one.copies} x ' if one.copies else ''}{one.tensor_parallel_size} x {one.gpu}",
        _dollars(one.price_per_hour_usd),
        f"{one.max_concurrency * one.engines:,.1f}",
        f"{one.drafter} K={one.k}" if one.drafter else "none",
        UNKNOWN if speed is None else f"{speed:,.0f} {one.basis}",
        _dollars(one.usd_per_million_tokens),
    )


def _dollars(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.2f}"


def print_details(plan: Plan) -> None:
    """The whole plan on stdout, after its answer; the findings only, where it has no price."""
    console = make_console()
    if not is_priced(plan):
        print_findings(console, plan.findings)
        return
    console.print(f"\n[bold]{escape(plan.pair)}[/]\n")
    for name, value in _facts(plan).items():
        text = indented(value, console.width, _FACTS)
        console.print(f"[bold]{name:<{_FACTS}}[/]{escape(text)}", soft_wrap=True)
    console.print()
    console.print(_memory(plan))
    if plan.alternatives:
        console.print(f"\n[bold]{BEST_INSTANCES}[/]")
        console.print(instances_table(plan, console.width))
        if hidden := hidden_columns(_fitted(plan, console.width)[1]):
            console.print(f"[dim]{hidden}[/]")
        console.print(f"[dim]{LEGEND}[/]")
    if plan.findings:
        console.print("\n[bold]Findings[/]")
        print_findings(console, plan.findings)
    for title, section in (("Engine arguments", _arguments(plan)), ("Decisions", _reasons(plan))):
        console.print(f"\n[bold]{title}[/]")
        console.print(section)


def _facts(plan: Plan) -> dict[str, str]:
    fit = plan.fit
    count = f"{plan.instance_count} x {plan.instance_type}"
    gpus = f"{fit.gpu_count} x {fit.gpu}, {fit.gpu_memory_gib:.1f} GiB each"
    if plan.copies is not None:
        gpus += f"; {plan.copies.per_instance} copies with {plan.copies.gpus} of them each"
    return {
        "endpoint": f"{plan.name} in {plan.region}",
        "instance": f"{count} ({gpus})",
        "price": price_text(plan),
        **scaling_text(plan),
        "speculation": speculation_text(plan.speculation),
        "proof": proof_text(plan),
        "speed": _speed(plan),
        "context": f"{plan.max_model_len:,} tokens, {format_concurrency(plan.concurrency)}",
        "engine": f"vLLM {plan.runtime.vllm}, CUDA {plan.runtime.cuda}",
        "image": plan.runtime.image,
        "host AMI": plan.runtime.ami or "SageMaker's default",
        "weights": _weights(plan),
        "licences": licences_text(plan),
        **pinned_text(plan),
        **({"rollout": cost_text(plan.rollout)} if plan.rollout else {}),
        **observability_facts(plan),
        **company_facts(plan.company),
    }


def _speed(plan: Plan) -> str:
    """Speed and cost with their source."""
    speed = plan.speed or _NO_SPEED
    text = speed_of_plan(plan, speed, plan.price_per_hour_usd)
    times = times_text(speed)
    return text if speed.basis == "unknown" else f"{text}{times}; {speed.source}"


def _weights(plan: Plan) -> str:
    parts = [plan.target.weights, plan.drafter.weights if plan.drafter else None]
    how = {
        "hub": "Hugging Face",
        "s3": "mounted",
        "directory": "uploaded to your bucket",
        "image": "baked into the image",
    }
    return "; ".join(
        f"{w.location} ({'streamed by the engine' if w.streamed else how[w.kind]})"
        for w in parts
        if w is not None
    )


def _memory(plan: Plan) -> Table:
    fit = plan.fit
    table = _grid("bold", "")
    table.add_row("GPU memory", memory_bar(fit, _BAR_WIDTH))
    legend = Table.grid(padding=(0, 2))
    for side in ("left", "right", "left"):
        legend.add_column(justify="right" if side == "right" else "left")
    for part in memory_parts(fit):
        name, meaning = f"[{part.style}]{part.name}[/]", f"[dim]{part.meaning}[/]"
        legend.add_row(name, f"{part.gib:.1f} GiB", meaning)
    table.add_row("", legend)
    table.add_row("", _verdict(plan))
    return table


def _verdict(plan: Plan) -> str:
    """Whether it fits, and how much of the load; else the memory that it needs."""
    fit, length = plan.fit, plan.max_model_len
    if not fit.fits:
        needed = sum(gib for name, gib in fit.terms.items() if not name.startswith(INSIDE))
        needed += fit.terms["cache_of_one_full_request"]
        if needed <= fit.gpu_memory_gib:
            return "[red]does not fit[/]: see the findings"
        return (
            f"[red]does not fit[/]: one request of {length:,} tokens needs {needed:.1f} GiB of the "
            f"GPU's {fit.gpu_memory_gib:.1f} GiB"
        )
    load = -(-plan.concurrency // plan.engines)
    size = f", on {fit.tensor_parallel_size} GPUs" if fit.tensor_parallel_size > 1 else ""
    holds = f"the KV cache holds {fit.kv_cache_tokens:,} tokens"
    if fit.max_concurrency >= load:
        full = f"{fit.max_concurrency:,.1f} requests of {length:,} tokens"
        return f"[green]fits[/]{size}: {holds}, or {full}"
    part = f"for {fit.max_concurrency:,.1f} of the {format_requests(load)} at full length"
    return f"[yellow]fits, {part}[/]{size}: {holds}"


def _arguments(plan: Plan) -> Table:
    """Every argument with its meaning, and why the catalogue sets it."""
    because = {reason.what: reason.because for reason in plan.reasons}
    table = _grid("", "")
    for name, value, meaning in explain(plan.engine_arguments):
        shown = f"[bold]{escape(value)}[/]  " if value else ""
        texts = filter(None, (meaning, because.get(name)))
        indent = "" if name.startswith("--") else "  "
        table.add_row(f"{indent}{name}", f"{shown}[dim]{escape('; '.join(texts))}[/]")
    return table


def explain(arguments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Name, value and meaning ("" if unknown) of vLLM's arguments and speculation keys."""
    for flag, after in zip(arguments, [*arguments[1:], "--"], strict=True):
        if flag == "--speculative-config":
            yield flag, "", MEANINGS[flag]
            for key, value in json_object(after).items():
                shown = value if isinstance(value, str) else json.dumps(value)
                yield key, shown, SPECULATION.get(key, "")
        elif flag.startswith("--"):
            yield flag, "" if after.startswith("--") else after, MEANINGS.get(flag, "")


def _reasons(plan: Plan) -> Table:
    """Every decision with its reason, except those shown beside the arguments."""
    table = _grid("", "")
    shown = {name for name, _, _ in explain(plan.engine_arguments)}
    for reason in plan.reasons:
        if reason.what not in shown:
            because = f"[dim]{escape(reason.because)}[/]"
            table.add_row(reason.what, f"{escape(reason.value)}  {because}")
    return table


def _grid(*styles: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for style in styles:
        table.add_column(style=style or None, overflow="fold")
    table.columns[0].no_wrap = True
    return table
