"""``peagle scale``: another number of instances or copies, or other bounds of automatic scaling.

Of a deployment with an inference component the copies are counted, and its instances follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from peagle.aws import autoscaling, sagemaker
from peagle.aws.autoscaling import Bounds, bounds_of
from peagle.aws.client import Aws, Clock
from peagle.aws.sagemaker import BUSY, Endpoint
from peagle.case import MOST_COUNT
from peagle.deploy import limits
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.limits import End, end_at_price, end_text
from peagle.deploy.revisions import (
    require_no_comparison,
    require_own,
    shown_revision,
)
from peagle.deploy.scaling import ScalingChange, apply_scaling
from peagle.deploy.state import Deployment, start_seconds
from peagle.deploy.wait import wait_while_busy
from peagle.errors import (
    CloudError,
    Fix,
    NotFound,
    OptionMissing,
    OptionsConflict,
    Refused,
    UserError,
)
from peagle.planning.plan import Scaling
from peagle.planning.scaling import SCALE_OUT_SECONDS, SHORTEST_SCALE_IN_SECONDS
from peagle.render.requests import VARIANT
from peagle.text import counted


@dataclass(frozen=True)
class ScaleRequest:
    """What the user asks for: ``to`` a fixed number, other bounds or another target, or ``off``,
    the end of automatic scaling. Raises UserError for nothing, and for parts that contradict each
    other."""

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
            fixed = "--off" if self.off else "--to"
            raise OptionsConflict(
                f"{fixed} and bounds of automatic scaling are mutually exclusive",
                "use either --to N and --off, or --min, --max and --target-concurrency",
            )


scale_request = ScaleRequest


@dataclass(frozen=True)
class Scale:
    """A checked change: ``scaling`` of the bounds, ``None`` for none, and the ``count`` of
    instances or copies, ``None`` where that stays. ``per_instance`` copies fit on an instance.
    ``end`` is the earlier one to which a higher price moves that of a budget, and ``end_text`` says
    so; ``None`` where it stays."""

    live: Endpoint
    scaling: ScalingChange | None
    count: int | None
    per_instance: int = 1
    end: End | None = None
    end_text: str = ""

    @property
    def running(self) -> int:
        """How many copies, or instances, run now."""
        return self.live.engine_count

    @property
    def instances(self) -> int | None:
        """The instances that ``count`` needs; ``None`` where that stays."""
        return None if self.count is None else math.ceil(self.count / self.per_instance)

    @property
    def is_nothing(self) -> bool:
        return self.scaling is None and self.count is None


def plan_scale(
    aws: Aws, record: Deployment, request: ScaleRequest, clock: Clock | None = None
) -> Scale:
    """What ``request`` changes. Reads only.

    Raises UserError for a request that contradicts itself or what is registered; Refused for an
    endpoint that is not in service, compares two plans or has another owner, for more copies than
    its instances may hold, and for a fixed number while the endpoint scales automatically; NotFound
    without an endpoint.
    """
    require_own(record)
    require_no_comparison(record)
    look = Fix("look at it", ("peagle", "status", record.name))
    live = sagemaker.describe(aws, record.name)
    if live is None:
        raise NotFound(f"{record.name} has no endpoint", look, "no-such-endpoint")
    if live.status not in _SCALABLE:
        message = f"{record.name} is {live.status}: only an endpoint in service can be scaled"
        raise Refused(message, look, "endpoint-not-in-service")
    before = autoscaling.registered(aws, record.name)
    if request.to is not None and before is not None and not request.off:
        least = ("peagle", "scale", record.name, "--min", str(request.to))
        raise Refused(
            f"{record.name} scales automatically ({before.text}), which would undo --to "
            f"{request.to}",
            Fix("add --off for a fixed number, or set the fewest instances", least),
            code="scales-automatically",
        )
    scaling = None
    if request.changes_bounds:
        after = _after(record, before, request)
        scaling = None if before == bounds_of(after) else ScalingChange(before, after)
    elif request.off and before is not None:
        scaling = ScalingChange(before, None)
    is_reached = live.status == "InService" and request.to == live.engine_count
    count = None if is_reached else request.to
    change = Scale(
        live, scaling, count, record.current.served.per_instance if live.hosts_components else 1
    )
    if live.hosts_components:
        _require_room(record, change)
    most = scaling.after.max_instances if scaling and scaling.after else change.instances
    if most is None:
        return change
    usd_per_hour = record.current.served.with_instances(most).usd_per_hour
    end = end_at_price(record, usd_per_hour, (clock or Clock()).now())
    return replace(change, end=end, end_text=text) if (text := end_text(end, record)) else change


def _require_room(record: Deployment, change: Scale) -> None:
    """Raise Refused for more copies than the instances of the endpoint may hold, and for none where
    they stay: its configuration has their bounds. Another machine's plan is left to SageMaker."""
    plan, after = record.current.plan, change.scaling.after if change.scaling else None
    if plan is None:
        return
    instances = plan.scaling.max_instances if plan.scaling else plan.instance_count
    most, asked = instances * change.per_instance, after.maximum if after else change.count or 0
    if asked > most:
        raise Refused(
            f"{asked} copies do not fit: {record.name} has at most {instances} "
            f"{counted(instances, copies=False)}, which hold {most}",
            f"use {most} or less, or deploy with more --copies for each instance, or with a larger "
            "--max-instances under another --name",
            code="copies-beyond-instances",
        )
    if after and after.scales_to_zero and not (plan.scaling and plan.scaling.scales_to_zero):
        fix = "use --min 1, or deploy with --scale-to-zero under another --name"
        message = f"the instances of {record.name} stay without a copy too"
        raise Refused(message, fix, "instances-stay")


