"""What a deployment costs, has cost so far, and how long it lasts.

The cost so far is an estimate: all the time since the endpoint was requested, at the price of what
runs now. AWS's own account of it is the bill.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from peagle.aws.client import Clock
from peagle.aws.sagemaker import BUSY, Endpoint
from peagle.deploy.revisions import shown_revision
from peagle.deploy.state import Deployment
from peagle.deploy.variants import compares_now, usd_per_hour_of
from peagle.errors import Refused
from peagle.planning.plan import Plan

ENDED = "Ended"
"""The state of a deployment whose endpoint was deleted at its end time."""


def has_ended(record: Deployment, live: Endpoint | None, now: float | None = None) -> bool:
    """Whether the end time has passed and the endpoint is gone."""
    return live is None and is_past_end(record, now)


def is_past_end(record: Deployment, now: float | None = None) -> bool:
    """Whether the end time has passed."""
    moment = Clock().now() if now is None else now
    return record.ends_at is not None and record.ends_at <= moment


def cost_fields(
    record: Deployment, live: Endpoint | None, usd_per_hour: float | None
) -> dict[str, Any]:
    """The keys of ``list`` and ``status`` about cost and end: in USD, seconds and UTC. ``None``
    where the price is unknown, or there is no end."""
    now = Clock().now()
    ends_at = record.ends_at
    return {
        "price_per_day_usd": None if usd_per_hour is None else round(usd_per_hour * 24, 2),
        "cost_so_far_usd": cost_so_far(record, live, usd_per_hour, now),
        "ends_at": None if ends_at is None else utc_text(ends_at),
        "seconds_left": None if ends_at is None else max(0, int(ends_at - now)),
    }


def cost_so_far(
    record: Deployment, live: Endpoint | None, usd_per_hour: float | None, now: float
) -> float | None:
    """USD since the request, at ``usd_per_hour`` of what runs now; of an endpoint that ended, until
    its end. ``None`` where that is unknown."""
    since = record.billing_since or (live.created if live else None)
    if live is None:
        if record.serving is None:
            return 0.0
        if record.ends_at is None:
            return None
        now, usd_per_hour = min(now, record.ends_at), record.serving.served.usd_per_hour
    if usd_per_hour is None or since is None:
        return None
    return round(max(0.0, now - since) / 3600 * usd_per_hour, 2)


def usd_per_hour_now(record: Deployment, live: Endpoint | None) -> float | None:
    """USD per hour that the deployment costs now; ``None`` when that is unknown, or the endpoint
    was deleted elsewhere.

    The instances that run count; while an endpoint is created, those of its configuration."""
    if live is None:
        return None if record.serving else 0.0
    if live.status == "Failed":
        return 0.0
    if compares_now(record, live):
        prices = usd_per_hour_of(record, live).values()
        return None if None in prices else round(sum(price or 0 for price in prices), 4)
    served = shown_revision(record, live).served
    if served.usd_per_hour is None or not served.instance_count:
        return served.usd_per_hour
    running = live.instance_count or (served.instance_count if live.status in BUSY else 0)
    return served.with_instances(running).usd_per_hour


def utc_text(moment: float) -> str:
    """``2026-11-22T20:15:00Z``, for epoch seconds."""
    return datetime.fromtimestamp(moment, UTC).strftime(_UTC)


def utc_moment(text: str) -> float | None:
    """The epoch seconds of such a text; ``None`` for any other."""
    try:
        return datetime.strptime(text, _UTC).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


_UTC = "%Y-%m-%dT%H:%M:%SZ"


def require_known_price(plan: Plan, accepted: bool) -> None:
    """Raise Refused for a plan without a known price, unless that is accepted."""
    if plan.price_per_hour_usd is None and not accepted:
        raise Refused(
            f"the price of {plan.instance_type} in {plan.region} is unknown",
            "look up the price, then add --accept-unknown-price",
            code="price-unknown",
        )
