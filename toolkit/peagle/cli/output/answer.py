"""The answer that ``peagle plan`` prints: what to buy, how fast it is, what it costs, what next.

``--verbose`` adds the rest of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import click

from peagle import api
from peagle.cli.context import fix_in_context
from peagle.cli.output.console import terminal_width, where_text, wrapped
from peagle.findings import Finding, errors
from peagle.planning import Plan
from peagle.planning.candidates import SAME_COST_FACTOR
from peagle.planning.drafter import NO_HEAD
from peagle.planning.limit import limit_text
from peagle.planning.observe import capture_text, observability_text
from peagle.planning.plan import Alternative, Batch, Speculation, SpeedEstimate, price_origin
from peagle.planning.rollout import cost_text
from peagle.text import (
    basis_text,
    exact_duration,
    format_duration,
    format_requests,
    format_usd,
    usd_per_million,
)
from peagle.vllm.defaults import method_title

_LABEL = 12
_PIPE_WIDTH = 120

_COLORS = {"error": "red", "warning": "yellow"}

_ACCEPTANCE = {
    "imposed": "is synthetic, not from your text",
    "published": "is published, not from your text",
    "unknown": "is unknown for this drafter",
}
"""What is uncertain about the acceptance length, by its basis."""


def print_answer(plan: Plan, next_command: str | None, verbose: bool) -> None:
    """The answer on stdout. ``next_command`` is what to type next; ``verbose``: the whole plan
    follows, findings included."""
    width = min(terminal_width(_PIPE_WIDTH), _PIPE_WIDTH)
    lines = [click.style(line, bold=True) for line in wrapped(_load_text(plan), width)]
    for label, text in _facts(plan):
        lines += _labelled(label, text, width)
        if label == "speculate":
            lines += _drafting_options(plan.findings, width)
    if not verbose:
        lines += _finding_lines(plan.findings, width)
    if next_command:
        lines.append(f"{click.style('Next:', bold=True)} {next_command}")
    click.echo("\n".join(lines))


def _drafting_options(findings: Sequence[Finding], width: int) -> Iterator[str]:
    """What the owner of a target without a head can do, each with its command."""
    for finding in findings:
        if finding.code == NO_HEAD:
            yield from _labelled("option", fix_in_context(finding.fix, finding.command), width)


def _label(text: str, color: str | None = None) -> str:
    return click.style(f"{text:<{_LABEL}}", bold=True, fg=color)


def _labelled(label: str, text: str, width: int, color: str | None = None) -> Iterator[str]:
    for number, line in enumerate(wrapped(text, width - _LABEL)):
        yield f"{' ' * _LABEL if number else _label(label, color)}{line}"


def _load_text(plan: Plan) -> str:
    """``openai/gpt-oss-20b for 10 requests at a time; chat: ...``: target, load and workload."""
    text = f"{plan.target.id} for {format_requests(plan.concurrency)} at a time"
    if plan.batch is not None:
        within = plan.batch.within_seconds
        limit = f" within {exact_duration(within)}" if within else ""
        text = f"{plan.target.id}: {plan.batch.requests:,} requests{limit}, {plan.concurrency:,} "
        text += "at a time"
    if size := plan.request_size:
        cached = size.cached_prompt_tokens
        kind = plan.workload or ("with a cached prefix" if cached else "single prompts")
        text += f"; {kind}: {size.prompt_tokens:,} + {size.output_tokens:,} tokens each"
        text += f", {size.cached_text}" if cached else ""
    text += f"; context {plan.max_model_len:,}"
    if size and size.cached_prompt_tokens > size.shared_prompt_tokens:
        turns = (plan.max_model_len - size.tokens) // (size.new_prompt_tokens + size.output_tokens)
        text += f" (room for {turns} more turn{'' if turns == 1 else 's'})" if turns > 0 else ""
    return f"{text}, {plan.slo.text}" if plan.slo else text


def is_priced(plan: Plan) -> bool:
    """Whether prices and speeds are of requests that fit the context; the engine rejects others."""
    return all(finding.code != "requests-above-context" for finding in plan.findings)


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    if not is_priced(plan):
        return
    reasons = {reason.what: reason for reason in plan.reasons}
    why = reasons["speculation"].because if "speculation" in reasons else ""
    yield "speculate", f"{_choice(plan)}{': ' if why else ''}{why}"
    copies = _copies(plan.copies.per_instance if plan.copies else None, plan.instance_count)
    where = f"{plan.instance_count} x {plan.instance_type} ({_gpus(plan)}{copies}) in {plan.region}"
    if plan.engines > 1:
        each = plan.concurrency / busy_engines(plan)
        where += f", {'' if each == int(each) else 'about '}{each:,.0f} at a time per engine"
    price = "price unknown"
    if plan.price_per_hour_usd is not None:
        price = f"{format_usd(plan.price_per_hour_usd)} per hour ({price_origin(plan)})"
    elif plan.alternatives and all(o.price_per_hour_usd is None for o in plan.alternatives):
        price += f": no type that fits has a known price in {plan.region}"
    yield "instance", f"{where}, {price}"
    if plan.scaling is not None:
        yield "scaling", plan.scaling.priced_text(plan.price_per_hour_usd, plan.instance_count)
    if plan.limit and (text := limit_text(plan.limit, api.most_usd_per_hour(plan))):
        yield "limit", f"the endpoint is deleted after {text}"
    if plan.speed is not None:
        speed = speed_of_plan(plan, plan.speed, plan.price_per_hour_usd)
        yield "speed", f"{speed}{times_text(plan.speed)}"
        if plan.cached_prompt_tokens and plan.speed.tokens_per_second:
            yield "cache", _cache_text(plan, plan.speed)
    if plan.batch is not None:
        yield "batch", _batch_text(plan, plan.batch)
    if plan.rollout is not None:
        yield "rollout", cost_text(plan.rollout)
    if text := observability_text(plan):
        yield "observe", text
    if plan.observe and plan.observe.capture:
        yield "capture", capture_text(plan.observe.capture)
    alone, other = plan.without_speculation, other_choice(plan)
    least = None if plan.batch else least_cost(plan)
    if alone is not None and plan.speculation is not None:
        text = _alternative_text(plan, alone, "")
        text += "; not known to meet what is required" if _misses(plan, alone) else ""
        if best := reasons.get("instance_without_speculation"):
            text += f"; the best type without speculation is {best.value}: {best.because}"
        yield "without", text
    if other is not None:
        yield "or", f"{_other_text(plan, other)}{_tie(plan, other) if other == least else ''}"
    if least is not None and least != other:
        yield "or", f"{_other_text(plan, least)}{_tie(plan, least)}"
    if plan.speed is not None and not errors(plan.findings):
        yield "uncertain", _uncertain(plan, plan.speed)


def _cache_text(plan: Plan, speed: SpeedEstimate) -> str:
    """What the prefix cache is expected to give, and how many conversations it keeps."""
    share = speed.cached_prompt_tokens / (plan.prompt_tokens or 1)
    text = f"{speed.cached_prompt_tokens:,} tokens of a prompt ({share:.0%}) expected from the "
    text += "prefix cache"
    if plan.engines > 1:
        text += f", because SageMaker spreads turns over {plan.engines} engines"
    if speed.conversations is None or not speed.cached_prompt_tokens:
        return text
    each = " of each engine" if plan.engines > 1 else ""
    size, shared = (plan.prompt_tokens or 0) + (plan.output_tokens or 0), plan.shared_prompt_tokens
    text += f"; the KV cache{each} keeps {speed.conversations:,} conversations of {size:,} tokens"
    text += f", the {shared:,} shared ones once" if shared else ""
    return f"{text}; with more open conversations, fewer hits"


def _batch_text(plan: Plan, batch: Batch) -> str:
    """How long a batch takes, and what it costs."""
    if batch.seconds is None or plan.speed is None:
        return "time and cost are unknown, because the speed is"
    text = f"{batch.requests:,} requests take {format_duration(batch.seconds)}"
    ends = [
        api.batch_at(batch, plan.output_tokens or 0, speed, None).seconds
        for speed in (plan.speed.high, plan.speed.low)
    ]
    if None not in ends and plan.speed.basis == "estimated":
        text += f" ({' to '.join(format_duration(seconds or 0) for seconds in ends)})"
    if batch.usd is not None:
        text += f" and cost {format_usd(batch.usd)}"
    return f"{text}, the start of the instances included; delete the endpoint afterwards"


def _gpus(plan: Plan) -> str:
    """``L40S``, ``4 x L4``, ``2 of 4 x L4``."""
    used, count = plan.fit.tensor_parallel_size, plan.fit.gpu_count
    used *= plan.copies.per_instance if plan.copies else 1
    if used == count:
        return plan.fit.gpu if count == 1 else f"{count} x {plan.fit.gpu}"
    return f"{used} of {count} x {plan.fit.gpu}"


def _copies(copies: int | None, instances: int) -> str:
    """``, 8 copies``, ``, 8 copies each``; empty without copies."""
    if copies is None:
        return ""
    return f", {copies} {'copy' if copies == 1 else 'copies'}{' each' if instances > 1 else ''}"


def _choice(plan: Plan) -> str:
    """``yes, P-EAGLE with K=3``, or ``no``."""
    if plan.speculation is None:
        return "no"
    head = f" ({plan.drafter.id})" if plan.drafter and plan.drafter.weights else ""
    beyond = ", extrapolated" if plan.speed and plan.speed.extrapolated else ""
    return f"yes, {method_name(plan.speculation)} with K={plan.speculation.k}{beyond}{head}"


def method_name(speculation: Speculation) -> str:
    """``P-EAGLE``, ``EAGLE-3``."""
    return method_title(speculation.method, speculation.parallel_drafting)


def speed_of_plan(plan: Plan, speed: SpeedEstimate, price: float | None = None) -> str:
    """Tokens per second of the plan's instances together, and their cost with a ``price``."""
    return speed_text(speed, price, busy_engines(plan), "copy" if plan.copies else "instance")


