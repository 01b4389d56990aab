"""What the commands print that read: deployments, their drift, use, proofs and comparisons, and the
engines of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peagle.bench.result import Interval
from peagle.cli import view
from peagle.cli.context import command_text
from peagle.engine.state import LocalEngine, read_warm_start
from peagle.engine_log import WarmStart
from peagle.errors import command_line
from peagle.planning.plan import FloorSource
from peagle.proof import Proof, SecondTurn, proof_findings
from peagle.protocol import request_body
from peagle.text import format_duration, format_price, format_usd, k_text, plain, shortened

if TYPE_CHECKING:  # these modules import boto3 and asyncio, which `local up` does not need
    from peagle.bench.variants import VariantComparison
    from peagle.deploy.drift import Drift
    from peagle.deploy.status import ComparedPlan, DeploymentStatus
    from peagle.engine.usage import Usage

LISTED = (
    "name", "state", "region", "instances_running", "min_instances", "max_instances", "min_copies",
    "max_copies", "price_per_hour_usd", "cost_so_far_usd", "ends_at", "acceptance_length",
    "stand_in", "compared_share",
)  # fmt: skip
_FACTS = (
    "pair", "stand_in", "owner", "region", "instance_type", "instance_count", "instances_running",
    "copies", "copies_running", "scaling", "vllm", "vllm_here", "k", "acceptance_length",
    "drafts", "previous", "cost_so_far_usd", "ends_at", "openai_base_url", "failure_reason",
)  # fmt: skip
"""Keys of a deployment's document that ``list`` and ``status`` show."""


def print_deployment(status: DeploymentStatus, sandbox: bool, continued: Sequence[str]) -> None:
    """The state of a deployment, and the command with which an unfinished one is ``continued``."""
    from peagle.deploy.status import GONE

    proof = status.proof
    view.print_line(f"{status.name}: {status.state}", bold=True)
    document = plain(status)
    values = {key: document[key] for key in _FACTS if document.get(key) not in (None, "", "peagle")}
    price = format_price(status.price_per_hour_usd, sandbox)
    fix = status.failure_fix or "", command_text(status.failure_command or ())
    facts: list[view.Fact] = [
        *view.document_facts(values),
        ("second turn", second_turn_text(proof.second_turn) if proof and proof.second_turn else ""),
        ("comparison", comparison_text(status.comparison)),
        ("price", "" if status.state in GONE else price),
        ("fix", fix),
        ("to continue", ("", command_text(continued) if continued and not any(fix) else "")),
    ]
    facts += [("resource", resource.text) for resource in status.resources]
    view.print_facts(facts, err=False)


def print_drift(drift: Drift, where: str) -> None:
    """What differs from the plan."""
    if not drift.fields:
        view.print_line(f"{where}: no drift in {', '.join(drift.compared).replace('_', ' ')}")
        return
    view.print_line(f"{where}: {len(drift.fields)} fields differ from the plan", bold=True)
    rows = (
        (
            change.setting,
            *(shortened(view.plain_text(value), 60) for value in (change.after, change.before)),
        )
        for change in drift.fields
    )
    view.print_table(("FIELD", "PLANNED", "FOUND"), rows)


def print_proof(name: str, proof: Proof) -> None:
    """The result of a proof, and of each instance."""
    where = "the engine's counters" if proof.source == "counters" else "the endpoint's log"
    if proof.floor is None:
        text = "it answers; it does not speculate"
    elif proof.acceptance_length is None:
        text = f"no drafts in {where}"
    else:
        least = floor_text(proof.floor, proof.floor_source)
        text = f"acceptance length {proof.acceptance_length:.2f} over {proof.drafts} drafts{least} "
        text += f"(from {where})"
    view.print_line(f"{name} {'is proved' if proof.passed else 'is not proved'}: {text}", bold=True)
    keys = ("stream", "drafts", "acceptance_length", "acceptance_per_position")
    view.print_documents(proof.instances, keys)
    if proof.second_turn:
        view.print_line(f"second turn: {second_turn_text(proof.second_turn)}")
    view.print_findings(proof.findings, err=True)


