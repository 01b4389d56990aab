"""The end time of a deployment: set when a plan is applied, removed with the deployment.

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

from peagle.aws import sagemaker, scheduler
from peagle.aws.client import Aws
from peagle.aws.sagemaker import Tag
from peagle.deploy.context import DeploymentContext
from peagle.deploy.costs import utc_moment, utc_text
from peagle.deploy.ends import SAME_END_SECONDS, End, end_of_return, end_with, live_endpoint
from peagle.deploy.state import Deployment, Resource, ResourceType, Revision
from peagle.errors import PeagleError, Refused
from peagle.planning.company import NO_COMPANY, Company
from peagle.planning.limit import ExtraInstances
from peagle.render.resources import (
    BUDGET_TAG,
    EARLIER_EXTRA_TAG,
    ENDS_TAG,
    EXTRA_TAG,
    LATEST_TAG,
    copies_limit_name,
    limit_name,
)

_NONE = "none"

KINDS: tuple[ResourceType, ...] = ("Schedule", "SchedulerRole")
"""What a limit needs, in the order of removal."""


def set_end(context: DeploymentContext, end: End, config: str, company: Company) -> tuple[Tag, ...]:
    """Let the scheduler delete the endpoint at ``end``, or never; the tags of the endpoint.

    An endpoint and configuration that exist are tagged.
    """
    before = context.record
    if end.at is None and before.ends_at is None and not _resources(before):
        return ()
    if end.at is None:
        remove(context)
    else:
        _schedule(context, end.at, company)
    _record(context, end)
    tags = _tags(context.record, before.budget_usd is not None)
    if live := sagemaker.describe(context.aws, context.record.name):
        sagemaker.retag(context.aws, live.arn, tags)
    _retag_config(context, config, tags)
    return tuple(tags)


def _record(context: DeploymentContext, end: End) -> None:
    context.change(
        ends_at=end.at,
        budget_usd=end.budget_usd,
        latest_end=end.latest,
        most_usd_per_hour=end.usd_per_hour,
    )


def keep_budget(context: DeploymentContext, extra: ExtraInstances | None = None) -> None:
    """Move the end to where the budget is used up while ``extra`` instances run; by default,
    to where it is now that a change has ended. Nothing without a budget. Where the end
    cannot be moved, it stays, with a notice: the change itself goes on."""
    record = context.record
    if record.budget_usd is None or record.ends_at is None or record.owner:
        return
    live = live_endpoint(context)
    if live is None:
        return
    try:
        end = end_with(context, live, extra)
        assert end.at is not None
        if end.at <= context.clock.now():
            context.notice("the budget is used up; the end stays as it is")
        elif abs(end.at - record.ends_at) >= SAME_END_SECONDS:
            plan = record.current.plan
            set_end(context, end, live.endpoint_config, plan.company if plan else NO_COMPANY)
    except PeagleError as error:
        context.notice(f"the end stays, and the budget may be exceeded: {error.message}")


def keep_end(
    context: DeploymentContext, revision: Revision, earlier: Mapping[str, str]
) -> tuple[Tag, ...]:
    """The end time as tags of an endpoint that returns to a kept revision, whose configuration has
    the tags ``earlier``.

    It is that of the deployment now, or an earlier one where the revision costs more and there is a
    budget; the configuration may have an earlier one, and gets this one. A new endpoint, after the
    end, has none.
    """
    ends_at, now = context.record.ends_at, context.clock.now()
    if ends_at is not None and ends_at <= now and live_endpoint(context) is None:
        remove(context)
        _record(context, End())
    if (end := _end_of_return(context, revision)) is not None and end.at is not None:
        _schedule(context, end.at, revision.plan.company if revision.plan else NO_COMPANY)
        _record(context, end)
    if context.record.ends_at is None and ENDS_TAG not in earlier:
        return ()
    tags = _tags(context.record, BUDGET_TAG in earlier)
    _retag_config(context, revision.endpoint_config, tags)
    return tuple(tags)


def _end_of_return(context: DeploymentContext, revision: Revision) -> End | None:
    """``end_of_return``; a budget that is used up does not keep a deployment from what served."""
    try:
        return end_of_return(context, revision)
    except Refused as refused:
        context.notice(f"the end stays as it is: {refused.message}")
        return None


def _tags(record: Deployment, had_budget: bool) -> list[Tag]:
    ends_at, budget, extra = record.ends_at, record.budget_usd, record.history.extra_usd
    found: list[Tag] = [{"Key": ENDS_TAG, "Value": _NONE if ends_at is None else utc_text(ends_at)}]
    if budget is not None or had_budget:
        value = _NONE if budget is None else f"{budget:.15g}"
        found.append({"Key": BUDGET_TAG, "Value": value})
    if budget is not None and extra:
        found.append({"Key": EXTRA_TAG, "Value": f"{extra:.4f}"})
    if budget is not None and record.latest_end is not None:
        found.append({"Key": LATEST_TAG, "Value": utc_text(record.latest_end)})
    return found


def _retag_config(context: DeploymentContext, config: str, tags: list[Tag]) -> None:
    found = sagemaker.description(context.aws, "EndpointConfig", config)
    sagemaker.retag(context.aws, found["EndpointConfigArn"], tags)


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
            scheduler.put_copies_schedule(aws, record.name, role, ends_at, context.clock)
    with context.creating(Resource(type="Schedule", name=name, revision=revision)):
        context.say("Scheduling the end", utc_text(ends_at))
        scheduler.put_schedule(aws, record.name, role, ends_at, context.clock)


def remove(context: DeploymentContext) -> None:
    """Remove the schedule and its role."""
    for resource in _resources(context.record):
        context.say("Removing", resource.text)
        remove_resource(context.aws, resource)
        context.write(context.record.without(resource.type, resource.name))


def remove_resource(aws: Aws, resource: Resource) -> None:
    """Remove a schedule or its role from the account."""
    delete = {"Schedule": scheduler.delete_schedule, "SchedulerRole": scheduler.delete_role}
    delete[resource.type](aws, resource.name)


def _resources(record: Deployment) -> tuple[Resource, ...]:
    return tuple(one for kind in KINDS for one in record.of_type(kind))


def end_in(tags: Mapping[str, str]) -> float | None:
    """The end time in a resource's tags, in epoch seconds; ``None`` without one."""
    return utc_moment(tags.get(ENDS_TAG, ""))


