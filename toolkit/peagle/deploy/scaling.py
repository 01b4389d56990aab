"""How many instances and copies a deployment has, and until when: automatic scaling,
``peagle scale`` and the end time. Of a deployment with an inference component the copies are
counted, and its instances follow.

The schedules of the end exist before the endpoint does. The end time is a tag of the endpoint,
which is the truth, and of its configuration, by which ``peagle reap`` knows what remains of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from peagle.aws import autoscaling, sagemaker
from peagle.aws.autoscaling import Bounds, to_bounds
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import BUSY, Endpoint, Tag
from peagle.deploy.context import DeploymentContext, wait_while_busy
from peagle.deploy.resources import ROLE, SCALING, SCHEDULE, remove
from peagle.deploy.revisions import (
    CANDIDATE,
    of_variant,
    require_no_comparison,
    require_own,
    revision_in_service,
    shown_revision,
)
from peagle.deploy.state import Deployment, Revision, start_seconds, utc_moment, utc_text
from peagle.errors import (
    CloudError,
    Fix,
    NotFound,
    OptionMissing,
    OptionsConflict,
    Refused,
    UserError,
)
from peagle.options import MOST_COUNT
from peagle.planning.operation import SCALE_OUT_SECONDS, SHORTEST_SCALE_IN_SECONDS, end_time
from peagle.planning.plan import Limit, Scaling
from peagle.render.requests import VARIANT
from peagle.render.resources import BUDGET_TAG, ENDS_TAG, limit_name
from peagle.text import counted, format_usd

_NONE = "none"

SAME_END_SECONDS = 60
"""Ends that differ by less are the same: EventBridge Scheduler is exact to the minute."""


@dataclass(frozen=True)
class ScalingChange:
    """What is registered now, and what is to be; ``None`` for a fixed number of instances."""

    before: Bounds | None
    after: Scaling | None

    @property
    def text(self) -> str:
        """``none -> 1 to 4 instances, target 8 requests at a time each``."""
        return " -> ".join(side.text if side else "none" for side in (self.before, self.after))


def required_scaling(
    aws: Aws, record: Deployment | None, live: Endpoint | None, after: Scaling | None
) -> ScalingChange | None:
    """What deploying a plan with this scaling changes; ``None`` for nothing. What others registered
    is left alone. Raises AccessDenied."""
    if after is None and not (record and _may_scale(record.serving, record.pending)):
        return None
    before = autoscaling.registered(aws, live.name) if live else None
    if after is None and not (before and before.is_ours):
        return None
    return None if before == (to_bounds(after) if after else None) else ScalingChange(before, after)


def _may_scale(*revisions: Revision | None) -> bool:
    """Whether one has planned scaling, or has a plan on another machine."""
    return any(each and (each.plan is None or each.plan.scaling) for each in revisions)


def _read_scaling(revision: Revision | None) -> Scaling | None:
    return revision.plan.scaling if revision and revision.plan else None


def keeps_count(aws: Aws, record: Deployment | None, live: Endpoint) -> bool:
    """Whether an update keeps the number of instances, or copies, because scaling chose it."""
    with suppress(AccessDenied):
        if autoscaling.registered(aws, live.name, policies=False):
            return True
    return _read_scaling(record.serving if record else None) is not None


def count_at_update(aws: Aws, record: Deployment | None, revision: Revision, live: Endpoint) -> int:
    """How many instances an update to ``revision`` starts."""
    kept = keeps_count(aws, record, live)
    return max(1, live.instance_count) if kept else revision.served.instance_count


def end_scaling_for_new_type(
    context: DeploymentContext, revision: Revision, live: Endpoint
) -> None:
    """Deregister what our own plans registered, until the proof, if ``revision`` has another
    instance type: SageMaker refuses one while the endpoint scales."""
    now = revision_in_service(context.record, live.revision)
    if now is None or now.served.instance_type == revision.served.instance_type:
        return
    with suppress(AccessDenied):
        registered = autoscaling.registered(context.aws, live.name)
        if registered and registered.is_ours:
            context.say("Scaling", "ends while the instance type changes")
            autoscaling.deregister(context.aws, live.name)


def return_to_scaling(context: DeploymentContext, revision: Revision) -> None:
    """Register the scaling of a kept revision. Without one, what our own plans registered ends, and
    that of ``peagle scale`` stays, as all does where another machine has the plan."""
    aws, after = context.aws, _read_scaling(revision)
    if revision.plan is None:
        context.say("Scaling", f"stays: another machine has the plan of {revision.name}")
        return
    registered = None
    if after is None and _may_scale(*context.record.revisions):
        with suppress(AccessDenied):
            registered = autoscaling.registered(aws, context.record.name)
    if after is not None or (registered and registered.is_ours):
        SCALING.register(context, after)


@dataclass(frozen=True)
class ScaleRequest:
    """What the user of ``peagle scale`` asks for; ``Options`` are a plan's, and this changes what
    runs. ``to`` a fixed number, other bounds or another target, or ``off``. Raises UserError for
    nothing, and for parts that contradict each other."""

    to: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    target: float | None = None
    off: bool = False

    @property
    def changes_bounds(self) -> bool:
        """Whether it has bounds or a target."""
        return (self.minimum, self.maximum, self.target) != (None, None, None)

    def __post_init__(self) -> None:
        if self.to is None and not self.off and not self.changes_bounds:
            raise OptionMissing("nothing to change", "use --to N, --min and --max, or --off")
        if self.changes_bounds and (self.off or self.to is not None):
            raise OptionsConflict(
                "a fixed number and bounds of automatic scaling are mutually exclusive",
                "use either --to N and --off, or --min, --max and --target-concurrency",
            )


@dataclass(frozen=True)
class Scale:
    """A checked change of the bounds and of the ``count`` of instances or copies; ``None`` where
    these stay. ``end`` is the earlier one to which a higher price moves that of a budget."""

    live: Endpoint
    scaling: ScalingChange | None
    count: int | None
    per_instance: int = 1
    end: End | None = None

    @property
    def instances(self) -> int | None:
        """The instances that ``count`` needs; ``None`` where that stays."""
        return None if self.count is None else math.ceil(self.count / self.per_instance)

    @property
    def is_nothing(self) -> bool:
        return self.scaling is None and self.count is None

    @property
    def end_text(self) -> str:
        """``2026-11-22T20:15:00Z: $12.00 from now on``; empty where the end stays."""
        if self.end is None or self.end.at is None or self.end.budget_usd is None:
            return ""
        return f"{utc_text(self.end.at)}: {format_usd(self.end.budget_usd)} from now on"


def plan_scale(
    aws: Aws, record: Deployment, request: ScaleRequest, clock: Clock | None = None
) -> Scale:
    """What ``request`` changes. Reads only. Raises UserError for a request that contradicts what is
    registered, and Refused where the endpoint cannot be scaled so."""
    require_own(record)
    require_no_comparison(record)
    look = Fix("look at it", ("peagle", "status", record.name))
    live = sagemaker.describe(aws, record.name)
    if live is None:
        raise NotFound(f"{record.name} has no endpoint", look, "no-such-endpoint")
    if live.status not in ("InService", "Updating"):  # as while it scales
        message = f"{record.name} is {live.status}: only an endpoint in service can be scaled"
        raise Refused(message, look, "endpoint-not-in-service")
    before = autoscaling.registered(aws, record.name)
    if request.to is not None and before is not None and not request.off:
        least = ("peagle", "scale", record.name, "--min", str(request.to))
        raise Refused(
            f"{record.name} scales automatically ({before.text}), which would undo --to",
            Fix("add --off for a fixed number, or set the fewest instances", least),
            code="scales-automatically",
        )
    scaling = None
    if request.changes_bounds:
        after = _after(record, before, request)
        scaling = None if before == to_bounds(after) else ScalingChange(before, after)
    elif request.off and before is not None:
        scaling = ScalingChange(before, None)
    is_reached = live.status == "InService" and request.to == live.engine_count
    per_instance = record.current.served.per_instance if live.hosts_components else 1
    change = Scale(live, scaling, None if is_reached else request.to, per_instance)
    if live.hosts_components:
        _require_room(record, change)
    most = scaling.after.max_instances if scaling and scaling.after else change.instances
    if most is None:
        return change
    usd_per_hour = record.current.served.with_instances(most).usd_per_hour
    end = _end_at_price(record, usd_per_hour, (clock or Clock()).now())
    return replace(change, end=end) if end.at not in (None, record.ends_at) else change


def _require_room(record: Deployment, change: Scale) -> None:
    """Raise Refused for more copies than the instances may hold."""
    plan, after = record.current.plan, change.scaling.after if change.scaling else None
    if plan is None:
        return
    instances = plan.scaling.max_instances if plan.scaling else plan.instance_count
    most, asked = instances * change.per_instance, after.maximum if after else change.count or 0
    if asked > most:
        raise Refused(
            f"{asked} copies do not fit: the instances of {record.name} hold at most {most}",
            f"use {most} or less, or deploy with other instances under another --name",
            "copies-beyond-instances",
        )


def _after(record: Deployment, before: Bounds | None, request: ScaleRequest) -> Scaling:
    planned, served = _read_scaling(record.current), record.current.served
    before = before or (to_bounds(planned) if planned else Bounds(1, 0))
    maximum = request.maximum or before.maximum
    if not maximum:
        message = f"{record.name} does not scale automatically, so --max is required"
        raise OptionMissing(message, "add --max N, or use --to N for a fixed number")
    minimum = before.minimum if request.minimum is None else request.minimum
    copies = served.copies is not None
    least = 0 if copies else 1
    if not least <= minimum <= maximum <= MOST_COUNT:
        message = f"scaling from {minimum} to {maximum} {counted(maximum, copies)} is impossible"
        fix = f"use a --min of at least {least}, and a --max that is not smaller"
        raise UserError(message, fix, "invalid-scaling")
    target = request.target or before.target or (planned.target_concurrency if planned else None)
    if target is None:
        fix = "add --target-concurrency N, or deploy with --max-instances, which computes it"
        raise OptionMissing(f"the load at which {record.name} should scale is unknown", fix)
    scale_in, scale_out = before.scale_in_cooldown, before.scale_out_cooldown
    if scale_in is None:
        scale_in = max(SHORTEST_SCALE_IN_SECONDS, start_seconds(served))
    per_instance = served.per_instance if copies else 1
    return Scaling(
        min_instances=math.ceil(minimum / per_instance),
        max_instances=math.ceil(maximum / per_instance),
        target_concurrency=target,
        scale_in_cooldown_seconds=scale_in,
        scale_out_cooldown_seconds=SCALE_OUT_SECONDS if scale_out is None else scale_out,
        min_copies=minimum if copies else None,
        max_copies=maximum if copies else None,
        wake_up_seconds=planned.wake_up_seconds if planned and minimum == 0 else None,
    )


def scale(context: DeploymentContext, change: Scale) -> None:
    """Make the change, after one that SageMaker makes at the moment, and wait until a fixed number
    serves; else raises CloudError. The end of a budget moves before the price rises."""
    aws, record = context.aws, context.record
    if change.end is not None:
        set_end(context, shown_revision(record, change.live), change.end)
    if change.scaling is not None:
        SCALING.register(context, change.scaling.after)
    if change.count is None:
        return
    copies = change.live.hosts_components
    counts = counted(change.count, copies)
    context.say("Scaling", f"{change.live.engine_count} -> {change.count} {counts}")
    served = record.current.served.with_instances(change.instances or 1)
    revision = record.current.model_copy(update={"served": served})
    if change.live.status in BUSY:
        wait_while_busy(context, revision, context.clock.now())
    if copies:
        aws.call(
            "sagemaker", "update_inference_component_runtime_config",
            InferenceComponentName=record.name, DesiredRuntimeConfig={"CopyCount": change.count},
        )  # fmt: skip
    else:
        sagemaker.set_variant(aws, record.name, VARIANT, count=change.count)
    live = wait_while_busy(context, revision, context.clock.now())
    running = live.engine_count if live else 0
    if live is None or live.status != "InService" or running != change.count:
        state = f"{live.status}, with {running}" if live else "gone"
        reason = f": {live.failure}" if live and live.failure else ""
        raise CloudError(
            f"{record.name} was to have {change.count} {counts}; it is {state}{reason}",
            Fix("look at it, then repeat", ("peagle", "status", record.name)),
            code="not-scaled",
        )


@dataclass(frozen=True)
class End:
    """``at`` in epoch seconds, ``None`` for never, and the budget that it is computed from."""

    at: float | None = None
    budget_usd: float | None = None


def planned_end(context: DeploymentContext, revision: Revision) -> End:
    """When the deployment ends once ``revision`` is applied now. A plan without a limit keeps the
    end, or moves it to an earlier time at a higher price. Raises Refused for an end that has
    passed."""
    record, now = context.record, context.clock.now()
    limit = revision.plan.limit if revision.plan else None
    if limit is None and record.ends_at is None:
        return End()
    live = sagemaker.describe(context.aws, record.name)
    if live and live.status in sagemaker.BROKEN:
        live = None
    if live and CANDIDATE in live.running:  # the revision in service counts
        live = of_variant(live, VARIANT)
    price, budget = None, limit.budget_usd if limit else record.budget_usd
    if budget is not None:
        price = highest_price(context.aws, record, revision, live)
    if limit is not None:
        ends_at = end_time(limit, price, now)
        return End(ends_at, budget) if ends_at is not None else End()
    assert record.ends_at is not None
    if record.ends_at > now:
        return _end_at_price(record, price, now)
    if live is None:
        return End()
    fix = "set a later end with --ttl or --budget, or remove it"
    raise Refused(
        f"the end of {record.name} has passed: {utc_text(record.ends_at)}",
        Fix(fix, ("peagle", "destroy", record.name)),
        code="limit-passed",
    )


def _end_at_price(record: Deployment, usd_per_hour: float | None, now: float) -> End:
    """The end at this price of the most instances: as it is, or earlier by its budget from now
    on."""
    ends_at, budget = record.ends_at, record.budget_usd
    if ends_at is not None and budget is not None and usd_per_hour:
        sooner = end_time(Limit(budget_usd=budget), usd_per_hour, now)
        ends_at = min(ends_at, sooner or ends_at)
    return End(ends_at, budget)


def highest_price(
    aws: Aws, record: Deployment, revision: Revision, live: Endpoint | None
) -> float | None:
    """USD per hour at the most instances that ``live`` may have once it serves ``revision``: by its
    plan, else by what is registered, which may stay."""
    served = revision.served
    if after := _read_scaling(revision):
        return served.with_instances(after.max_instances).usd_per_hour
    if live is None:
        return served.usd_per_hour
    is_served = revision.name == live.revision
    most = live.instance_count if is_served else count_at_update(aws, record, revision, live)
    with suppress(AccessDenied):
        if bounds := autoscaling.registered(aws, live.name, policies=False):
            per_instance = served.per_instance if bounds.scales_copies else 1
            most = max(most, math.ceil(bounds.maximum / per_instance))
    return served.with_instances(most).usd_per_hour


def set_end(context: DeploymentContext, revision: Revision, end: End) -> tuple[Tag, ...]:
    """Let the scheduler delete the endpoint at ``end``, or never; the tags that it and the
    configuration of the revision get."""
    aws, before, name = context.aws, context.record, context.record.name
    if end.at is None:
        _remove_limits(context)
        if before.ends_at is None:
            return ()
    else:
        copies = before.current.served.copies is not None
        ROLE.put(context, revision, limit_name(aws.region, name), {"copies": copies})
        for schedule, body in SCHEDULE.schedules(aws.region, name, copies, end.at).items():
            SCHEDULE.put(context, revision, schedule, body)
    context.change(ends_at=end.at, budget_usd=end.budget_usd)
    tags = _end_tags(context.record, before.budget_usd is not None)
    if live := sagemaker.describe(aws, name):
        sagemaker.retag(aws, live.arn, tags)
    retag_config(context, revision, tags)
    return tuple(tags)


def keep_end(
    context: DeploymentContext, revision: Revision, earlier: Mapping[str, str]
) -> tuple[Tag, ...]:
    """The end time as tags of an endpoint that returns to a kept revision, whose configuration has
    the tags ``earlier``. A new endpoint, after the end, has none."""
    ends_at = context.record.ends_at
    if ends_at is not None and ends_at <= context.clock.now():
        live = sagemaker.describe(context.aws, context.record.name)
        if live is None or live.status in sagemaker.BROKEN:
            _remove_limits(context)
            context.change(ends_at=None, budget_usd=None)
    if context.record.ends_at is None and ENDS_TAG not in earlier:
        return ()
    tags = _end_tags(context.record, BUDGET_TAG in earlier)
    retag_config(context, revision, tags)
    return tuple(tags)


def _end_tags(record: Deployment, had_budget: bool) -> list[Tag]:
    ends_at, budget = record.ends_at, record.budget_usd
    tags: list[Tag] = [{"Key": ENDS_TAG, "Value": _NONE if ends_at is None else utc_text(ends_at)}]
    if budget is not None or had_budget:
        value = _NONE if budget is None else f"{budget:.15g}"
        tags.append({"Key": BUDGET_TAG, "Value": value})
    return tags


def retag_config(context: DeploymentContext, revision: Revision, tags: list[Tag]) -> None:
    config = sagemaker.description(context.aws, "EndpointConfig", revision.endpoint_config)
    sagemaker.retag(context.aws, config["EndpointConfigArn"], tags)


def _remove_limits(context: DeploymentContext) -> None:
    record = context.record
    for resource in (*record.of_type("Schedule"), *record.of_type("SchedulerRole")):
        remove(context, resource)


def end_in(tags: Mapping[str, str]) -> float | None:
    """The end time in a resource's tags, in epoch seconds; ``None`` without one."""
    return utc_moment(tags.get(ENDS_TAG, ""))


def budget_in(tags: Mapping[str, str]) -> float | None:
    """The budget in a resource's tags, in USD; ``None`` without one."""
    with suppress(ValueError):
        usd = float(tags.get(BUDGET_TAG, _NONE))
        return usd if math.isfinite(usd) and usd > 0 else None
    return None


def with_end_in(record: Deployment, tags: Mapping[str, str] | None) -> Deployment:
    """The record with the end in its endpoint's tags, which another machine may have moved."""
    if tags is None or ENDS_TAG not in tags:
        return record
    return record.model_copy(update={"ends_at": end_in(tags), "budget_usd": budget_in(tags)})
