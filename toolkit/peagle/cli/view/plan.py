"""What ``peagle plan`` prints: what to buy, how fast it is, what it costs; then the whole plan."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from peagle.cli import view
from peagle.cli.context import command_text
from peagle.cli.view.choose import capacity_text, print_memory
from peagle.cli.view.reasons import reason_text
from peagle.findings import errors
from peagle.planning import Plan
from peagle.planning.company import Company
from peagle.planning.operation import (
    alarm_kinds,
    capture_text,
    cost_text,
    limit_text,
    most_usd_per_hour,
)
from peagle.planning.plan import Alternative, SpeedEstimate, price_origin
from peagle.planning.speculation import NO_HEAD
from peagle.text import (
    basis_text,
    counted,
    exact_duration,
    format_duration,
    format_price,
    format_requests,
    format_usd,
    usd_per_million,
)
from peagle.vllm.defaults import method_title

if TYPE_CHECKING:
    from peagle.deploy.diff import PlanComparison

_ACCEPTANCE = {
    "imposed": "is synthetic, not from your text",
    "published": "is published, not from your text",
    "unknown": "is unknown for this drafter",
}
"""What is uncertain about the acceptance length, by its basis."""

_BASIS = {
    "estimated": "speed is computed, not measured for this GPU and load",
    "measured": "speed is that of the best repetition",
}

_PLACE = (
    "instance_count", "instance_type", "tensor_parallel_size", "copies", "gpu",
    "price_per_hour_usd", "drafter", "k", "tokens_per_second", "usd_per_million_tokens",
)  # fmt: skip
"""The keys of an alternative that are shown."""


def print_answer(plan: Plan, next_command: str | None, verbose: bool) -> None:
    """The answer on stdout, with what to type next; ``verbose``: the findings follow elsewhere."""
    view.print_line(_load_text(plan), bold=True)
    view.print_facts(_answer(plan) if _is_priced(plan) else (), indent=0, err=False)
    if not verbose:
        urgent = errors(plan.findings)
        urgent = urgent or [finding for finding in plan.findings if finding.level == "warning"][:2]
        view.print_findings(view.without_first_error(urgent))
        if others := view.count_text(finding for finding in plan.findings if finding not in urgent):
            view.print_facts([("more", f"{others}: --verbose")], indent=0, err=False)
    if next_command:
        view.print_line("Next", next_command)


def _load_text(plan: Plan) -> str:
    """``openai/gpt-oss-20b for 10 requests at a time; chat: ...``: target, load and workload."""
    text = f"{plan.target.id} for {format_requests(plan.concurrency)} at a time"
    if plan.batch is not None:
        within = plan.batch.within_seconds
        limit = f" within {exact_duration(within)}" if within else ""
        requests = f"{format_requests(plan.batch.requests)}{limit}"
        text = f"{plan.target.id}: {requests}, {plan.concurrency:,} at a time"
    if size := plan.request_size:
        cached = size.cached_prompt_tokens
        kind = plan.workload or ("with a cached prefix" if cached else "single prompts")
        text += f"; {kind}: {size.prompt_tokens:,} + {size.output_tokens:,} tokens each"
        text += f", {size.cached_text}" if cached else ""
    text += f"; context {plan.max_model_len:,}"
    return f"{text}, {plan.slo.text}" if plan.slo else text


def _is_priced(plan: Plan) -> bool:
    """Whether prices and speeds are of requests that fit the context; the engine rejects others."""
    return all(finding.code != "requests-above-context" for finding in plan.findings)


def _answer(plan: Plan) -> Iterator[view.Fact]:
    speed, reasons = plan.speed, {reason.what: reason_text(reason) for reason in plan.reasons}
    choice = "no"
    if plan.speculation is not None:
        head = f" ({plan.drafter.id})" if plan.drafter and plan.drafter.weights else ""
        method = method_title(plan.speculation.method, plan.speculation.parallel_drafting)
        choice = f"yes, {method} with K={plan.speculation.k}{head}"
    yield "speculate", ": ".join(filter(None, (choice, reasons.get("speculation"))))
    for finding in plan.findings:
        if finding.code == NO_HEAD:  # what the owner of a target without a head can do
            yield "option", (finding.fix, command_text(finding.command or ()))
    yield "machine" if plan.is_here else "instance", _instance_text(plan)
    if speed is not None:
        text = format_plan_speed(plan, speed, plan.price_per_hour_usd)
        if speed.ttft_seconds is not None and speed.itl_seconds is not None:
            is_drafted = speed.acceptance_length and speed.acceptance_basis != "none"
            tokens = f"{speed.acceptance_length:.2g} tokens" if is_drafted else "one"
            first, then = map(view.seconds_text, (speed.ttft_seconds, speed.itl_seconds))
            text += f"; first token after {first}, then {tokens} every {then}"
        yield "speed", text
        if plan.cached_prompt_tokens and speed.tokens_per_second:
            yield "cache", _cache_text(plan, speed)
    if (batch := plan.batch) is not None:
        text = "time and cost are unknown, because the speed is"
        if batch.seconds is not None:
            text = f"{batch.requests:,} requests take {format_duration(batch.seconds)}"
            text += "" if batch.usd is None else f" and cost {format_usd(batch.usd)}"
            text += ", the start of the instances included; delete the endpoint afterwards"
        yield "batch", text
    if plan.limit and (text := limit_text(plan.limit, most_usd_per_hour(plan))):
        yield "limit", f"the endpoint is deleted after {text}"
    yield from operation_facts(plan)
    alone = plan.without_speculation
    if alone is not None and plan.speculation is not None:
        missed = "; misses what is required of speed or price" if _misses(alone) else ""
        yield "without", f"{_alternative_text(plan, alone, '')}{missed}"
    for other in _others(plan):
        drafts = f" with {other.drafter} K={other.k}" if other.drafter else ""
        drafts = drafts or (" without speculation" if plan.speculation else "")
        yield "or", _alternative_text(plan, other, drafts)
    if speed is not None and not errors(plan.findings):
        yield "uncertain", "; ".join(_uncertainties(plan, speed))


def _instance_text(plan: Plan) -> str:
    count, gpu = plan.fit.gpu_count, plan.fit.gpu
    used = plan.fit.tensor_parallel_size * (plan.copies.per_instance if plan.copies else 1)
    gpus = gpu if count == 1 else f"{'' if used == count else f'{used} of '}{count} x {gpu}"
    copies = _copies(plan.copies.per_instance if plan.copies else None, plan.instance_count)
    if plan.is_here:
        return f"this one ({gpus}{copies})"
    text = f"{plan.instance_count} x {plan.instance_type} ({gpus}{copies}) in {plan.region}"
    if plan.engines > 1:
        text += f", {plan.concurrency / _busy_engines(plan):,.4g} at a time per engine"
    if plan.price_per_hour_usd is None:
        return f"{text}, price unknown"
    return f"{text}, {format_usd(plan.price_per_hour_usd)} per hour ({price_origin(plan)})"


def _copies(copies: int | None, instances: int) -> str:
    """``, 8 copies``, ``, 8 copies each``; empty without copies."""
    if copies is None:
        return ""
    return f", {copies} {counted(copies, copies=True)}{' each' if instances > 1 else ''}"


def _cache_text(plan: Plan, speed: SpeedEstimate) -> str:
    """What the prefix cache is expected to give, and how many conversations an engine keeps."""
    share = speed.cached_prompt_tokens / (plan.prompt_tokens or 1)
    text = f"{speed.cached_prompt_tokens:,} tokens of a prompt ({share:.0%}) expected from the"
    text += " prefix cache"
    if speed.conversations is not None and speed.cached_prompt_tokens:
        size = (plan.prompt_tokens or 0) + (plan.output_tokens or 0)
        text += f"; an engine keeps {speed.conversations:,} conversations of {size:,} tokens"
    return text


def format_plan_speed(plan: Plan, speed: SpeedEstimate, price: float | None = None) -> str:
    """Tokens per second of the plan's instances together, and their cost with a ``price``."""
    return _speed_text(speed, price, _busy_engines(plan), "copy" if plan.copies else "instance")


