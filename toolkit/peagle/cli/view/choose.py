"""What ``peagle catalog``, ``check``, ``fit`` and ``verdict`` print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peagle.catalog.tables import HERE
from peagle.cli import view
from peagle.cli.context import command_text
from peagle.fit.estimate import INSIDE, Fit
from peagle.planning.load import USUAL_CONCURRENCY, USUAL_WORKLOAD
from peagle.speed.ranking import NO_SPECULATION
from peagle.text import format_concurrency, format_usd

if TYPE_CHECKING:  # a list must not import boto3, nor a plan the types of verdicts
    from peagle.aws.refresh import Change
    from peagle.checks.report import CheckReport
    from peagle.fit.report import FitReport
    from peagle.speed.verdict import LoadVerdict, Verdict, VerdictCrossover, WorkloadVerdict


_COLUMNS = ("", "drafter", "method", "K", "vLLM", "licence", "evidence")


def print_list(targets: Sequence[dict[str, Any]]) -> None:
    """One block per target, one line per drafter; ``*`` marks the default."""
    for target in targets:
        name = click.style(f"{target['short_name']} ({target['id']})", bold=True)
        view.print_line(f"{name}  vLLM {target['min_vllm']} or later, {target['licence']}")
        view.print_table(_COLUMNS, _rows(target), whole=("drafter", "K"))
    view.print_line("* marks the default. K: recommended tokens per step, of those trained.")
    show = ("peagle", "catalog", "show", "TARGET+DRAFTER")
    view.print_line("Details of a pair", command_text(show))


def print_pair(document: dict[str, Any], target: dict[str, Any]) -> None:
    """Everything about a pair, and a table of the target's drafters."""
    entry = {key: value for key, value in document["target"].items() if key != "drafters"}
    view.print_document({**document, "target": entry})
    view.print_table(_COLUMNS, _rows(target), title="All drafters", whole=("drafter", "K"))


def print_changes(changes: Sequence[Change]) -> None:
    """One line per change; prices that AWS confirms are only counted."""
    new = [change for change in changes if not change.confirmed]
    view.print_documents(new, ("file", "entry", "key", "before", "after"))
    if confirmed := len(changes) - len(new):
        view.print_line(f"{confirmed} prices are unchanged and get today's date")


