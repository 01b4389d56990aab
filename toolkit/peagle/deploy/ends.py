"""When a deployment ends: computed from its limit, its price and the cost of extra instances.
Reads only.

A budget counts since the endpoint was requested, at the price of the most instances that may run.
Extra instances come on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from peagle.aws import sagemaker
from peagle.aws.sagemaker import Endpoint
from peagle.deploy.context import DeploymentContext
from peagle.deploy.costs import utc_text
from peagle.deploy.extra_instances import extra_instances_now
from peagle.deploy.revisions import deploy_command
from peagle.deploy.scaling import kept_scaling, most_instances, planned_before
from peagle.deploy.state import Deployment, Revision
from peagle.deploy.variants import first_variant
from peagle.errors import Fix, Refused
from peagle.planning.limit import ExtraInstances, budget_until, end_time
from peagle.planning.operation_model import Limit
from peagle.text import format_usd


@dataclass(frozen=True)
class End:
    """``at`` in epoch seconds; ``None`` for never. ``budget_usd`` is the budget that it keeps to,
    also at a higher price; ``None`` without one. ``latest`` is the end without extra instances, at
    ``usd_per_hour`` of the most instances."""

    at: float | None = None
    budget_usd: float | None = None
    latest: float | None = None
    usd_per_hour: float | None = None


def recorded_end(record: Deployment) -> End:
    """The end as it is."""
    return End(record.ends_at, record.budget_usd, record.latest_end, record.most_usd_per_hour)


SAME_END_SECONDS = 60
"""Ends that differ by less are the same: EventBridge Scheduler is exact to the minute."""


def planned_end(
    context: DeploymentContext, revision: Revision, keeps_bounds: bool | None = None
) -> End:
    """When the deployment ends once ``revision`` is applied now.

    A plan with a limit sets the end time. One without keeps it, or moves it to an earlier time
    where the budget ends sooner at the price of the most instances that may run; the budget counts
    since the endpoint was requested. ``keeps_bounds``: automatic scaling stays as registered if the
    plan has none; by default where no plan of the deployment scales. Raises Refused for an end that
    has passed.
    """
    record, now = context.record, context.clock.now()
    limit = revision.plan.limit if revision.plan else None
    if limit is None and record.ends_at is None:
        return End()
    live = live_endpoint(context)
    since = _since(record, live, now)
    if keeps_bounds is None:
        keeps_bounds = not planned_before(record)
    if limit is None and live is None and (record.ends_at or 0) <= now:
        return End()
    budget = record.budget_usd if limit is None else limit.budget_usd
    price = _highest_price(context, revision, live, keeps_bounds) if budget else None
    extra = _extra_instances(context, live)
    if limit is None:
        end = _within_budget(record, price, now, since, extra)
    else:
        end = _end(limit, price, now, since, extra)
    if end.at is None:
        return End()
    if end.at <= now:
        raise Refused(
            f"the end of {record.name} has passed: {utc_text(end.at)}{_budget_text(budget)}",
            Fix(
                "set a later end with --ttl or --budget, or remove it",
                ("peagle", "destroy", record.name),
            ),
            code="limit-passed",
        )
    return end


def _extra_instances(context: DeploymentContext, live: Endpoint | None) -> ExtraInstances:
    """The extra instances that have run until now, and go on."""
    if live is None:
        return ExtraInstances()
    used = context.record.history.extra_usd_by(context.clock.now())
    return replace(extra_instances_now(context.record, live), used_usd=used)


def _end(
    limit: Limit, usd_per_hour: float | None, now: float, since: float, extra: ExtraInstances
) -> End:
    """The end that a limit of now sets."""
    return End(
        end_time(limit, usd_per_hour, now, since, extra),
        limit.budget_usd,
        end_time(limit, usd_per_hour, now, since),
        usd_per_hour,
    )


def _highest_price(
    context: DeploymentContext, revision: Revision, live: Endpoint | None, keeps_bounds: bool
) -> float | None:
    """USD per hour at the most instances that may run once the endpoint serves ``revision``."""
    after, _ = kept_scaling(context, revision)
    most = most_instances(context.aws, context.record, revision, live, after, keeps_bounds)
    return revision.served.with_instances(most).usd_per_hour


def _budget_text(budget: float | None) -> str:
    if budget is None:
        return ""
    return f" (all the time since the creation counts to the budget of {format_usd(budget)})"


def _within_budget(
    record: Deployment,
    usd_per_hour: float | None,
    now: float,
    since: float,
    extra: ExtraInstances,
) -> End:
    """The end of a deployment that has one, at this price of the most instances: when the budget is
    used up, counted from ``since``, and never later than it would be without extra instances.
    Raises Refused where the price is unknown that a budget needs."""
    latest = record.latest_end or record.ends_at
    assert latest is not None
    if record.budget_usd is None:
        return End(latest, None, latest)
    limit = Limit(budget_usd=record.budget_usd)
    end = _end(limit, usd_per_hour, now, since, extra)
    if end.at is None or end.latest is None:
        raise Refused(
            f"the budget of {record.name} cannot be kept: the price is unknown",
            "set an end with --ttl instead",
            code="budget-without-price",
        )
    latest = min(latest, end.latest)
    return replace(end, at=min(latest, end.at), latest=latest)


def end_with(
    context: DeploymentContext, live: Endpoint, extra: ExtraInstances | None = None
) -> End:
    """The end of a deployment with a budget while ``extra`` instances run; by default those that
    run now. The price of the most instances stays as it is."""
    record, now = context.record, context.clock.now()
    used = record.history.extra_usd_by(now)
    counted = replace(extra or extra_instances_now(record, live), used_usd=used)
    price = record.most_usd_per_hour
    if price is None:
        price = _highest_price(context, record.current, first_variant(live), keeps_bounds=True)
    return _within_budget(record, price, now, _since(record, live, now), counted)


def end_at_price(
    context: DeploymentContext, live: Endpoint, usd_per_hour: float | None
) -> End | None:
    """The end that another price of the most instances moves that of the budget to; ``None`` where
    it stays. Raises Refused for an end that has passed."""
    record, now = context.record, context.clock.now()
    if record.ends_at is None:
        return None
    since = _since(record, live, live.created)
    extra = _extra_instances(context, live)
    end = _within_budget(record, usd_per_hour, now, since, extra)
    ends = end.at
    assert ends is not None
    if ends <= now < record.ends_at:
        enough = math.ceil(budget_until(record.ends_at, usd_per_hour or 0, now, since, extra))
        raise Refused(
            f"the budget of {record.name} would be used up: at {format_usd(usd_per_hour or 0)} per "
            f"hour it ends at {utc_text(ends)}{_budget_text(record.budget_usd)}",
            _new_budget(record, enough),
            code="limit-passed",
        )
    return end if ends < record.ends_at else None


def earlier_end_text(end: End | None) -> str:
    """``2026-11-22T20:15:00Z, to keep the budget``; empty where the end stays."""
    return f"{utc_text(end.at)}, to keep the budget" if end and end.at is not None else ""


def end_of_return(context: DeploymentContext, revision: Revision) -> End | None:
    """The earlier end to which the return to a kept revision that costs more moves that of the
    budget; ``None`` where it stays. Raises Refused for an end that has passed."""
    live = live_endpoint(context)
    if live is None or context.record.budget_usd is None:
        return None
    _, is_known = kept_scaling(context, revision)
    scales = any(one.plan and one.plan.scaling for one in context.record.revisions)
    price = _highest_price(context, revision, live, keeps_bounds=not (is_known and scales))
    return end_at_price(context, live, price)


def _new_budget(record: Deployment, usd: int) -> Fix:
    plan = record.current.plan
    text = f"set a larger budget first, such as {format_usd(usd)}, which keeps the end"
    if plan is None:
        return Fix(f"{text}: deploy the plan again with --budget {usd}")
    words = deploy_command(plan.model_copy(update={"limit": Limit(budget_usd=usd)}))
    return Fix(text, words)


def live_endpoint(context: DeploymentContext) -> Endpoint | None:
    """The endpoint with the instances of its first variant; ``None`` where there is none that
    another change would keep."""
    live = sagemaker.describe(context.aws, context.record.name)
    return None if live is None or live.status in sagemaker.BROKEN else first_variant(live)


def _since(record: Deployment, live: Endpoint | None, now: float) -> float:
    """Since when the endpoint costs money, in epoch seconds: from ``now`` on where there is
    none."""
    return now if live is None else record.billing_since or live.created
