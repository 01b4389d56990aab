"""A plan for people: what, where, at what price, how it fits, what is to be said, and why."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from toolkit.cli.console import colour
from toolkit.cli.money import price_words
from toolkit.fit.models import Fit
from toolkit.planning import Plan
from toolkit.planning.models import Speculation

HOURS_A_MONTH = 730
"""As AWS's own price calculator counts."""

_PIPE_WIDTH = 120
"""Columns when nobody's terminal sets the width."""

_BAR_WIDTH = 48


def print_plan(plan: Plan, next_command: str | None = None) -> None:
    """The plan on stdout."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(f"[bold]{escape(plan.pair)}[/]\n")
    console.print(_facts(plan))
    console.print()
    console.print(_fit(plan.fit, plan.max_model_len))
    if plan.findings:
        console.print("\n[bold]Findings[/]")
        console.print(_findings(plan))
    if plan.reasons:
        console.print("\n[bold]Chosen for you[/]")
        console.print(_reasons(plan))
    if next_command:
        console.print(f"\nNext: [bold]{escape(next_command)}[/]", soft_wrap=True)


def price_text(plan: Plan) -> str:
    """The price per hour, day and month of 730 hours."""
    words, hour = price_words(plan.price_per_hour_usd), plan.price_per_hour_usd
    if hour is None:
        return words
    month = f"${hour * HOURS_A_MONTH:,.0f} per month"
    return f"{words}, {month} (list price of {plan.price_date})"


def speculation_text(speculation: Speculation | None) -> str:
    """The method as people call it, and K."""
    if speculation is None:
        return "none"
    names = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "ngram": "n-gram"}
    if speculation.parallel_drafting:
        text = f"P-EAGLE ({speculation.method} with parallel_drafting), K={speculation.k}"
    else:
        text = f"{names.get(speculation.method, speculation.method)}, K={speculation.k}"
    floor = speculation.acceptance_floor
    return text if floor is None else f"{text}; proved from an acceptance length of {floor:g}"


def _facts(plan: Plan) -> Table:
    fit = plan.fit
    table = _grid("bold", "")
    count = f"{plan.instance_count} x {plan.instance_type}"
    gpus = f"{fit.gpu_count} x {fit.gpu}, {fit.gpu_memory_gib:.1f} GiB each"
    facts = {
        "endpoint": f"{plan.name} in {plan.region}",
        "instance": f"{count} ({gpus})",
        "price": price_text(plan),
        "speculation": speculation_text(plan.speculation),
        "context": f"{plan.max_model_len:,} tokens, {plan.concurrency} requests at a time",
        "engine": f"vLLM {plan.runtime.vllm}, CUDA {plan.runtime.cuda}",
        "image": plan.runtime.image,
        "host AMI": plan.runtime.ami or "SageMaker's default",
        "weights": _weights(plan),
    }
    for name, value in facts.items():
        table.add_row(name, escape(value))
    return table


def _weights(plan: Plan) -> str:
    """Where target and drafter come from."""
    parts = [plan.target.weights, plan.drafter.weights if plan.drafter else None]
    how = {"hub": "Hugging Face", "s3": "mounted", "directory": "copied to your bucket"}
    return "; ".join(f"{w.location} ({how[w.kind]})" for w in parts if w is not None)


def _fit(fit: Fit, max_model_len: int) -> Table:
    table = _grid("bold", "")
    size = f", on {fit.tensor_parallel_size} GPUs" if fit.tensor_parallel_size > 1 else ""
    table.add_row("GPU memory", _bar(fit))
    table.add_row(
        "",
        f"[cyan]target {fit.weights_gib:.1f}[/]  [magenta]drafter {fit.drafter_gib:.1f}[/]  "
        f"[yellow]engine {_engine_gib(fit):.1f}[/]  [green]cache {fit.kv_cache_gib:.1f}[/] "
        f" of {fit.gpu_memory_gib:.1f} GiB each{size}",
    )
    holds = f"{fit.max_concurrency:.1f} requests of {max_model_len:,} tokens"
    fits = "[green]fits[/]" if fit.fits else "[red]does not fit[/]"
    table.add_row("", f"{fits}: the cache holds {fit.kv_cache_tokens:,} tokens, or {holds}")
    return table


def _bar(fit: Fit) -> Text:
    parts = (
        ("cyan", fit.weights_gib),
        ("magenta", fit.drafter_gib),
        ("yellow", _engine_gib(fit)),
        ("green", fit.kv_cache_gib),
    )
    whole = max(fit.gpu_memory_gib, sum(gib for _, gib in parts))
    bar, drawn, filled = Text(), 0, 0.0
    for style, gib in parts:
        filled += gib
        upto = round(_BAR_WIDTH * filled / whole)
        bar.append("█" * (upto - drawn), style)
        drawn = upto
    return bar.append("░" * (_BAR_WIDTH - drawn), "dim")


def _engine_gib(fit: Fit) -> float:
    """What the engine itself takes: the estimates among the terms."""
    return sum(gib for name, gib in fit.terms.items() if name.endswith("_estimate"))


def _findings(plan: Plan) -> Table:
    table = _grid("", "")
    for finding in plan.findings:
        level = f"[{colour(finding.level)}]{finding.level}[/]"
        fix = f" [dim]({escape(finding.fix)})[/]" if finding.fix else ""
        table.add_row(level, f"{escape(finding.message)}{fix}")
    return table


def _reasons(plan: Plan) -> Table:
    table = _grid("", "")
    for reason in plan.reasons:
        because = f"[dim]{escape(reason.because)}[/]"
        table.add_row(reason.what, f"{escape(reason.value)}  {because}")
    return table


def _grid(*styles: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for style in styles:
        table.add_column(style=style or None, overflow="fold")
    table.columns[0].no_wrap = True
    return table
