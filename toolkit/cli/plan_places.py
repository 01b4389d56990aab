"""The best instance types for the load, and what is known of their speed, for people."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from toolkit.cli.columns import fitted
from toolkit.money import dollars
from toolkit.planning import Plan
from toolkit.planning.models import Alternative
from toolkit.planning.words import at_a_time

UNVERIFIED = "unverified"
"""What a plan says of a speed that nobody measured."""

_UNKNOWN = (UNVERIFIED, "-")


HEADS = ("", "instances", "on each", "USD/hour", "holds", "K", "tokens/s", "USD/1M")

_DISPENSABLE = ("on each", "USD/1M", "tokens/s")
"""Columns that go where the terminal is too narrow, in this order."""

LEGEND = (
    "*: planned. holds: full requests in the cache. tokens/s: output of all together. "
    "USD/1M: for a million of them. -: not known."
)


def speed_text(plan: Plan) -> str:
    """What evidence says of the speed of the plan, and where it comes from."""
    speed = plan.speed
    if speed is None:
        gpus = f"{plan.fit.tensor_parallel_size} x {plan.fit.gpu}"
        load = at_a_time(plan.concurrency)
        return f"{UNVERIFIED}: nobody measured it on {gpus} with {load}"
    words = f"{speed.tokens_per_second:,.0f} tokens/s in all"
    if speed.alone_tokens_per_second is not None and plan.speculation is not None:
        words += f" ({speed.alone_tokens_per_second:,.0f} without speculation)"
    if speed.usd_per_million_tokens is not None:
        words += f", {dollars(speed.usd_per_million_tokens)} per million"
    return f"{words}; {speed.source}"


def places_table(plan: Plan, width: int) -> Table:
    """One line for each of the best places, and for the planned one, which has a star."""
    places = [*plan.alternatives]
    if not any(_planned(plan, place) for place in places):
        places.insert(0, _own(plan))
    rows, _ = fitted([HEADS, *(_row(plan, place) for place in places)], width, _DISPENSABLE)
    table = Table.grid(padding=(0, 2))
    for head in rows[0]:
        words = head in ("", "instances", "on each")
        table.add_column(justify="left" if words else "right", no_wrap=True)
    table.add_row(*(Text(head, "dim") for head in rows[0]))
    for row in rows[1:]:
        table.add_row(*(Text(cell, "dim" if cell in _UNKNOWN else "") for cell in row))
    return table


def _planned(plan: Plan, place: Alternative) -> bool:
    ours = (plan.instance_type, plan.instance_count)
    return (place.instance_type, place.instance_count) == ours


def _own(plan: Plan) -> Alternative:
    """The place of the plan itself, which the user named."""
    fit, speed = plan.fit, plan.speed
    return Alternative(
        instance_type=plan.instance_type,
        instance_count=plan.instance_count,
        gpu=fit.gpu,
        tensor_parallel_size=fit.tensor_parallel_size,
        price_per_hour_usd=plan.price_per_hour_usd,
        max_concurrency=fit.max_concurrency,
        kv_cache_tokens=fit.kv_cache_tokens,
        k=plan.speculation.k if plan.speculation else 0,
        tokens_per_second=speed.tokens_per_second if speed else None,
        speed_source=speed.source if speed else None,
        usd_per_million_tokens=speed.usd_per_million_tokens if speed else None,
        verified=speed is not None,
    )


def _row(plan: Plan, place: Alternative) -> tuple[str, ...]:
    speed = place.tokens_per_second
    return (
        "*" if _planned(plan, place) else "",
        _counted(place.instance_count, place.instance_type),
        f"{place.tensor_parallel_size} x {place.gpu}",
        _dollars(place.price_per_hour_usd),
        f"{place.max_concurrency * place.instance_count:,.1f}",
        str(place.k) if place.k else "none",
        UNVERIFIED if speed is None else f"{speed:,.0f}",
        _dollars(place.usd_per_million_tokens),
    )


def _counted(count: int, what: str) -> str:
    return what if count == 1 else f"{count} x {what}"


def _dollars(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.2f}"