def speed_text(
    speed: SpeedEstimate, price: float | None = None, engines: int = 1, each: str = "instance"
) -> str:
    """Tokens per second and cost of ``engines`` together, measured or estimated with their
    ranges. ``each`` says what has an engine."""
    if speed.tokens_per_second is None:
        return f"unknown: {speed.source}"
    text = f"{speed.tokens_per_second:,.0f} tokens/s{basis_text(speed.basis, engines, each)}"
    ranged = speed.low is not None and speed.high is not None and speed.low < speed.high
    if ranged:
        text += f" ({speed.low:,.0f} to {speed.high:,.0f})"
    if speed.usd_per_million_tokens is None:
        return text
    text += f", {format_usd(speed.usd_per_million_tokens)} per million output tokens"
    if not ranged or price is None:
        return text
    ends = (usd_per_million(price, rate) for rate in (speed.high, speed.low))
    costs = [format_usd(usd) for usd in ends if usd is not None]
    return f"{text} ({' to '.join(costs)})"


def busy_engines(plan: Plan) -> int:
    """How many of the plan's engines have requests."""
    return min(plan.engines, plan.concurrency)


def times_text(speed: SpeedEstimate) -> str:
    """``; first token after 514 ms, then 3.2 tokens every 31 ms``; empty where unknown."""
    if speed.ttft_seconds is None or speed.itl_seconds is None:
        return ""
    tokens = "one" if not speed.acceptance_length else f"{speed.acceptance_length:.2g} tokens"
    if speed.acceptance_basis == "none":
        tokens = "one"
    first, then = _seconds(speed.ttft_seconds), _seconds(speed.itl_seconds)
    return f"; first token after {first}, then {tokens} every {then}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def is_planned(plan: Plan, other: Alternative) -> bool:
    """Whether an alternative has the planned instances."""
    ours = (plan.instance_type, plan.instance_count)
    return (other.instance_type, other.instance_count) == ours


