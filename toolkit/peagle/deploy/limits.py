"""The end time of a deployment: planned, set when a plan is applied, removed with the deployment.

``--ttl`` ends it that long after the deploy. ``--budget`` ends it as if the most instances ran from
now on: now + budget / highest price per hour. A later deploy or scale at a higher price computes
that again, and moves the end to an earlier time, never to a later one. What runs for some minutes
more during an update or a comparison is not counted.

EventBridge Scheduler deletes the endpoint then, and its copies before, whether or not any machine
of the user runs. The schedules exist before the endpoint does. The end time is a tag of the
endpoint, which is the truth, and of its configuration, so that the remains of an ended deployment
are known as such. What remains (configuration, model, weights in S3, role) costs nothing but the
storage of weights; ``peagle reap`` removes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from peagle.aws import sagemaker, scheduler
from peagle.aws.client import Aws
from peagle.aws.sagemaker import Endpoint, Tag
from peagle.deploy.context import DeploymentContext
from peagle.deploy.resources import delete, schedule_names
from peagle.deploy.revisions import first_variant
from peagle.deploy.scaling import most_instances
from peagle.deploy.state import Deployment, Resource, Revision, utc_moment, utc_text
from peagle.errors import Fix, Refused
from peagle.planning.company import NO_COMPANY, Company
from peagle.planning.operation import end_time
from peagle.planning.plan import Limit
from peagle.render.resources import BUDGET_TAG, ENDS_TAG, copies_limit_name, limit_name
from peagle.text import format_usd

_NONE = "none"

SAME_END_SECONDS = 60
"""Ends that differ by less are the same: EventBridge Scheduler is exact to the minute."""


@dataclass(frozen=True)
class End:
    """``at`` in epoch seconds; ``None`` for never. ``budget_usd`` is what it is computed from, if
    that is a budget."""

    at: float | None = None
    budget_usd: float | None = None


def planned_end(context: DeploymentContext, revision: Revision, keeps_bounds: bool = False) -> End:
    """When the deployment ends once ``revision`` is applied now.

    A plan with a limit sets the end. One without keeps it, or moves it to an earlier time if a
    budget ends sooner at the price of the most instances that may run. ``keeps_bounds``: automatic
    scaling stays as registered if the plan has none. Raises Refused for an end that has passed.
    """
    record, now = context.record, context.clock.now()
    limit = revision.plan.limit if revision.plan else None
    if limit is None and record.ends_at is None:
        return End()
    live = sagemaker.describe(context.aws, record.name)
    live = None if live is None or live.status in sagemaker.BROKEN else first_variant(live)
    price, budget = None, limit.budget_usd if limit else record.budget_usd
    if budget is not None:
        price = highest_price(context.aws, record, revision, live, keeps_bounds)
    if limit is not None:
        ends_at = end_time(limit, price, now)
        return End(ends_at, budget) if ends_at is not None else End()
    assert record.ends_at is not None
    if record.ends_at > now:
        return end_at_price(record, price, now)
    if live is None:
        return End()
    raise Refused(
        f"the end of {record.name} has passed: {utc_text(record.ends_at)}",
        Fix(
            "set a later end with --ttl or --budget, or remove it",
            ("peagle", "destroy", record.name),
        ),
        code="limit-passed",
    )


def end_at_price(record: Deployment, usd_per_hour: float | None, now: float) -> End:
    """The end of a deployment at this price of the most instances: as it is, or earlier where its
    budget, counted from now on, ends sooner."""
    ends_at, budget = record.ends_at, record.budget_usd
    if ends_at is not None and budget is not None and usd_per_hour:
        sooner = end_time(Limit(budget_usd=budget), usd_per_hour, now)
        ends_at = min(ends_at, sooner or ends_at)
    return End(ends_at, budget)


def highest_price(
    aws: Aws, record: Deployment, revision: Revision, live: Endpoint | None, keeps_bounds: bool
) -> float | None:
    """USD per hour at the most instances that may run once the endpoint serves ``revision``."""
    most = most_instances(aws, record, revision, live, keeps_bounds)
    return revision.served.with_instances(most).usd_per_hour


def end_text(end: End, before: Deployment) -> str:
    """``2026-11-22T20:15:00Z: $12.00 from now on``, where a budget moves the end; else empty."""
    if end.at is None or end.budget_usd is None or end.at == before.ends_at:
        return ""
    return f"{utc_text(end.at)}: {format_usd(end.budget_usd)} from now on"


def set_end(context: DeploymentContext, revision: Revision, end: End) -> tuple[Tag, ...]:
    """Let the scheduler delete the endpoint at ``end``, or never; the tags of the endpoint.

    The endpoint, if there is one, and the configuration of the revision are tagged.
    """
    before = context.record
    if end.at is None and before.ends_at is None and not _resources(before):
        return ()
    if end.at is None:
        remove(context)
    else:
        _schedule(context, end.at, revision.plan.company if revision.plan else NO_COMPANY)
    context.change(ends_at=end.at, budget_usd=end.budget_usd)
    tags = _tags(context.record, before.budget_usd is not None)
    if live := sagemaker.describe(context.aws, context.record.name):
        sagemaker.retag(context.aws, live.arn, tags)
    _retag_config(context, revision.endpoint_config, tags)
    return tuple(tags)


def keep_end(
    context: DeploymentContext, revision: Revision, earlier: Mapping[str, str]
) -> tuple[Tag, ...]:
    """The end time as tags of an endpoint that returns to a kept revision, whose configuration has
    the tags ``earlier``: that of the deployment now. A new endpoint, after the end, has none."""
    ends_at = context.record.ends_at
    if ends_at is not None and ends_at <= context.clock.now():
        live = sagemaker.describe(context.aws, context.record.name)
        if live is None or live.status in sagemaker.BROKEN:
            remove(context)
            context.change(ends_at=None, budget_usd=None)
    if context.record.ends_at is None and ENDS_TAG not in earlier:
        return ()
    tags = _tags(context.record, BUDGET_TAG in earlier)
    _retag_config(context, revision.endpoint_config, tags)
    return tuple(tags)


def _tags(record: Deployment, had_budget: bool) -> list[Tag]:
    ends_at, budget = record.ends_at, record.budget_usd
    tags: list[Tag] = [{"Key": ENDS_TAG, "Value": _NONE if ends_at is None else utc_text(ends_at)}]
    if budget is not None or had_budget:
        value = _NONE if budget is None else f"{budget:.15g}"
        tags.append({"Key": BUDGET_TAG, "Value": value})
    return tags


def _retag_config(context: DeploymentContext, config: str, tags: list[Tag]) -> None:
    description = sagemaker.description(context.aws, "EndpointConfig", config)
    sagemaker.retag(context.aws, description["EndpointConfigArn"], tags)


def _schedule(context: DeploymentContext, ends_at: float, company: Company) -> None:
    record, aws = context.record, context.aws
    copies = record.current.served.copies is not None
    name, revision = limit_name(aws.region, record.name), record.current.fingerprint
    with context.creating(Resource(type="SchedulerRole", name=name, revision=revision)):
        role = scheduler.ensure_role(aws, record.name, record.id, company, copies)
    if copies:
        of_copies = copies_limit_name(aws.region, record.name)
        with context.creating(Resource(type="Schedule", name=of_copies, revision=revision)):
            context.say("Scheduling the end of the copies", "before that of the endpoint")
            scheduler.put_schedule(aws, record.name, role, ends_at, context.clock, copies=True)
    with context.creating(Resource(type="Schedule", name=name, revision=revision)):
        context.say("Scheduling the end", utc_text(ends_at))
        scheduler.put_schedule(aws, record.name, role, ends_at, context.clock)


def remove(context: DeploymentContext) -> None:
    """Remove the schedules and their role."""
    for resource in _resources(context.record):
        delete(context, resource)


def _resources(record: Deployment) -> tuple[Resource, ...]:
    """In the order of removal."""
    return (*record.of_type("Schedule"), *record.of_type("SchedulerRole"))


def end_in(tags: Mapping[str, str]) -> float | None:
    """The end time in a resource's tags, in epoch seconds; ``None`` without one."""
    return utc_moment(tags.get(ENDS_TAG, ""))


def budget_in(tags: Mapping[str, str]) -> float | None:
    """The budget in a resource's tags, in USD; ``None`` without one."""
    with suppress(ValueError):
        usd = float(tags.get(BUDGET_TAG, _NONE))
        return usd if math.isfinite(usd) and usd > 0 else None
    return None


def latest_end(tagged: Iterable[Mapping[str, str]]) -> float | None:
    """The latest end time in the tags of several resources."""
    return max((end for tags in tagged if (end := end_in(tags)) is not None), default=None)


def with_end_in(record: Deployment, tags: Mapping[str, str] | None) -> Deployment:
    """The record with the end in its endpoint's tags, which another machine may have moved."""
    if tags is None or ENDS_TAG not in tags:
        return record
    return record.model_copy(update={"ends_at": end_in(tags), "budget_usd": budget_in(tags)})


def limit_resources(region: str, name: str, copies: bool) -> Iterator[Resource]:
    """Schedules and role of a deployment that another machine limited: they carry no tags that AWS
    would find, but their names are known."""
    for schedule in schedule_names(region, name, copies):
        yield Resource(type="Schedule", name=schedule, made=True, revision="")
    yield Resource(type="SchedulerRole", name=limit_name(region, name), made=True, revision="")