def print_engine(engine: LocalEngine) -> None:
    """An engine of this machine that has started, and how to call it."""
    text, length = "responds", engine.acceptance_length
    if length is not None:
        text = f"speculates: acceptance length {length:.2f} over {engine.drafts} drafts"
    view.print_line(f"{engine.pair} {text}.")
    if engine.second_turn:
        view.print_line(f"  second turn: {second_turn_text(engine.second_turn)}")
        view.print_findings(proof_findings(engine.second_turn), err=True)
    if warm := read_warm_start(Path(engine.process.log)):
        view.print_line(warm_start_text(warm))
    if engine.notes:
        notes = len(engine.notes)
        view.print_line(f"{notes} settings were changed for the CPU; the log lists them.")
    body = request_body("Hello!", chat=True, max_tokens=64)
    body |= {"model": engine.served_as, "stream": True}
    request = ["curl", "-N", f"{engine.openai_base_url}/chat/completions",
               "-H", "Content-Type: application/json", "-d", json.dumps(body)]  # fmt: skip
    facts = (
        ("OpenAI base URL", engine.openai_base_url),
        ("Send a request", command_line(request)),
        ("Read the log", command_text(("peagle", "local", "logs", engine.name, "-f"))),
        ("Stop it", command_text(("peagle", "local", "down", engine.name))),
    )
    view.print_facts(((label, ("", text)) for label, text in facts), indent=0, err=False)


def measured(status: DeploymentStatus) -> str:
    """The acceptance length of a proved deployment; empty without one."""
    length, floor = status.acceptance_length, status.acceptance_floor
    if length is None:
        return ""
    least = floor_text(None if status.stand_in else floor, status.acceptance_floor_source)
    return f": acceptance length {length:.2f} over {status.drafts} drafts{least}"


def comparison_text(comparison: ComparedPlan | None) -> str:
    """The second variant in the state of a deployment, in one line; empty without one."""
    if comparison is None:
        return ""
    where = f"{comparison.instances_running} x {comparison.instance_type} running"
    if comparison.state != "running":
        where = comparison.state.replace("-", " ")
    return (
        f"{comparison.share:.1%} of the requests to {comparison.variant}: "
        f"{comparison.pair}, {k_text(comparison.k)}, {where}"
    )


_COMPARED = {
    "pair": "pair", "k": "K", "instances": "instances", "instance_type": "instance type",
    "requests": "requests", "share": "share of requests", "errors": "errors",
    "in_progress": "in progress", "ttft_seconds": "TTFT in ms, mean",
    "itl_seconds": "ITL in ms", "seconds_per_token": "ms per token",
    "latency_seconds": "ms per request", "acceptance_length": "acceptance length",
    "usd_per_million_tokens": "USD per 1M tokens",
}  # fmt: skip


def print_comparison_report(report: VariantComparison) -> None:
    """A line per number with both variants and the difference, the verdict and the notes."""

    def number(key: str, value: Interval | float | str | None) -> str:
        if isinstance(value, int | float):
            return view.plain_text(value * 1000.0 if "seconds" in key else value)
        if not isinstance(value, Interval):
            return view.plain_text(value)
        text = number(key, value.value)
        if value.low == value.high:  # of one minute
            return text
        return f"{text} ({number(key, max(value.low, 0))} to {number(key, value.high)})"

    def difference(key: str) -> str:
        change = report.changes.get(key)
        return f"{change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})" if change else ""

    span = format_duration(max(report.until - report.since, 0))
    view.print_line(f"{report.name}: two plans under the same requests, {span}", bold=True)
    rows = [
        (
            label,
            *(number(key, getattr(variant, key)) for variant in report.variants),
            difference(key),
        )
        for key, label in _COMPARED.items()
    ]
    view.print_table(("", *(variant.variant for variant in report.variants), "difference"), rows)
    slower = difference("seconds_per_token")
    failing = [variant.variant for variant in report.variants if variant.only_errors]
    if failing:
        view.print_line(f"{' and '.join(failing)} answered no request.")
    elif not slower:
        view.print_line("Which one is faster is unknown.")
    elif report.faster is None:
        view.print_line(f"No difference is shown yet: time per token {slower}.")
    else:
        view.print_line(f"{report.faster} is faster: time per token of the second {slower}.")
    for variant in report.variants:
        if variant.errors:
            cause = variant.cause or "the container failed"
            command = command_text(("peagle", "logs", report.name))
            view.print_status(
                f"errors of {variant.variant}: {cause}; to read the engine's log", command
            )
    for note in report.notes:
        view.print_status(f"note: {note}")