def other_choice(plan: Plan) -> Alternative | None:
    """The cheapest other instances that meet what is required: those with the lowest price
    per hour, else the next best."""
    others = [
        other
        for other in plan.alternatives
        if not (is_planned(plan, other) or _misses(plan, other))
        and other != plan.without_speculation
    ]
    price = plan.price_per_hour_usd
    for other in sorted(others, key=lambda other: other.price_per_hour_usd or math.inf):
        if other.price_per_hour_usd and price and other.price_per_hour_usd < price:
            return other
    another_gpu = (other for other in others if other.gpu != plan.fit.gpu)
    return next(another_gpu, others[0] if others else None)


def least_cost(plan: Plan) -> Alternative | None:
    """The other instances with the lowest cost per token, if that is below the plan's."""
    ours = _cost(plan.speed)
    lower = [
        other for other in plan.alternatives if not _misses(plan, other) and _cost(other) < ours
    ]
    return min(lower, key=_cost, default=None) if ours < math.inf else None


def _cost(speed: SpeedEstimate | None) -> float:
    usd = speed.usd_per_million_tokens if speed is not None else None
    return math.inf if usd is None else usd


def _other_text(plan: Plan, other: Alternative) -> str:
    """Other instances with their drafter."""
    drafts = f" with {other.drafter} K={other.k}" if other.drafter else ""
    without = " without speculation" if plan.speculation else ""
    return _alternative_text(plan, other, drafts or without)


