"""What a deployment costs, has cost so far, and how long it lasts.

The cost so far is the sum of what this machine's commands have started, at the price of each, since
the endpoint was requested. Where that is not known (another machine made it, scaling chooses the
number, another client changed it), it is an estimate, at the price of what runs now. AWS's own
account of it is the bill.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    record: Deployment, live: Endpoint | None, usd_per_hour: float | None, scales: bool
) -> dict[str, Any]:
    """The keys of ``list`` and ``status`` about cost and end: in USD, seconds and UTC. ``None``
    where the price is unknown, or there is no end. ``scales``: whether scaling chooses the number
    of instances."""
    now = Clock().now()
    ends_at = record.ends_at
    cost = cost_so_far(record, live, usd_per_hour, scales, now)
    return {
        "price_per_day_usd": None if usd_per_hour is None else round(usd_per_hour * 24, 2),
        "cost_so_far_usd": cost.usd,
        "cost_so_far_basis": cost.basis,
        "ends_at": None if ends_at is None else utc_text(ends_at),
        "seconds_left": None if ends_at is None else max(0, int(ends_at - now)),
    }


@dataclass(frozen=True)
class Cost:
    """USD, ``None`` when unknown, and whether they are ``exact``: of prices that were recorded as
    they changed."""

    usd: float | None
    exact: bool = False

    @property
    def basis(self) -> str | None:
        """``recorded`` or ``estimate``; ``None`` of an unknown cost."""
        if self.usd is None:
            return None
        return "recorded" if self.exact else "estimate"


def cost_so_far(
    record: Deployment,
    live: Endpoint | None,
    usd_per_hour: float | None,
    scales: bool,
    now: float,
) -> Cost:
    """Since the request; of an endpoint that ended, until its end. ``usd_per_hour`` is the price
    of what runs now."""
    since = record.billing_since or (live.created if live else None)
    if live is None:
        if record.ends_at is None or since is None or not record.serving:
            return Cost(None) if record.serving else Cost(0.0, exact=True)
        now, usd_per_hour = min(now, record.ends_at), record.serving.served.usd_per_hour
    if usd_per_hour is None or since is None:
        return Cost(None)
    history, last = record.history, record.history.last
    if last is None or history.periods[0].since > since + _SAME_START_SECONDS:
        return Cost(round(max(0.0, now - since) / 3600 * usd_per_hour, 2))
    is_busy = live is not None and live.status in BUSY
    is_same = last.usd_per_hour is not None and abs(last.usd_per_hour - usd_per_hour) < _SAME_USD
    if not is_busy and not is_same:  # another client changed it, or scaling did
        changed = last.model_copy(update={"usd_per_hour": usd_per_hour})
        history = history.model_copy(update={"periods": (*history.periods[:-1], changed)})
    scales = scales or any(one.plan and one.plan.scaling for one in record.revisions)
    usd = history.cost(now)
    exact = is_same and not is_busy and not scales
    return Cost(None if usd is None else round(usd, 2), exact)


_SAME_START_SECONDS = 60
_SAME_USD = 0.0002
"""Prices are rounded to 0.0001 USD per hour."""


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
