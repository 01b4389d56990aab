"""Deployments whose end time has passed, in all regions, and their removal.

The scheduler deletes the endpoint only; what remains of it costs nothing, or the storage of its
weights. An endpoint that still exists after its end (the scheduler's schedule was deleted, or the
endpoint was busy for a day) costs money, and is removed too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.regions import in_each_region
from peagle.aws.tagging import tagged
from peagle.deploy import records
from peagle.deploy.context import Observer, unobserved
from peagle.deploy.costs import is_past_end, usd_per_hour_now, utc_text
from peagle.deploy.described import Prices
from peagle.deploy.discover import complete_deployment, current_deployment, is_endpoint_name
from peagle.deploy.limits import end_in
from peagle.deploy.removal import destroy
from peagle.deploy.state import Deployment, Resource
from peagle.errors import CloudError, PeagleError
from peagle.render.requests import DEPLOYMENT_TAG
from peagle.render.resources import ENDS_TAG

_KINDS = ("sagemaker:endpoint", "sagemaker:endpoint-config")
"""What carries the end time."""


@dataclass(frozen=True)
class Ended:
    """A deployment after its end. ``usd_per_hour`` is what its endpoint still costs: 0 without
    one, ``None`` where unknown."""

    record: Deployment
    usd_per_hour: float | None

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        record = self.record
        return {
            "name": record.name,
            "region": record.region,
            "ended_at": None if record.ends_at is None else utc_text(record.ends_at),
            "price_per_hour_usd": self.usd_per_hour,
            "owner": record.owner or "peagle",
            "resources": [one.document() for one in record.resources],
        }


@dataclass(frozen=True)
class Search:
    """What was found; ``unknown`` are the regions that could not be searched."""

    ended: tuple[Ended, ...]
    unknown: dict[str, CloudError]

    @property
    def own(self) -> tuple[Ended, ...]:
        """Those that this toolkit may remove."""
        return tuple(one for one in self.ended if not one.record.owner)

    @property
    def of_others(self) -> tuple[Ended, ...]:
        """Those that a template or another program made, and removes."""
        return tuple(one for one in self.ended if one.record.owner)


def find_ended(aws: Aws, regions: Sequence[str], prices: Prices) -> Search:
    """The deployments of these regions whose end time has passed, of this machine's records and
    of the account. Raises CloudError when no region accepts the credentials."""
    readable, _ = records.readable_records(aws.scope)
    answers, unknown = in_each_region(aws, regions, "resourcegroupstaggingapi", _names)
    now = Clock().now()
    found: list[Ended] = []
    for region in sorted(regions):
        known = {one.name: one for one in readable if one.region == region}
        limited = {name for name, one in known.items() if one.ends_at is not None}
        there = aws.in_region(region)
        for name in sorted({*answers.get(region, ()), *limited}):
            try:
                ended = _ended(there, name, known.get(name), prices, now)
            except CloudError as error:
                unknown[region] = error
                continue
            found += [ended] if ended else []
    return Search(tuple(found), unknown)


def _names(aws: Aws) -> set[str]:
    """The names of deployments with an end time that has passed, by the tags of one resource or
    another."""
    now = Clock().now()
    return {
        one.tags[DEPLOYMENT_TAG]
        for one in tagged(aws, ENDS_TAG, kinds=_KINDS)
        if is_endpoint_name(one.tags.get(DEPLOYMENT_TAG, "")) and (end_in(one.tags) or now) < now
    }


def _ended(
    aws: Aws, name: str, known: Deployment | None, prices: Prices, now: float
) -> Ended | None:
    """The deployment, if its end has passed: the endpoint's own tag decides."""
    record = current_deployment(aws, name, known, prices)
    if record is None or not is_past_end(record, now):
        return None
    record = complete_deployment(aws, record, prices)
    live = sagemaker.describe(aws, name)
    return Ended(record, usd_per_hour_now(record, live) if live else 0.0)


@dataclass(frozen=True)
class Reaped:
    """The result for one deployment; ``error`` is why it was not removed."""

    ended: Ended
    removed: tuple[Resource, ...] = ()
    kept: tuple[Resource, ...] = ()
    error: PeagleError | None = None

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **self.ended.document(),
            "removed": [one.document() for one in self.removed],
            "kept": [one.document() for one in self.kept],
            "error": self.error.document() if self.error else None,
        }


def reap(
    aws: Aws,
    ended: Sequence[Ended],
    prices: Prices,
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> tuple[Reaped, ...]:
    """Remove these deployments, one after the other; one that fails does not stop the next. One
    that got another end time meanwhile stays."""
    return tuple(_reap(aws, one, prices, observe, clock or Clock()) for one in ended)


def _reap(aws: Aws, one: Ended, prices: Prices, observe: Observer, clock: Clock) -> Reaped:
    there = aws.in_region(one.record.region)
    try:
        with records.deployment_lock(*one.record.key):
            known = records.load_record(*one.record.key)
            latest = _ended(there, one.record.name, known, prices, clock.now())
            if latest is None:
                return Reaped(one)
            removed, kept = destroy(there, latest.record, observe, clock)
            return Reaped(latest, removed, kept)
    except PeagleError as error:
        return Reaped(one, error=error)
