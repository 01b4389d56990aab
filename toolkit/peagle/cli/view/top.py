"""The screen of ``peagle top``: the use of a deployment or a local engine, in lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from peagle.cli.view.console import LABEL, bar, can_print, fact_lines, folded
from peagle.engine.usage import Usage
from peagle.text import format_duration, format_usd

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = ".:-=+*#@"
_GAUGE = 20
_UNKNOWN = "-"


def document(usage: Usage) -> dict[str, Any]:
    """What ``--json`` prints; times are in seconds, shares from 0 to 1."""
    at = datetime.fromtimestamp(usage.at, UTC).isoformat(timespec="seconds")
    return asdict(usage) | {"at": at, "variants": [document(variant) for variant in usage.variants]}


def screen(usage: Usage, width: int) -> list[str]:
    """The lines of one screen; of several variants each fact stands side by side."""
    lines = [click.style(line, bold=True) for line in folded(_heading(usage), width)]
    lines.append("")
    if usage.variants:
        facts = [dict(_facts(variant, 0)) for variant in usage.variants]
        instances = (f"{each.instances} x {each.instance_type}" for each in usage.variants)
        rows = {"instances": [*instances]} | {
            label: [texts[label] for texts in facts] for label in facts[0]
        }
        names = [variant.variant for variant in usage.variants]
        for label, texts in rows.items():
            beside = (f"{name} {text}" for name, text in zip(names, texts, strict=True))
            lines += fact_lines([(label, "; ".join(beside))], width)
        together = (_requests(usage, 0), _in_progress(usage), _cost(usage))
        lines += fact_lines([("together", "; ".join(together))], width)
    else:
        for label, text in _facts(usage, width - LABEL - 2):
            is_low = label == "acceptance" and is_below_floor(usage)
            shown = fact_lines([(label, text)], width)
            lines += (click.style(line, fg="red") if is_low else line for line in shown)
    for note in usage.notes:
        lines += folded(f"  {note}", width, "")
    return lines


def is_below_floor(usage: Usage) -> bool:
    """Whether fewer drafts are accepted than a proof requires."""
    length, floor = usage.acceptance_length, usage.acceptance_floor
    return length is not None and floor is not None and length < floor


def _heading(usage: Usage) -> str:
    """Name, state, instances, place, and the time that the numbers are of."""
    instances = f"{usage.instances} x {usage.instance_type}" if usage.instance_type else ""
    instances = f"{len(usage.variants)} variants" if usage.variants else instances
    place = {"local": "this machine", "sandbox": "sandbox"}.get(usage.where, "")
    over = f"last {format_duration(usage.window_seconds)}"
    state = ", ".join(filter(None, (usage.state, instances, place, over)))
    return f"{usage.name}: {state}"


def _facts(usage: Usage, width: int) -> Iterator[tuple[str, str]]:
    if usage.share is not None:
        yield "share", f"{usage.share:.1%} of the requests"
    yield "requests", _requests(usage, width)
    yield "in progress", _in_progress(usage)
    if usage.where != "local":
        yield "errors", _number(usage.error_share, "{:.1%} with a 5xx status")
    yield "TTFT", _times(usage)
    yield "ITL", _number(usage.itl, "{:.1f} ms per token", 1000)
    yield "tokens", _number(usage.tokens_per_second, "{:.1f} per second")
    yield "KV cache", _gauge(usage.kv_cache_share)
    yield "acceptance", _acceptance(usage)
    yield "cost", _cost(usage)


def _requests(usage: Usage, width: int) -> str:
    text = _number(usage.requests_per_minute, "{:.1f} per minute")
    trend = _trend(usage.requests_by_minute)
    return f"{text}  {trend}" if trend and len(text) + len(trend) + 2 <= width else text


def _trend(values: tuple[float, ...]) -> str:
    """A bar for each minute, the newest last; empty for a single one."""
    if len(values) < 2:
        return ""
    bars = _BARS if can_print(_BARS) else _PLAIN_BARS
    highest = max(values) or 1.0
    return "".join(bars[round(value / highest * (len(bars) - 1))] for value in values)


def _in_progress(usage: Usage) -> str:
    if usage.running is None:
        return _UNKNOWN
    return f"{usage.running:.0f} running, {usage.waiting or 0:.0f} waiting"


def _times(usage: Usage) -> str:
    if usage.ttft_p50 is None or usage.ttft_p90 is None:
        return _UNKNOWN
    return f"{_milliseconds(usage.ttft_p50)} median, {_milliseconds(usage.ttft_p90)} p90"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _gauge(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{bar([(share, '')], _GAUGE).plain} {share:.1%}"


def _acceptance(usage: Usage) -> str:
    if usage.k is None:
        return "no speculation"
    floor = usage.acceptance_floor
    limit = f", floor {floor:g}" if floor is not None else ""
    if usage.acceptance_length is None:
        return f"{_UNKNOWN} (K={usage.k}{limit})"
    low = ", below the floor" if is_below_floor(usage) else ""
    return f"{usage.acceptance_length:.2f} tokens per step (K={usage.k}{limit}){low}"


def _cost(usage: Usage) -> str:
    if usage.where == "local":
        return "this machine"
    if usage.usd_per_hour is None:
        return "unknown price"
    text = f"{format_usd(usage.usd_per_hour)} per hour"
    if usage.usd_per_million_tokens is not None:
        text += f", {format_usd(usage.usd_per_million_tokens)} per million output tokens"
    return f"{text} on AWS" if usage.where == "sandbox" else text


def _number(value: float | None, shown: str, factor: float = 1.0) -> str:
    return _UNKNOWN if value is None else shown.format(value * factor)
