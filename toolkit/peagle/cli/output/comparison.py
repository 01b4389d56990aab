"""What ``peagle compare``, ``promote`` and ``drop`` print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.bench.models import Interval
from peagle.bench.variants import VariantComparison, VariantResult
from peagle.cli.account import Account
from peagle.cli.context import command_text
from peagle.cli.output.console import print_facts, print_line, print_status, print_table
from peagle.cli.output.deploy import show_changes
from peagle.cli.output.plan import proof_text, speculation_text
from peagle.deploy.preflight import Preflight
from peagle.deploy.state import Deployment, RunningComparison
from peagle.text import format_duration, format_price, format_usd, k_text

_UNKNOWN = "unknown"

_AT_PROMOTION = "scaling, alarms, dashboard, log retention, end time, captured data and KMS key"


def show_candidate(
    aws: Aws, found: Preflight, record: Deployment, share: float, account: Account
) -> None:
    """What is served next to the plan in service, and what it costs: on stderr, before asking."""
    plan, document = found.desired.plan, api.deployment_status(aws, record)
    count, kind = plan.instance_count, plan.instance_type
    running = document["instances_running"] or document["instance_count"]
    started = {document["instance_type"]: running}
    started[kind] = started.get(kind, 0) + count
    besides = " and ".join(f"{number} x {one}" for one, number in started.items())
    facts = {
        "pair": plan.pair,
        "where": f"{count} x {kind} more, {account.where(plan.region)}",
        "speculation": speculation_text(plan.speculation),
        "proof": proof_text(plan),
        "share": f"{share:.1%} of the requests",
        "price": _together(plan.price_per_hour_usd, document, account),
        "change": f"updates endpoint {plan.name} to two variants; while they start, SageMaker runs "
        f"{besides} more",
        **_alarm(record, found),
        "promote": f"only then this plan's {_AT_PROMOTION} apply",
    }
    print_status(f"{record.name}, a second plan", bold=True)
    print_facts(facts.items())
    show_changes(one for one in found.changes if one.setting != "usd_per_hour")


def _alarm(record: Deployment, found: Preflight) -> dict[str, str]:
    """That an alarm rests meanwhile; empty where none does."""
    if not api.mixes_drafts(record, found.desired.revision.served):
        return {}
    return {
        "alarm": "the one on acceptance is suspended meanwhile: it counts the drafts of both plans "
        "together, and the report has those of each"
    }


def _together(more: float | None, document: dict[str, Any], account: Account) -> str:
    now = document["price_per_hour_usd"]
    if document["comparison"] and document["comparison"]["state"] == "running":
        return f"{format_price(now, account.sandbox)}, as now"
    if more is None or now is None:
        return f"{format_price(more, account.sandbox)} more"
    return f"{format_usd(more)} per hour more: {format_price(now + more, account.sandbox)}"


def print_started(document: dict[str, Any], account: Account) -> None:
    """What serves, and what to do next, on stdout."""
    comparison, name = document["comparison"], document["name"]
    print_line(
        f"{name} serves two plans: {comparison['share']:.1%} of the requests go to "
        f"{comparison['variant']} ({_plan_text(comparison)})",
        bold=True,
    )
    print_line(f"  Price    {format_price(document['price_per_hour_usd'], account.sandbox)}")
    for label, command in (("Report", "compare"), ("Promote", "promote"), ("Drop", "drop")):
        click.echo(f"  {label:<9}{command_text(('peagle', command, name))}")


def comparison_text(comparison: dict[str, Any] | None) -> str:
    """The second variant in the state of a deployment, in one line; empty without one."""
    if comparison is None:
        return ""
    where = f"{comparison['instances_running']} x {comparison['instance_type']} running"
    if comparison["state"] != "running":
        where = comparison["state"].replace("-", " ")
    share = f"{comparison['share']:.1%} of the requests to {comparison['variant']}"
    return f"{share}: {_plan_text(comparison)}, {where}"


def _plan_text(comparison: dict[str, Any]) -> str:
    k = comparison["k"]
    return f"{comparison['pair']}, {k_text(k)}"


def show_end(
    record: Deployment, comparison: RunningComparison, account: Account, is_promoted: bool
) -> None:
    """The compared plan, on stderr, before the comparison ends."""
    served = comparison.candidate.served
    print_status(record.name, bold=True)
    facts = {
        "where": account.where(record.region),
        "compared": f"{served.pair}, {k_text(served.k)}, {comparison.share:.1%} of the requests",
        "change": "all instances are replaced, then the proof is repeated",
    }
    if is_promoted:
        facts["then"] = f"its plan's {_AT_PROMOTION} apply"
    print_facts(facts.items())


def print_report(report: VariantComparison, account: Account) -> None:
    """A line per number with both variants and the difference, the verdict and the notes."""
    first, second = report.variants
    span = format_duration(max(report.until - report.since, 0))
    print_line(f"{report.name}: two plans under the same requests, {span}", bold=True)
    headings = ("", first.variant, second.variant, "difference")
    print_table(headings, _rows(first, second, report.changes))
    print_line(_verdict(report))
    for result in report.variants:
        if result.errors:
            cause = result.cause or "the container failed"
            command = command_text(("peagle", "logs", report.name))
            print_status(f"errors of {result.variant}: {cause}; to read the engine's log", command)
    for note in report.notes:
        print_status(f"note: {note}")


def _rows(
    first: VariantResult, second: VariantResult, changes: dict[str, Interval]
) -> Iterator[tuple[str, str, str, str]]:
    def both(label: str, text: Callable[[VariantResult], str]) -> tuple[str, str, str, str]:
        return label, _known(first, text(first)), _known(second, text(second)), ""

    if first.errors or second.errors:
        yield both("errors", _errors)
    yield both("plan", lambda one: f"{one.pair}, {k_text(one.k)}")
    yield both("instances", lambda one: f"{one.instances} x {one.instance_type}")
    yield both("requests", _requests)
    if not (first.errors or second.errors):
        yield both("errors", _errors)
    yield both("in progress each", lambda one: _number(one.in_progress))
    for number, label, show in _SHOWN:
        texts = (_known(one, _interval(getattr(one, number), show)) for one in (first, second))
        yield label, next(texts), next(texts), _change(changes.get(number))
        if number == "ttft_seconds":
            yield both("first token p50, ms", lambda one: _time(one.ttft_p50_seconds))
            yield both("first token p90, ms", lambda one: _time(one.ttft_p90_seconds))


def _known(one: VariantResult, text: str) -> str:
    """What is unknown of a variant that answered nothing does not exist."""
    return "-" if text == _UNKNOWN and one.only_errors else text


def _errors(one: VariantResult) -> str:
    return f"{one.errors:,} of {one.requests:,}" if one.errors else "0"


def _requests(one: VariantResult) -> str:
    return f"{one.requests:,}" + ("" if one.share is None else f" ({one.share:.1%})")


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2g}"


def _time(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else _milliseconds(seconds)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.3g}" if seconds < 0.1 else f"{seconds * 1000:,.0f}"


_SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("ttft_seconds", "first token, ms", _milliseconds),
    ("itl_seconds", "between tokens, ms", _milliseconds),
    ("seconds_per_token", "per token, ms", _milliseconds),
    ("latency_seconds", "request, ms", _milliseconds),
    ("acceptance_length", "acceptance length", lambda value: f"{value:.2f}"),
    ("usd_per_million_tokens", "USD per 1M tokens", lambda value: f"{value:,.3g}"),
)


def _interval(value: Interval | None, show: Callable[[float], str]) -> str:
    if value is None:
        return _UNKNOWN
    if value.low == value.high:  # of one minute
        return show(value.value)
    return f"{show(value.value)} ({show(max(value.low, 0))} to {show(value.high)})"


def _change(change: Interval | None) -> str:
    if change is None:
        return ""
    return f"{change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})"


def _verdict(report: VariantComparison) -> str:
    failing = [result for result in report.variants if result.only_errors]
    if failing:
        names = " and ".join(result.variant for result in failing)
        causes = "; ".join(result.cause for result in failing if result.cause)
        return f"{names} answered no request{f': {causes}' if causes else ''}."
    change = report.changes.get("seconds_per_token")
    if change is None:
        return "Which one is faster is unknown."
    if report.faster is None:
        return f"No difference is shown yet: time per token {_change(change)}."
    return f"{report.faster} is faster: time per token of the second {_change(change)}."
