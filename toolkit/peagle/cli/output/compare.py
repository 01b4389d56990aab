"""Two plans side by side on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peagle.cli.output.console import print_line, print_table
from peagle.cli.output.plan import method_name
from peagle.deploy.diff import PlanComparison
from peagle.planning.plan import Speculation
from peagle.text import format_requests, format_usd

_UNKNOWN = "unknown"


def print_comparison(comparison: PlanComparison) -> None:
    """One line per fact, ``*`` where the two differ, and the other settings that differ."""
    both = zip(comparison.answers, comparison.plans, strict=True)
    first, second = (dict(plan_facts(answer, plan.speculation)) for answer, plan in both)
    rows = (
        ("*" if value != second[name] else "", name, value, second[name])
        for name, value in first.items()
    )
    print_table(("", "", "A", "B"), rows)
    others = [change.text for change in comparison.other_changes]
    if others:
        print_line("\nWhat else differs, from A to B")
        for text in others:
            print_line(f"  {text}")
    elif first == second:
        print_line("\nThe two plans are equal.")


def plan_facts(
    answer: dict[str, Any], speculation: Speculation | None
) -> Iterator[tuple[str, str]]:
    """The answer of a plan as labels and texts."""
    target, _, drafter = answer["pair"].partition("+")
    yield "target", target
    yield "drafter", drafter or "none"
    yield "speculation", f"{method_name(speculation)}, K={speculation.k}" if speculation else "none"
    yield "instance", f"{answer['instance_count']} x {answer['instance_type']}"
    yield "GPUs", f"{answer['tensor_parallel_size']} of {answer['gpu_count']} x {answer['gpu']}"
    yield "region", answer["region"]
    yield "price per hour", _usd(answer["price_per_hour_usd"])
    yield "context", f"{answer['max_model_len']:,} tokens"
    yield "load", f"{format_requests(answer['concurrency'])} at a time"
    yield "full-length requests", f"{answer['max_concurrency']:,.1f} per instance"
    yield "tokens/s", _speed(answer)
    yield "time to first token", _seconds(answer["ttft_seconds"])
    yield "USD per 1M tokens", _usd(answer["usd_per_million_tokens"])
    if answer["refused"]:
        yield "deployable", f"no: {answer['refused']}"
    else:
        yield "deployable", "yes"


def _speed(answer: dict[str, Any]) -> str:
    if answer["tokens_per_second"] is None:
        return _UNKNOWN
    text = f"{answer['tokens_per_second']:,.0f}"
    if answer["low"] is not None and answer["high"] is not None:
        text += f" ({answer['low']:,.0f} to {answer['high']:,.0f})"
    return f"{text}, {answer['basis']}" if answer["basis"] else text


def _seconds(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else f"{seconds:.2f} s"


def _usd(amount: float | None) -> str:
    return _UNKNOWN if amount is None else format_usd(amount)