def budget_in(tags: Mapping[str, str]) -> float | None:
    """The budget in a resource's tags, in USD; ``None`` without one."""
    return _usd_in(tags, BUDGET_TAG)


def latest_in(tags: Mapping[str, str]) -> float | None:
    """The end without extra instances, in a resource's tags; ``None`` without a budget."""
    return None if budget_in(tags) is None else utc_moment(tags.get(LATEST_TAG, ""))


def extra_usd_in(tags: Mapping[str, str]) -> float:
    """What extra instances have cost, in a resource's tags, in USD."""
    return max(_usd_in(tags, tag) or 0.0 for tag in (EXTRA_TAG, EARLIER_EXTRA_TAG))


def _usd_in(tags: Mapping[str, str], key: str) -> float | None:
    with suppress(ValueError):
        usd = float(tags.get(key, _NONE))
        return usd if math.isfinite(usd) and usd > 0 else None
    return None


def latest_end(tagged: Iterable[Mapping[str, str]]) -> float | None:
    """The latest end time in the tags of several resources."""
    return max((end for tags in tagged if (end := end_in(tags)) is not None), default=None)


def with_end_in(record: Deployment, tags: Mapping[str, str] | None) -> Deployment:
    """The record with the end in its endpoint's tags, which another machine may have moved."""
    if tags is None or ENDS_TAG not in tags:
        return record
    ends_at, known = end_in(tags), record.ends_at
    changed: dict[str, object] = {"ends_at": ends_at, "budget_usd": budget_in(tags)}
    if ends_at is None or known is None or abs(ends_at - known) >= 1:
        changed |= {"latest_end": latest_in(tags), "most_usd_per_hour": None}
    if (extra := extra_usd_in(tags)) > record.history.extra_usd:
        changed["history"] = record.history.model_copy(update={"extra_usd": extra})
    return record.model_copy(update=changed)


def resources_by_tag(
    aws: Aws, name: str, ends_at: float | None, copies: bool
) -> Iterator[Resource]:
    """Schedules and role of a deployment that another machine limited: they carry no tags that AWS
    would find, but their names are known."""
    if ends_at is None:
        return
    called = limit_name(aws.region, name)
    if copies:
        of_copies = copies_limit_name(aws.region, name)
        yield Resource(type="Schedule", name=of_copies, made=True, revision="")
    for kind in KINDS:
        yield Resource(type=kind, name=called, made=True, revision="")