def _speed_text(speed: SpeedEstimate, price: float | None, engines: int, each: str) -> str:
    """Tokens per second and cost of ``engines`` together; ``each`` says what has an engine."""
    if speed.tokens_per_second is None:
        return f"unknown: {speed.source}"
    text = f"{speed.tokens_per_second:,.0f} tokens/s{basis_text(speed.basis, engines, each)}"
    is_range = speed.low is not None and speed.high is not None and speed.low < speed.high
    text += f" ({speed.low:,.0f} to {speed.high:,.0f})" if is_range else ""
    if speed.usd_per_million_tokens is None:
        return text
    text += f", {format_usd(speed.usd_per_million_tokens)} per million output tokens"
    ends = (usd_per_million(price, rate) for rate in (speed.high, speed.low))
    costs = [format_usd(usd) for usd in ends if usd is not None]
    return f"{text} ({' to '.join(costs)})" if is_range and price is not None else text


def _busy_engines(plan: Plan) -> int:
    return min(plan.engines, plan.concurrency)


def _is_planned(plan: Plan, other: Alternative) -> bool:
    planned = (plan.instance_type, plan.instance_count)
    return (other.instance_type, other.instance_count) == planned


def _others(plan: Plan) -> Collection[Alternative]:
    """The best other instances by price and by cost per token that meet what is required."""
    others = [
        other
        for other in plan.alternatives
        if not (_is_planned(plan, other) or _misses(other)) and other != plan.without_speculation
    ]
    keys = ("price_per_hour_usd", "usd_per_million_tokens")
    best = (min(others, key=lambda other: getattr(other, key) or math.inf) for key in keys)
    return dict.fromkeys(best) if others else ()


