"""When a deployment ends by itself, as its options say: after a time, or once a budget is used up.

A plan says how long; the end time is known when it is applied. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.errors import Fix, OptionsConflict, OutOfRange
from peagle.findings import Finding, error, warning
from peagle.options import Options
from peagle.planning.operation_model import Limit, Scaling
from peagle.planning.plan import Decision, Plan, Reason
from peagle.text import format_duration, format_usd

SHORTEST_SECONDS = 60
"""EventBridge Scheduler is exact to the minute."""

COPIES_BEFORE_SECONDS = 600
"""How long before the endpoint its copies are deleted; the deletion of a component takes some
minutes. SageMaker refuses to delete an endpoint that has copies or is changing: the schedule's
retry policy is then a day long, and what still exists after that ``peagle reap`` deletes."""

_BEFORE = f"{COPIES_BEFORE_SECONDS // 60} minutes"

LONGEST_SECONDS = 366 * 24 * 3600


def choose_limit(
    options: Options,
    region: str,
    usd_per_hour: float | None,
    start_seconds: int,
    copies: bool = False,
) -> Decision[Limit | None]:
    """The limit that the options set, of an endpoint with or without ``copies``; ``usd_per_hour``
    is the price at the most instances, and ``start_seconds`` how long the endpoint may take to
    serve. Raises UserError for a limit that is none."""
    if options.no_limit:
        if options.ttl is not None or options.budget is not None:
            raise OptionsConflict(
                "--no-limit does not go with --ttl and --budget", "omit it, or the others"
            )
        return Decision(Limit())
    if options.ttl is None and options.budget is None:
        return Decision(None)
    if options.ttl is not None and not SHORTEST_SECONDS <= options.ttl <= LONGEST_SECONDS:
        raise OutOfRange("--ttl is from 1m to 366d", "choose another time, such as 8h")
    limit = Limit(ttl_seconds=options.ttl, budget_usd=options.budget)
    reasons: tuple[Reason, ...] = ()
    if text := limit_text(limit, usd_per_hour):
        because = _because(limit, usd_per_hour)
        because += f"; the copies are deleted {_BEFORE} before" if copies else ""
        reasons = (Reason(what="limit", value=text, because=because),)
    findings = tuple(_findings(limit, region, usd_per_hour, start_seconds))
    return Decision(limit, reasons=reasons, findings=findings)


def _findings(
    limit: Limit, region: str, usd_per_hour: float | None, start_seconds: int
) -> Iterator[Finding]:
    seconds = limit_seconds(limit, usd_per_hour)
    if limit.budget_usd is not None and not usd_per_hour:
        yield error(
            "budget-without-price",
            "budget",
            f"{format_usd(limit.budget_usd)} last for an unknown time: the price is unknown",
            Fix(
                "set --ttl instead, or get prices from AWS's price list",
                ("peagle", "catalog", "refresh", "--prices", "--region", region),
            ),
        )
    elif seconds is not None and seconds < start_seconds:
        yield warning(
            "limit-before-start",
            "budget" if limit.ttl_seconds is None else "ttl",
            f"the endpoint is deleted after {format_duration(seconds)}; to start, it may take up "
            f"to {format_duration(start_seconds)}",
            "set a later end",
        )


def _because(limit: Limit, usd_per_hour: float | None) -> str:
    if limit.budget_usd is None or not usd_per_hour:
        return "EventBridge Scheduler deletes the endpoint then"
    lasts = format_duration(limit.budget_usd / usd_per_hour * 3600)
    first = "" if limit.ttl_seconds is None else "the earlier of --ttl and --budget: "
    return (
        f"{first}{format_usd(limit.budget_usd)} at {format_usd(usd_per_hour)} per hour, with the "
        f"most instances, last {lasts} from the deploy; what runs more meanwhile is not counted"
    )


def limit_seconds(limit: Limit, usd_per_hour: float | None) -> int | None:
    """From the deploy to the end, in whole seconds; ``None`` without an end, or where the budget
    lasts for an unknown time."""
    ends = [] if limit.ttl_seconds is None else [limit.ttl_seconds]
    if limit.budget_usd is not None:
        if not usd_per_hour:
            return None
        ends.append(int(limit.budget_usd / usd_per_hour * 3600))
    return min(ends, default=None)


def end_time(limit: Limit, usd_per_hour: float | None, now: float) -> float | None:
    """When a deployment ends that gets this limit ``now``, in whole epoch seconds; ``None`` without
    an end. ``usd_per_hour`` is the price of the most instances."""
    seconds = limit_seconds(limit, usd_per_hour)
    return None if seconds is None else (now + seconds) // 1


def most_usd_per_hour(plan: Plan) -> float | None:
    """The price of the plan at the most instances that it may have."""
    return highest_price(plan.price_per_hour_usd, plan.instance_count, plan.scaling)


def ends_after(plan: Plan) -> int | None:
    """The seconds after which the plan's endpoint is deleted; ``None`` for never."""
    return limit_seconds(plan.limit, most_usd_per_hour(plan)) if plan.limit else None


def highest_price(usd: float | None, instances: int, scaling: Scaling | None) -> float | None:
    """The price per hour at the most instances, from that of ``instances``."""
    prices = scaling.prices(usd, instances) if scaling else None
    return prices[1] if prices else usd


def limit_text(limit: Limit, usd_per_hour: float | None) -> str:
    """``8h 00m, at most $49.52``; empty without an end."""
    seconds = limit_seconds(limit, usd_per_hour)
    if seconds is None:
        return ""
    cost = f", at most {format_usd(usd_per_hour * seconds / 3600)}" if usd_per_hour else ""
    return f"{format_duration(seconds)}{cost}"