def _rows(target: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The drafters; as evidence the acceptance length measured nearest to the recommended K."""
    for drafter in target["drafters"]:
        k, trained = drafter["k_recommended"], drafter["k_trained"]
        evidence = "unverified" if drafter["public"] else "not public"
        if drafter["public"] and drafter["evidence"]:
            near = min(drafter["evidence"], key=lambda measured: abs(measured["k"] - k))
            evidence = f"{near['acceptance_length']:.2f} at K={near['k']}"
        yield (
            "*" if drafter["name"] == target["default_drafter"] else "",
            drafter["name"],
            drafter["kind"],
            f"{k} of {trained}" if trained else str(k),
            drafter["min_vllm"],
            drafter["licence"] or "-",
            evidence,
        )


def print_check(report: CheckReport, seconds: float) -> None:
    """Print the report, which took ``seconds``, on stdout."""
    view.print_line(f"{click.style(report.pair, bold=True)} on vLLM {report.vllm}\n")
    view.print_findings(report.findings)
    facts: list[tuple[str, str | tuple[str, str]]] = []
    for files in report.read:
        headers = "" if files.has_weights else ", no weights there"
        facts.append(("read", f"{files.location} ({files.bytes:,} bytes{headers})"))
    if report.unread:
        unread = f"the {' and the '.join(report.unread)}: only the catalogue's numbers were checked"
        to_read = command_text(report.read_command)
        facts.append(("not read", (f"{unread}; to read the files", to_read)))
    total = sum(files.bytes for files in report.read)
    verdict = view.count_text(report.findings) or "no problems found"
    text = f"{report.rules} rules in {seconds:.2f} s, {total:,} bytes read: {verdict}"
    view.print_facts([*facts, ("checked", text)], indent=0, err=False)


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
    where = f"of {report.instance_type}" if report.instance_type else "(GPU assumed)"
    gpus = f"{engine.tensor_parallel_size} x {engine.gpu}, {report.gpu_memory_gib:.1f} GiB {where}"
    drafts = f", K={engine.k}" if engine.k else ""
    pair = click.style(report.pair, bold=True)
    view.print_line(f"{pair}  on {gpus}, vLLM {engine.vllm}{drafts}")
    view.print_line(
        f"context {engine.max_model_len:,}, {format_concurrency(engine.max_num_seqs)}, "
        f"max-num-batched-tokens {engine.max_num_batched_tokens:,}, "
        f"gpu-memory-utilization {engine.gpu_memory_utilization:g}, "
        f"KV cache {engine.kv_cache_dtype}\n"
    )
    print_memory(report)
    text = f"does not fit: {report.refusal}"
    view.print_line(f"\n{text if report.refusal else capacity_text(report, engine.max_model_len)}")
    if without := report.without_speculation:
        text = f"without speculation {without.kv_cache_tokens:,} tokens"
        text += f", or {without.max_concurrency:,.2f} requests"
        if (kept := without.concurrency_kept) is not None and kept < 1:
            text += f": speculation reduces it by {1 - kept:.0%}"
        view.print_line(text)
    click.echo()
    terms = {**report.terms, "kv_cache": report.kv_cache_gib}
    rows = []
    for name, meaning in MEANINGS.items():
        if name in terms:
            label = name.replace("_estimate", " ~").replace("_", " ")
            indent = "  " if name.startswith(INSIDE) else ""
            rows.append((f"{indent}{label}", f"{terms[name]:.2f}", meaning))
    view.print_table(("term", "GiB", "description"), rows, right=("GiB",))
    view.print_line("~: an estimate")
    holds = "{0.kv_cache_tokens:,} tokens, {0.max_concurrency:.2f} requests"
    advice = [(item.option, holds.format(item)) for item in report.advice]
    view.print_table(
        ("option", "then the cache holds"), advice, title="Any one of these makes it fit"
    )


def print_memory(fit: Fit) -> None:
    """One GPU's memory on stdout: its parts in GiB."""
    terms = fit.terms
    parts = {
        "target": fit.weights_gib,
        "drafter": fit.drafter_gib,
        "engine": sum(gib for name, gib in terms.items() if name.endswith("_estimate")),
        "cache": fit.kv_cache_gib,
        "free": terms.get("kept_free", 0.0) + terms.get("kept_by_driver", 0.0),
    }
    shown = ", ".join(f"{name} {gib:.1f}" for name, gib in parts.items() if gib >= 0.05)
    view.print_line(f"{shown} of {fit.gpu_memory_gib:.1f} GiB")


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


_SPEED = (
    "requests", "GPUs", "best", "tokens_per_second", "range", "basis", "gain",
    "usd_per_million_tokens", "ttft_seconds", "break-even",
)  # fmt: skip
"""What is shown of the best setting; ``gain`` is that over the target alone, and ``break-even`` the
acceptance length above which speculation pays, of that expected."""


def print_verdict(verdict: Verdict, written: Path | None) -> None:
    """The verdict on stdout; ``written`` is its file, if it has one."""
    gpus = f"{verdict.tensor_parallel_size} x {verdict.gpu}"
    context = f", context {verdict.max_model_len:,}" if verdict.max_model_len else ""
    view.print_line(f"{verdict.target} on {gpus}, vLLM {verdict.vllm}{context}", bold=True)
    price, here = ": price unknown", verdict.instance_type == HERE
    if verdict.usd_per_hour is not None:
        price = f": {format_usd(verdict.usd_per_hour)} per hour in {verdict.region}"
    several = f" ({verdict.gpu_count} GPUs)" if verdict.gpu_count > 1 else ""
    where = "this machine" if here else verdict.instance_type
    view.print_line(f"{where}{several}{'' if here else price}; speeds and $/1M are of one engine")
    for size in verdict.workloads:
        _print_size(size)
    if verdict.changes:
        view.print_line("\nWhat would change it", bold=True)
        for change in verdict.changes:
            view.print_line(f"  - {change}")
    if written is not None:
        size, entry = verdict.at(USUAL_WORKLOAD, USUAL_CONCURRENCY)
        load = ["--concurrency", str(entry.concurrency), *(["--here"] if here else [])]
        for name in ("prompt_tokens", "output_tokens", "cached_prompt_tokens"):
            if tokens := getattr(size, name):
                load += [f"--{name.replace('_', '-')}", str(tokens)]
        command = ("peagle", "plan", verdict.target, *load, "--verdict", str(written))
        view.print_line("\nPlan with it", command_text(command))


def _print_size(size: WorkloadVerdict) -> None:
    words = size.name.replace("-", " ").capitalize()
    hits = f" ({size.workload.cached_text})" if size.cached_prompt_tokens else ""
    title = f"{words}: {size.prompt_tokens:,} tokens in{hits}, {size.output_tokens:,} out"
    rows, ratios = [], [_ratio(load) for load in size.loads]
    for load, ratio in zip(size.loads, ratios, strict=True):
        row: dict[str, Any] = {"requests": load.concurrency, "GPUs": load.tensor_parallel_size}
        if best := load.speed(load.best):
            row |= best.model_dump() | {"best": f"{best.setting.text}{' =' if load.ties else ''}"}
            row["basis"] += ", extrapolated" if best.extrapolated else ""
            if best.low and best.high:
                row["range"] = f"{best.low:,.0f}-{best.high:,.0f}"
            if even := best.break_even_acceptance_length:
                row["break-even"] = f"{even:.2f}/{best.acceptance_length:.2f}"
        if ratio is not None:
            row["gain"] = f"{100 * ratio - 100:+.0f}%"
        rows.append(row)
    view.print_documents(rows, _SPEED, title)
    if any(load.ties for load in size.loads):
        view.print_line("= ties with others; the simplest is shown.")
    for crossover in size.crossovers:
        view.print_line(crossover_text(crossover))
    drafting = [s for load in size.loads for s in load.speeds if s.setting.k]
    if not any(speed.tokens_per_second for speed in drafting):
        view.print_line("No drafter could be compared: see below.")
    elif not size.crossovers:
        pays = any(load.best and load.best != NO_SPECULATION for load in size.loads)
        view.print_line(f"Speculation {'pays' if pays else 'does not pay'} at these loads.")
    if size.robust and len(size.loads) > 1:
        regret = size.robust_regret_percent or 0.0
        share = f"at most {regret:.0f} %" if regret >= 1 else "less than 1 %"
        worst = f"{share} slower than the best at each"
        view.print_line(f"For all these loads: {size.robust.text}, {worst}.")


def crossover_text(crossover: VerdictCrossover) -> str:
    """``Speculation stops paying at about 38 requests; measured.``"""
    at = f"{crossover.requests:,.0f} requests; {crossover.basis}."
    return f"Speculation {crossover.direction} paying at about {at}"


def _ratio(load: LoadVerdict) -> float | None:
    """The speed with speculation over that without: of the best setting, else the fastest that
    counts."""
    alone = load.speed(NO_SPECULATION)
    drafting = [speed for speed in load.speeds if speed.setting.k and speed.tokens_per_second]
    speeds = [speed for speed in drafting if speed.setting == load.best]
    speeds = speeds or [speed for speed in drafting if speed.regret_percent is not None]
    if alone is None or not alone.tokens_per_second or not speeds:
        return None
    return max(speed.tokens_per_second or 0 for speed in speeds) / alone.tokens_per_second