def _misses(other: Alternative) -> bool:
    """Whether the plan's options require a speed or a price that these instances do not have."""
    return other.tokens_per_second is not None and not other.verified


def _alternative_text(plan: Plan, other: Alternative, drafts: str) -> str:
    where = "the same machine" if plan.is_here else "the same instance"
    if not _is_planned(plan, other):
        usd = other.price_per_hour_usd
        price = "price unknown" if usd is None else f"{format_usd(usd)} per hour"
        gpu = f"{other.tensor_parallel_size * (other.copies or 1)} x {other.gpu}"
        gpu = gpu.removeprefix("1 x ") + _copies(other.copies, other.instance_count)
        where = f"{other.instance_count} x {other.instance_type} ({gpu}){drafts}, {price}"
    each = "copy" if other.copies else "instance"
    speed = _speed_text(other, None, min(other.engines, plan.concurrency), each)
    batch = other.batch
    if batch is not None and batch.seconds is not None and batch.usd is not None:
        speed += f"; {format_duration(batch.seconds)}, {format_usd(batch.usd)}"
    return f"{where}: {speed}"


def _uncertainties(plan: Plan, speed: SpeedEstimate) -> Iterator[str]:
    if any(finding.code == "target-not-in-catalogue" for finding in plan.findings):
        yield "licence and the settings of its model card are unknown (not in the catalogue)"
    if speed.acceptance_basis in _ACCEPTANCE:
        length = f" {speed.acceptance_length:.2f}" if speed.acceptance_length else ""
        yield f"acceptance length{length} {_ACCEPTANCE[speed.acceptance_basis]}"
    if speed.extrapolated and plan.speculation:
        yield f"acceptance at K={plan.speculation.k} is extrapolated from smaller K"
    if speed.cached_prompt_tokens:
        yield "hits of the prefix cache are assumed"
    if speed.basis in _BASIS:
        yield _BASIS[speed.basis]


