"""Remove a deployment, what AWS keeps of its endpoint, and deployments past their end. Each step
may be repeated.

The scheduler deletes the endpoint only; what remains of it costs nothing, or the storage of its
weights. An endpoint that still exists after its end (the scheduler's schedule was deleted, or the
endpoint was busy for a day) costs money, and is removed too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, Field

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.regions import in_each_region, tagged
from peagle.deploy import records
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.discover import Prices, current_deployment, is_endpoint_name
from peagle.deploy.resources import DASHBOARD, KINDS, begin_deletion, delete, name_log_groups
from peagle.deploy.revisions import stale_resources
from peagle.deploy.scaling import end_in
from peagle.deploy.state import Deployment, Resource, ResourceName, ResourceType, utc_text
from peagle.deploy.status import is_past_end, usd_per_hour_now
from peagle.errors import CloudError, Fix, PeagleError, Refused
from peagle.options import Result
from peagle.render.alarms import COMPONENT_DIMENSION, alarm_name
from peagle.render.requests import DEPLOYMENT_TAG
from peagle.render.resources import COPY_DIMENSION, DIMENSION, ENDS_TAG, copies_id

_SCALING = "application-autoscaling"

_STAY_WITH_ENDPOINT = {
    "Schedule", "SchedulerRole", "EndpointConfig", "Model", "S3Objects", "S3Bucket",
}  # fmt: skip
"""An endpoint that may not be deleted keeps what it serves, and the schedule that ends it."""


class Unknown(CloudError, code="resources-unknown"):
    """Resources may exist, and may not be looked at."""


def find_leftovers(aws: Aws, name: str) -> tuple[Resource, ...]:
    """The scaling targets, alarms, log and dashboard of the endpoint, which a deploy may not have
    recorded. Raises AccessDenied."""
    return tuple(
        Resource(type=kind, name=leftover, made=True, revision="")
        for kind, leftover in _leftovers(aws, name)
    )


def _leftovers(aws: Aws, name: str) -> Iterator[tuple[ResourceType, str]]:
    listed = aws.items(
        _SCALING, "describe_scalable_targets", "ScalableTargets", ServiceNamespace="sagemaker"
    )
    for target in listed:  # with its policies and their alarms
        resource = target["ResourceId"]
        if resource.startswith(f"endpoint/{name}/") or resource == copies_id(name):
            yield "ScalableTarget", resource
    on_log = alarm_name(name, "acceptance")
    for alarm in aws.items("cloudwatch", "describe_alarms", "MetricAlarms"):
        dimensions = {each["Name"]: each["Value"] for each in alarm.get("Dimensions") or ()}
        watched = (dimensions.get("EndpointName"), dimensions.get(COMPONENT_DIMENSION))
        if name in watched or alarm["AlarmName"] == on_log:  # which has no dimension
            yield "Alarm", alarm["AlarmName"]
    for group in name_log_groups(name):
        there = aws.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=group)
        if any(log["logGroupName"] == group for log in there):
            yield "LogGroup", group
    for dashboard in DASHBOARD.find(aws, name):
        yield "Dashboard", dashboard


def goes_with_endpoint(leftover: Resource) -> bool:
    """Whether it is a scaling target or its alarm: an endpoint that scales is not deleted."""
    scales = leftover.name.startswith("TargetTracking-") or leftover.name.endswith("-wake-up")
    return leftover.type == "ScalableTarget" or (leftover.type == "Alarm" and scales)


def remove_leftover(aws: Aws, leftover: Resource) -> None:
    """Remove it; ignores what no longer exists. Raises CloudError."""
    name, copies = leftover.name, leftover.name.startswith(copies_id(""))
    target = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": name,
        "ScalableDimension": COPY_DIMENSION if copies else DIMENSION,
    }
    removals: dict[str, tuple[str, str, dict[str, Any]]] = {
        "ScalableTarget": (_SCALING, "deregister_scalable_target", target),
        "Alarm": ("cloudwatch", "delete_alarms", {"AlarmNames": [name]}),
        "LogGroup": ("logs", "delete_log_group", {"logGroupName": name}),
        "Dashboard": ("cloudwatch", "delete_dashboards", {"DashboardNames": [name]}),
    }
    service, operation, parameters = removals[leftover.type]
    with suppress(Missing):
        aws.call(service, operation, **parameters)


def destroy(
    context: DeploymentContext,
) -> tuple[tuple[Resource, ...], tuple[Resource, ...]]:
    """Remove all resources of the record, then the record; what was removed, and what was kept.
    What could not be looked at stays in the record: raises Unknown after everything else is
    removed. An endpoint that stays keeps what it needs."""
    removed: list[Resource] = []
    kept: list[Resource] = []
    denied: list[AccessDenied] = []
    for kind in KINDS:
        if kind in _STAY_WITH_ENDPOINT and context.record.of_type("Endpoint"):
            continue
        if kind == "S3Bucket" and context.record.of_type("S3Objects"):
            continue
        for resource in context.record.of_type(kind):
            try:
                (removed if delete(context, resource) else kept).append(resource)
            except AccessDenied as error:
                denied.append(error)
    if denied:
        names = ", ".join(resource.text for resource in context.record.resources)
        fix = f"{denied[0].fix}, then run the command again"
        raise Unknown(
            f"these may still exist and cost money, and are kept in the record: {names}; "
            f"{denied[0].message}",
            Fix(fix, ("peagle", "destroy", context.record.name)),
        )
    records.remove_record(context.record)
    return tuple(removed), tuple(kept)


def remove_failed_start(context: DeploymentContext) -> None:
    """Remove what a deploy whose engine will never serve created. Earlier revisions stay. Raises
    Refused for an endpoint that serves after all."""
    record = context.record
    live = sagemaker.describe(context.aws, record.name)
    if live and live.status not in ("Creating", "Failed", "Deleting"):
        message = f"endpoint {live.name} is {live.status} after all, so nothing was removed"
        raise Refused(message, "deploy again to prove it", "serves-after-all")
    if live and live.status == "Creating":
        begin_deletion(context, live)
    if record.serving is None:
        destroy(context)
        return
    context.change(pending=None)
    endpoints = (r for r in record.of_type("Endpoint") if r.name == record.name)
    for resource in (*endpoints, *stale_resources(context.record)):
        delete(context, resource)


class Ended(Result):
    """A deployment after its end, and what its endpoint still costs. ``owner`` is the template or
    program that made it, and removes it."""

    record: Deployment = Field(exclude=True)
    name: str
    region: str
    ended_at: str | None
    price_per_hour_usd: float | None
    owner: str
    resources: tuple[ResourceName, ...]


class Reaped(Ended):
    """What was ``removed`` and ``kept`` of it, or the ``error`` for which it was not removed."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    removed: tuple[ResourceName, ...] = ()
    kept: tuple[ResourceName, ...] = ()
    error: PeagleError | None