_UNKNOWN = "-"


def usage_screen(usage: Usage, width: int) -> list[str]:
    """The lines of one screen."""
    instances = f"{usage.instances} x {usage.instance_type}" if usage.instance_type else ""
    place = {"local": "this machine", "sandbox": "sandbox"}.get(usage.where, "")
    over = f"last {format_duration(usage.window_seconds)}"
    state = ", ".join(filter(None, (usage.state, instances, place, over)))
    lines = [click.style(line, bold=True) for line in view.folded(f"{usage.name}: {state}", width)]
    lines.append("")
    lines += view.fact_lines(_usage_facts(usage), width)
    for note in usage.notes:
        lines += view.folded(f"  {note}", width, "")
    return lines


def _usage_facts(usage: Usage) -> Iterator[tuple[str, str]]:
    def number(value: float | None, shown: str, scale: float = 1.0) -> str:
        return _UNKNOWN if value is None else shown.format(value * scale)

    yield "requests", number(usage.requests_per_minute, "{:.1f} per minute")
    running = f"{usage.running or 0:.0f} running, {usage.waiting or 0:.0f} waiting"
    yield "in progress", _UNKNOWN if usage.running is None else running
    if usage.where != "local":
        yield "errors", number(usage.error_share, "{:.1%} with a 5xx status")
    median, p90 = (number(ms, "{:,.0f}", 1000) for ms in (usage.ttft_p50, usage.ttft_p90))
    yield "TTFT", f"{median} ms median, {p90} ms p90" if usage.ttft_p50 is not None else _UNKNOWN
    yield "ITL", number(usage.itl, "{:.1f} ms per token", 1000)
    yield "tokens", number(usage.tokens_per_second, "{:.1f} per second")
    yield "KV cache", number(usage.kv_cache_share, "{:.1%}")
    acceptance = "no speculation"
    if usage.k is not None:
        floor = f", floor {usage.acceptance_floor:g}" if usage.acceptance_floor is not None else ""
        length = number(usage.acceptance_length, "{:.2f} tokens per step")
        acceptance = f"{length} (K={usage.k}{floor})"
    yield "acceptance", acceptance
    cost = "this machine" if usage.where == "local" else "unknown price"
    if usage.where != "local" and usage.usd_per_hour is not None:
        cost = f"{format_usd(usage.usd_per_hour)} per hour"
        if usage.usd_per_million_tokens is not None:
            cost += f", {format_usd(usage.usd_per_million_tokens)} per million output tokens"
        cost += " on AWS" if usage.where == "sandbox" else ""
    yield "cost", cost


_BY: dict[FloorSource, str] = {
    "catalogue": "by the catalogue",
    "break-even": "to break even",
    "option": "by --floor",
}


def floor_text(floor: float | None, source: FloorSource | None) -> str:
    """``, at least 2.10 required by the catalogue``; empty where any accepted draft passes."""
    if floor is None or floor <= 1:
        return ""
    return f", at least {floor:.2f} required {_BY[source] if source else ''}".rstrip()


def warm_start_text(warm: WarmStart) -> str:
    """How an engine started, in one line."""
    return f"{'Warm' if warm.restored else 'No warm'} start: {warm.detail}"


def second_turn_text(second: SecondTurn) -> str:
    """The acceptance length, and how much of the prompts came from the cache."""
    share, length = second.cached_share, second.acceptance_length
    cached = "unknown" if share is None else f"{share:.0%}"
    if share is not None and second.source == "log":
        cached += " (the engine's own rate, first turns included)"
    accepted = "unknown" if length is None else f"{length:.2f} over {second.drafts} drafts"
    return f"acceptance length {accepted}, prompt tokens from the cache: {cached}"