def print_details(plan: Plan) -> None:
    """The rest of the plan on stdout; the findings only, where it has no price."""
    if not _is_priced(plan):
        view.print_findings(view.without_first_error(plan.findings))
        return
    view.print_facts(_details(plan), indent=0, err=False, title=plan.pair)
    view.print_line("\nGPU memory", bold=True)
    print_memory(plan.fit)
    load = -(-plan.concurrency // plan.engines)
    view.print_line(capacity_text(plan.fit, plan.max_model_len, load))
    view.print_documents(plan.alternatives, _PLACE, "Best instances for this load")
    view.print_findings(view.without_first_error(plan.findings), title="Findings")
    because = {reason.what: reason_text(reason) for reason in plan.reasons}
    words = plan.engine_arguments
    arguments = [
        (flag, "" if after.startswith("--") else after, because.get(flag, ""))
        for flag, after in zip(words, [*words[1:], "--"], strict=True)
        if flag.startswith("--")
    ]
    view.print_table(("argument", "value", "because"), arguments, title="Engine arguments")
    decisions = [
        {"what": reason.what, "value": reason.value, "because": reason_text(reason)}
        for reason in plan.reasons
        if reason.what not in words
    ]
    view.print_documents(decisions, ("what", "value", "because"), "Decisions")


def _details(plan: Plan) -> Iterator[tuple[str, str]]:
    speed = plan.speed
    yield "endpoint", plan.name
    price = format_price(plan.price_per_hour_usd, month=True)
    yield "price", price if plan.price_per_hour_usd is None else f"{price} ({price_origin(plan)})"
    yield from proof_facts(plan)
    yield "speed from", speed.source if speed and speed.basis != "unknown" else ""
    yield from view.document_facts(plan.runtime)
    for part in plan.weights.values():
        yield "weights", f"{part.location} ({'streamed' if part.streamed else part.kind})"
    yield from company_facts(plan.company)


def company_facts(company: Company) -> Iterator[tuple[str, str]]:
    """What a company prescribes."""
    yield from view.document_facts(company.model_dump(mode="json", exclude_defaults=True))


def proof_facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """The speculation, how deploy proves it, the licences, and what is pinned."""
    target, drafter, pins = plan.target, plan.drafter, plan.pins
    text, proof = "none", "an answer: there is no speculation to prove"
    if speculation := plan.speculation:
        text = method_title(speculation.method, speculation.parallel_drafting)
        text += f", K={speculation.k}"
        if (floor := speculation.acceptance_floor) is not None:
            to_pay = speculation.acceptance_floor_source == "break-even"
            origin = ", to break even" if to_pay else ""
            text += f"; deploy passes at a measured acceptance length of at least {floor:g}{origin}"
        from peagle.proof import MIN_DRAFTS

        where = "the engine's counters" if plan.proof.source == "counters" else "the endpoint's log"
        each = f" of each {'copy' if plan.copies else 'instance'}" if plan.engines > 1 else ""
        proof = f"at least {MIN_DRAFTS} drafts{each}, from {where}"
    yield "speculation", text
    yield "proof", proof
    licences = f"target {target.licence or 'unknown'}"
    if drafter is not None and drafter.weights:
        licences += f", drafter {drafter.licence or 'unknown'}"
    yield "licences", licences
    yield "manifest", f"sha256 {pins.weights}" if pins.weights else ""
    warm = f"archives with sha256 {', '.join(pins.warm)}" if pins.warm else ""
    yield "warm start", "any archive next to the weights" if pins.any_warm else warm


def operation_facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """Scaling, rollout, dashboard, alarms, log and captured data, each with its cost."""
    scaling, observe, text = plan.scaling, plan.observe, ""
    if scaling is not None:
        text = scaling.text
        if prices := scaling.prices(plan.price_per_hour_usd, plan.instance_count):
            text += f"; {format_usd(prices[0])} to {format_usd(prices[1])} per hour"
        if scaling.wake_up_seconds is not None:
            text += f"; wakes up in about {scaling.wake_up_seconds // 60} min"
    yield "scaling", text
    yield "rollout", cost_text(plan.rollout)
    if observe is not None:
        parts = ["dashboard"] if observe.dashboard else []
        parts += [f"alarms on {', '.join(alarm_kinds(plan))}"] if observe.alarms else []
        days = observe.log_retention_days
        parts += [f"log kept {days} days"] if days else []
        yield "observe", "; ".join(parts)
        yield "capture", capture_text(observe.capture) if observe.capture else ""


_NOT_COMPARED = ("source", "refused")
"""Keys of compared plans that are no result: the findings are printed too."""


ComparedRow = tuple[bool, str, str, str]
"""Whether two plans differ, and the label and both texts of a fact or a setting."""


def comparison_rows(comparison: PlanComparison) -> list[ComparedRow]:
    """A row of each fact, and of the other settings that differ, also where the texts, which are
    cut or hidden, are equal."""
    first, second = (dict(view.document_facts(answer)) for answer in comparison.plans)
    rows = [(first[label] != text, label, first[label], text) for label, text in second.items()]
    return [*rows, *((True, *change.cells) for change in comparison.other_changes)]


def print_comparison(comparison: PlanComparison) -> None:
    """One line per fact, ``*`` where the two differ, and the other settings that differ."""
    rows = [row for row in comparison_rows(comparison) if row[1] not in _NOT_COMPARED]
    marked = [("*" if differs else "", *cells) for differs, *cells in rows]
    view.print_table(("", "", "A", "B"), marked)