def _tie(plan: Plan, least: Alternative) -> str:
    """Why they are not planned although they cost less per token; empty for another reason."""
    ours, theirs = plan.price_per_hour_usd or math.inf, least.price_per_hour_usd or 0
    if _cost(plan.speed) > SAME_COST_FACTOR * _cost(least) or ours >= theirs:
        return ""
    return f"; within {SAME_COST_FACTOR * 100 - 100:.0f} % the lower price per hour wins"


_REQUIREMENTS = ("speed-below-minimum", "speed-unverified", "slo-missed", "slo-unverified")


def _misses(plan: Plan, other: Alternative) -> bool:
    """Whether the plan's load has requirements that these instances are not known to meet."""
    required = plan.slo is not None or any(f.code in _REQUIREMENTS for f in plan.findings)
    return required and not other.verified


def _alternative_text(plan: Plan, other: Alternative, how: str) -> str:
    price = "price unknown"
    if other.price_per_hour_usd is not None:
        price = f"{format_usd(other.price_per_hour_usd)} per hour"
    if is_planned(plan, other):
        where = "the same instance"
    else:
        gpus = other.tensor_parallel_size * (other.copies or 1)
        gpu = f"{f'{gpus} x ' if gpus > 1 else ''}{other.gpu}"
        gpu += _copies(other.copies, other.instance_count)
        where = f"{other.instance_count} x {other.instance_type} ({gpu}){how}, {price}"
    each = "copy" if other.copies else "instance"
    speed = speed_text(other, engines=min(other.engines, plan.concurrency), each=each)
    batch = other.batch
    if batch is not None and batch.seconds is not None and batch.usd is not None:
        speed += f"; {format_duration(batch.seconds)}, {format_usd(batch.usd)}"
    return f"{where}: {speed}"


def _uncertain(plan: Plan, speed: SpeedEstimate) -> str:
    """What is unknown of the target, and what the numbers rest on."""
    parts = []
    if any(finding.code == "target-not-in-catalogue" for finding in plan.findings):
        parts.append(
            "licence and the settings of its model card are unknown (not in the catalogue)"
        )
    if speed.acceptance_basis in _ACCEPTANCE:
        about = _ACCEPTANCE[speed.acceptance_basis]
        length = f" {speed.acceptance_length:.2f}" if speed.acceptance_length else ""
        parts.append(f"acceptance length{length} {about}")
    if speed.extrapolated and plan.speculation:
        extrapolated = f"acceptance at K={plan.speculation.k} is extrapolated from smaller K"
        for reason in (reason for reason in plan.reasons if reason.what == "break_even"):
            extrapolated += f"; break-even: {reason.value} ({reason.because})"
        parts.append(extrapolated)
    if speed.cached_prompt_tokens:
        parts.append("hits of the prefix cache are assumed")
    if speed.basis == "estimated":
        parts.append("speed is computed, not measured for this GPU and load")
    elif speed.basis == "measured":
        parts.append("speed is that of the best repetition")
    return "; ".join(parts)


def _finding_lines(findings: Sequence[Finding], width: int) -> list[str]:
    """Errors with their fixes, else two warnings; how many others there are."""
    urgent = [finding for finding in findings if finding.level == "error"]
    urgent = urgent or [finding for finding in findings if finding.level == "warning"][:2]
    lines = [line for finding in urgent for line in _finding_text(finding, width)]
    return [*lines, *_rest([finding for finding in findings if finding not in urgent], width)]


def _finding_text(finding: Finding, width: int) -> list[str]:
    """A finding with its fix, whose command gets its own line if it does not fit."""
    color = _COLORS[finding.level]
    start = f"{where_text(finding.where)}: {finding.message}"
    fix = fix_in_context(finding.fix, finding.command)
    whole = [*_labelled(finding.level, f"{start}; fix: {fix}" if fix else start, width, color)]
    command = fix_in_context("", finding.command) if finding.command else ""
    if not command or command in click.unstyle(whole[-1]):
        return whole
    fix = f"; fix: {finding.fix}:" if finding.fix else "; fix:"
    return [
        *_labelled(finding.level, f"{start}{fix}", width, color),
        f"{' ' * _LABEL}{command}",
    ]


def _rest(findings: Sequence[Finding], width: int) -> list[str]:
    """``more        2 warnings (instance-scarce, gpus-idle), 5 notes: --verbose``; no line without
    any."""
    parts = []
    for level in ("error", "warning", "note"):
        codes = [finding.code for finding in findings if finding.level == level]
        names = f" ({', '.join(dict.fromkeys(codes))})" if level != "note" else ""
        if codes:
            parts.append(f"{len(codes)} {level}{'' if len(codes) == 1 else 's'}{names}")
    return [*_labelled("more", f"{', '.join(parts)}: --verbose", width)] if parts else []