_SCALABLE = ("InService", "Updating")
"""It is also Updating while scaling starts or ends an instance."""


def _after(record: Deployment, before: Bounds | None, request: ScaleRequest) -> Scaling:
    """The scaling that is asked for; what is not given stays as registered, or as planned."""
    plan = record.current.plan
    planned = plan.scaling if plan else None
    copies = record.current.served.copies is not None
    old_maximum = before.maximum if before else planned.maximum if planned else None
    maximum = request.maximum or old_maximum
    if maximum is None:
        message = f"{record.name} does not scale automatically, so --max is required"
        raise OptionMissing(message, "add --max N, or use --to N for a fixed number")
    least = before.minimum if before else planned.minimum if planned else 1
    minimum = least if request.minimum is None else request.minimum
    lowest = 0 if copies else 1
    if not lowest <= minimum <= maximum <= MOST_COUNT:
        message = f"scaling from {minimum} to {maximum} {counted(maximum, copies)} is impossible"
        fix = f"use a --min of at least {lowest}, and a --max that is not smaller"
        raise UserError(message, fix, "invalid-scaling")
    target = request.target or (before and before.target)
    target = target or (planned.target_concurrency if planned else None)
    if target is None:
        fix = "add --target-concurrency N, or deploy with --max-instances, which computes it"
        raise OptionMissing(f"the load at which {record.name} should scale is unknown", fix)
    scale_in = before.scale_in_cooldown if before else None
    if scale_in is None and planned:
        scale_in = planned.scale_in_cooldown_seconds
    if scale_in is None:
        scale_in = max(SHORTEST_SCALE_IN_SECONDS, start_seconds(record.current.served))
    scale_out = before.scale_out_cooldown if before else None
    per_instance = record.current.served.per_instance if copies else 1
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


def scale(
    aws: Aws,
    record: Deployment,
    change: Scale,
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> None:
    """Make the change, and wait until a fixed number of instances or copies serves. May be
    repeated. A change that SageMaker makes at the moment ends first.

    Raises CloudError when SageMaker refuses, and when fewer or more instances run in the end. The
    end of a budget moves before the price rises, and back where SageMaker refuses.
    """
    context = DeploymentContext(aws, record, observe, clock or Clock())
    if change.end is None:
        _make(context, change)
        return
    before = End(record.ends_at, record.budget_usd)
    _set_end(context, change, change.end)
    try:
        _make(context, change)
    except CloudError as error:
        if (error.rejected or error.code == "not-scaled") and _is_unchanged(context, change):
            _set_end(context, change, before)
        raise


def _set_end(context: DeploymentContext, change: Scale, end: End) -> None:
    limits.set_end(context, shown_revision(context.record, change.live), end)


def _is_unchanged(context: DeploymentContext, change: Scale) -> bool:
    """Whether the endpoint still has the number and the bounds from before a failed change."""
    name = context.record.name
    live = sagemaker.describe(context.aws, name)
    bounds = change.scaling.before if change.scaling and change.scaling.after else None
    is_bound = change.scaling is None or autoscaling.registered(context.aws, name) == bounds
    return live is not None and is_bound and live.desired_count == change.live.desired_count


def _make(context: DeploymentContext, change: Scale) -> None:
    """Make the change."""
    aws, record = context.aws, context.record
    if change.scaling is not None:
        apply_scaling(context, change.scaling.after)
    if change.count is None:
        return
    copies = change.live.hosts_components
    counts = counted(change.count, copies)
    context.say("Scaling", f"{change.running} -> {change.count} {counts}")
    served = record.current.served.with_instances(change.instances or 1)
    revision = record.current.model_copy(update={"served": served})
    if change.live.status in BUSY:
        wait_while_busy(context, revision, context.clock.now())
    if copies:
        sagemaker.set_copy_count(aws, record.name, change.count)
    else:
        sagemaker.set_variant(aws, record.name, VARIANT, count=change.count)
    live = wait_while_busy(context, revision, context.clock.now())
    running = live.engine_count if live else 0
    if live is None or live.status != "InService" or running != change.count:
        state = f"{live.status}, with {running} {counted(running, copies)}" if live else "gone"
        reason = f": {live.failure}" if live and live.failure else ""
        raise CloudError(
            f"{record.name} was to have {change.count} {counts}; it is {state}{reason}",
            Fix("look at it, then repeat", ("peagle", "status", record.name)),
            code="not-scaled",
        )