@dataclass(frozen=True)
class EndedSearch:
    """The deployments past their end: those that this toolkit may remove, and those of others;
    ``unknown`` are the regions that could not be searched."""

    removable: tuple[Ended, ...]
    of_others: tuple[Ended, ...]
    unknown: dict[str, CloudError]


def find_ended(aws: Aws, regions: Sequence[str], prices: Prices) -> EndedSearch:
    """The deployments of these regions whose end time has passed. Raises CloudError when no region
    accepts the credentials."""
    readable, _ = records.readable_records(aws.scope)
    now = Clock().now()

    def ended_names(there: Aws) -> set[str]:
        """By the tags of endpoints and configurations, which carry the end time."""
        return {
            resource.tags[DEPLOYMENT_TAG]
            for resource in tagged(
                there, ENDS_TAG, kinds=("sagemaker:endpoint", "sagemaker:endpoint-config")
            )
            if is_endpoint_name(resource.tags.get(DEPLOYMENT_TAG, ""))
            and (end_in(resource.tags) or now) < now
        }

    names, unknown = in_each_region(aws, regions, "resourcegroupstaggingapi", ended_names)
    past_end: list[Ended] = []
    for region in sorted(regions):
        by_name = {record.name: record for record in readable if record.region == region}
        limited = {name for name, record in by_name.items() if record.ends_at is not None}
        there = aws.in_region(region)
        for name in sorted({*names.get(region, ()), *limited}):
            try:
                ended = _find_ended(there, name, by_name.get(name), prices, now)
                past_end += [ended] if ended else []
            except CloudError as error:
                unknown[region] = error
    mine = tuple(ended for ended in past_end if not ended.record.owner)
    others = tuple(ended for ended in past_end if ended.record.owner)
    return EndedSearch(mine, others, unknown)


def _find_ended(
    aws: Aws, name: str, stored: Deployment | None, prices: Prices, now: float
) -> Ended | None:
    """The deployment, if its end has passed: the endpoint's own tag decides."""
    record = current_deployment(aws, name, stored, prices, complete=True)
    if record is None or not is_past_end(record, now):
        return None
    live = sagemaker.describe(aws, name)
    return Ended(
        record=record,
        name=record.name,
        region=record.region,
        ended_at=None if record.ends_at is None else utc_text(record.ends_at),
        price_per_hour_usd=usd_per_hour_now(record, live) if live else 0.0,
        owner=record.owner or "peagle",
        resources=record.resources,
    )


def reap(
    aws: Aws,
    ended: Sequence[Ended],
    prices: Prices,
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> tuple[Reaped, ...]:
    """Remove these deployments, one after the other; one that fails does not stop the next. One
    that got another end time meanwhile stays."""
    clock, done = clock or Clock(), list[Reaped]()
    for deployment in ended:
        record, outcome = deployment.record, Reaped(**dict(deployment), error=None)
        there, key = aws.in_region(record.region), record.key
        try:
            with records.deployment_lock(*key):
                stored = records.load_record(*key)
                latest = _find_ended(there, record.name, stored, prices, clock.now())
                if latest is not None:
                    context = DeploymentContext(there, latest.record, observe, clock)
                    removed, kept = destroy(context)
                    outcome = Reaped(**dict(latest), removed=removed, kept=kept, error=None)
        except PeagleError as error:
            outcome = outcome.model_copy(update={"error": error})
        done.append(outcome)
    return tuple(done)
