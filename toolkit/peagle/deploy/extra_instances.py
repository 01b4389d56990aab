"""Extra instances, beyond the most that a budget expects, and the record of what runs when.

An update starts new instances before it ends those that serve, ``--prove-first`` a temporary
endpoint, and a comparison a second variant.
"""

from __future__ import annotations

from dataclasses import dataclass

from peagle.aws.sagemaker import Endpoint, update_batch_size
from peagle.deploy.context import DeploymentContext
from peagle.deploy.costs import usd_per_hour_now
from peagle.deploy.revisions import is_comparison
from peagle.deploy.state import Deployment, Revision
from peagle.deploy.variants import CANDIDATE, compares_now, usd_per_hour_of
from peagle.deploy.wait import limit_seconds
from peagle.planning.limit import NO_EXTRA_INSTANCES, ExtraInstances
from peagle.planning.rollout import rollout_of


@dataclass(frozen=True)
class DuringChange:
    """The ``extra`` instances during a change; ``usd_per_hour`` of everything that runs then,
    ``None`` when unknown."""

    extra: ExtraInstances
    usd_per_hour: float | None


def during_update(
    record: Deployment, revision: Revision, live: Endpoint, count: int, rolled_out: bool
) -> DuringChange:
    """While the endpoint is updated to ``count`` instances of ``revision``: the instances that its
    rollout, or SageMaker's, starts first, and what served before, as far as it costs more. Two
    variants are replaced all at once; the candidate of a comparison stays for an unknown time."""
    price = usd_per_hour_now(record, live)
    before, seconds = price or 0.0, limit_seconds(revision)
    if len(live.running) > 1:
        return _during_change(price, ExtraInstances(usd_per_hour=before, seconds=seconds), before)
    if is_comparison(revision.fingerprint) and record.comparison:
        added = record.comparison.candidate.served.usd_per_hour
        more = before + (added or 0.0)
        return _during_change(
            price, ExtraInstances(usd_per_hour=more), None if added is None else more
        )
    new_price = revision.served.with_instances(count).usd_per_hour
    after, plan = new_price or 0.0, revision.plan
    extra = update_batch_size(count)
    if rolled_out and plan and plan.rollout:
        extra = (plan.rollout if plan.copies else rollout_of(plan.rollout, count)).extra_instances
    more = max(_per_instance(before, live.instance_count), _per_instance(after, count)) * extra
    usd = round(more + max(0.0, before - after), 4)
    added = None if new_price is None else more
    return _during_change(price, ExtraInstances(usd_per_hour=usd, seconds=seconds), added)


def _during_change(before: float | None, extra: ExtraInstances, more: float | None) -> DuringChange:
    """``more`` than ``before`` is what everything costs per hour; unknown if one of them is."""
    total = None if before is None or more is None else round(before + more, 4)
    return DuringChange(extra, total)


def _per_instance(usd_per_hour: float, count: int) -> float:
    return usd_per_hour / count if count else usd_per_hour


def during_proof(record: Deployment, revision: Revision) -> DuringChange:
    """While a temporary endpoint serves ``revision``, for as long as its start may take."""
    price, last = revision.served.usd_per_hour or 0.0, record.history.last
    own = last.usd_per_hour if last else None
    total = None if own is None else round(own + price, 4)
    return DuringChange(ExtraInstances(usd_per_hour=price, seconds=limit_seconds(revision)), total)


def extra_instances_now(record: Deployment, live: Endpoint | None) -> ExtraInstances:
    """The candidate of a comparison, which runs until a command ends it."""
    if live is None or not compares_now(record, live):
        return NO_EXTRA_INSTANCES
    return ExtraInstances(usd_per_hour=usd_per_hour_of(record, live)[CANDIDATE] or 0.0)


def record_price(context: DeploymentContext, usd_per_hour: float | None, extra: float = 0) -> None:
    """Record what everything that runs costs from now on; ``extra`` is a part of it, in USD
    per hour."""
    record = context.record
    history = record.history.then(context.clock.now(), usd_per_hour, extra)
    if history is not record.history:
        context.change(history=history)


def record_end_of_proof(context: DeploymentContext) -> None:
    """Record that a temporary endpoint has ended."""
    last = context.record.history.last
    if last is not None and last.extra_usd_per_hour:
        usd = last.usd_per_hour
        record_price(context, None if usd is None else round(usd - last.extra_usd_per_hour, 4))


def record_running(context: DeploymentContext, live: Endpoint) -> None:
    """Record what the endpoint of the deployment costs from now on, after a change."""
    candidate = extra_instances_now(context.record, live).usd_per_hour
    record_price(context, usd_per_hour_now(context.record, live), candidate)
