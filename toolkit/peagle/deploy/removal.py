"""Remove a deployment, what AWS keeps of its endpoint, and deployments past their end. Each step
may be repeated.

The scheduler deletes the endpoint only; what remains of it costs the storage of its weights. An
endpoint that still exists after its end, as when it was busy for a day, is removed too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ConfigDict, Field

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import UNKNOWN_KEY_CODES, AccessDenied
from peagle.aws.regions import find_by_tag
from peagle.deploy import records
from peagle.deploy.context import DeploymentContext
from peagle.deploy.discover import Prices, current_deployment, is_endpoint_name
from peagle.deploy.kinds import TaggedDeployment
from peagle.deploy.resources import ALARMS, DASHBOARD, KINDS, LOG, SCALING, remove
from peagle.deploy.revisions import require_own, stale_resources
from peagle.deploy.scaling import end_in
from peagle.deploy.state import Deployment, Resource, ResourceName, utc_text
from peagle.deploy.status import is_past_end, usd_per_hour_now
from peagle.errors import CloudError, Fix, PeagleError, Refused
from peagle.frozen import Result
from peagle.render.requests import DEPLOYMENT_TAG
from peagle.render.resources import ENDS_TAG

_STAY_WITH_ENDPOINT = {
    "Schedule", "SchedulerRole", "EndpointConfig", "Model", "S3Objects", "S3Bucket",
}  # fmt: skip
"""An endpoint that may not be deleted keeps what it serves, and the schedule that ends it."""


class Unknown(CloudError, code="resources-unknown"):
    """Resources may exist, and may not be looked at."""


def find_leftovers(aws: Aws, name: str) -> tuple[Resource, ...]:
    """The scaling targets, alarms, log and dashboard of the endpoint, which a deploy may not have
    recorded. Raises AccessDenied."""
    kinds = (SCALING, ALARMS, LOG, DASHBOARD)
    return tuple(left for kind in kinds for left in kind.find(aws, TaggedDeployment(name)))


def _goes_with_endpoint(leftover: Resource) -> bool:
    """Whether it is a scaling target or its alarm: an endpoint that scales is not deleted."""
    is_alarm = leftover.type == "Alarm" and leftover.name.endswith("-wake-up")
    return is_alarm or leftover.type == "ScalableTarget"


def remove_leftover(aws: Aws, leftover: Resource) -> None:
    """Remove it; ignores what no longer exists. Raises CloudError."""
    KINDS[leftover.type].delete(aws, "", leftover)


@dataclass(frozen=True)
class Removal:
    """What belongs to a deployment that is to be removed: the ``leftovers`` beside its record, and
    those that are ``left``. ``unknown`` is why they could not be looked for."""

    leftovers: tuple[Resource, ...] = ()
    left: tuple[Resource, ...] = ()
    unknown: str = ""


def plan_removal(
    aws: Aws, name: str, record: Deployment | None, everything: bool = False
) -> Removal:
    """What goes with the endpoint, or with ``everything`` also its log, alarms, and what a template
    or an earlier endpoint left. Raises Refused for another owner's, and AccessDenied only when
    ``everything`` is needed."""
    if record and (record.of_type("Endpoint") or not record.owner):
        require_own(record)
    elif record and not everything:
        texts = ", ".join(resource.text for resource in record.resources)
        fix = Fix("remove this too", ("peagle", "destroy", name, "--all"))
        raise Refused(f"{texts}: left by {record.owner}", fix, "other-owner")
    resources = record.resources if record else ()
    recorded = {(resource.type, resource.name) for resource in resources}
    try:
        leftovers = [
            leftover
            for leftover in find_leftovers(aws, name)
            if (leftover.type, leftover.name) not in recorded  # such as the alarms of a rollout
        ]
    except AccessDenied as denied:
        if everything:
            raise
        return Removal(unknown=denied.message)
    removable = [
        leftover
        for leftover in leftovers
        if everything or (record and _goes_with_endpoint(leftover))
    ]
    left = tuple(leftover for leftover in leftovers if leftover not in removable)
    return Removal(tuple(removable), left)


def destroy(
    context: DeploymentContext, leftovers: Sequence[Resource] = ()
) -> tuple[tuple[Resource, ...], tuple[Resource, ...]]:
    """Remove all resources of the record, then the record, and the ``leftovers`` of its endpoint;
    what was removed, and what was kept. What could not be looked at stays in the record: raises
    Unknown after everything else is removed. An endpoint that stays keeps what it needs."""
    for leftover in leftovers:
        context.write(context.record.with_resource(leftover))
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
                (removed if remove(context, resource) else kept).append(resource)
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
    if record.serving is None:
        destroy(context)
        return
    context.change(pending=None)
    endpoints = (r for r in record.of_type("Endpoint") if r.name == record.name)
    for resource in (*endpoints, *stale_resources(context.record)):
        remove(context, resource)


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
    """The deployments of these regions whose end time has passed. A region that the account has not
    enabled rejects the credentials, and is left out. Raises CloudError when all do."""
    readable, _ = records.readable_records(aws.scope)
    now = Clock().now()
    past_end: list[Ended] = []
    unknown: dict[str, CloudError] = {}
    not_enabled: dict[str, CloudError] = {}
    for region in sorted(regions):
        there = aws.in_region(region)
        by_name = {record.name: record for record in readable if record.region == region}
        names = {name for name, record in by_name.items() if record.ends_at is not None}
        try:
            names |= _find_ended_names(there)
        except CloudError as error:
            rejects = error.code in UNKNOWN_KEY_CODES and not names
            (not_enabled if rejects else unknown)[region] = error
        for name in sorted(names):
            try:
                ended = _find_ended(there, name, by_name.get(name), prices, now)
                past_end += [ended] if ended else []
            except CloudError as error:
                unknown[region] = error
    if not_enabled and len(not_enabled) == len(regions):
        raise next(iter(not_enabled.values()))
    mine = tuple(ended for ended in past_end if not ended.record.owner)
    others = tuple(ended for ended in past_end if ended.record.owner)
    return EndedSearch(mine, others, unknown)


def _find_ended_names(aws: Aws) -> set[str]:
    """By the tags of endpoints and configurations, which carry the end time."""
    now = Clock().now()
    return {
        tags[DEPLOYMENT_TAG]
        for _, _, tags in find_by_tag(aws, ENDS_TAG, None, ("endpoint", "endpoint-config"))
        if is_endpoint_name(tags.get(DEPLOYMENT_TAG, "")) and (end_in(tags) or now) < now
    }


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
