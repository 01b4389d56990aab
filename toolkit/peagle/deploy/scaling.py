"""Automatic scaling of a deployment: what is registered, and what a revision's plan registers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peagle.aws import autoscaling, sagemaker
from peagle.aws.autoscaling import Bounds, bounds_of
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.sagemaker import ID_TAG, Endpoint, Tag
from peagle.deploy.context import DeploymentContext
from peagle.deploy.revisions import revision_in_service
from peagle.deploy.state import Deployment, Revision
from peagle.planning.plan import Scaling
from peagle.render.requests import DEPLOYMENT_TAG
from peagle.text import counted

SCALING_TAG = "peagle:scaling"
"""Tag of an endpoint configuration: what other machines need to return to it."""

_NO_SCALING, _BETWEEN = "none", "/"


@dataclass(frozen=True)
class ScalingChange:
    """What is registered now, and what is to be; ``None`` for a fixed number of instances."""

    before: Bounds | None
    after: Scaling | None

    @property
    def text(self) -> str:
        """``none -> 1 to 4 instances, target 8 requests at a time each``."""
        before = self.before.text if self.before else "none"
        return f"{before} -> {self.after.text if self.after else 'none'}"


def required_scaling(
    aws: Aws, record: Deployment | None, live: Endpoint | None, after: Scaling | None
) -> ScalingChange | None:
    """What deploying a plan with this scaling changes; ``None`` for nothing.

    A plan without scaling ends that of an earlier plan, also of one that another machine deployed,
    and leaves alone what others registered. Raises AccessDenied.
    """
    if after is None and not planned_before(record):
        revisions = (record.serving, record.pending) if record else ()
        if live and any(each and each.plan is None for each in revisions):  # of another machine
            with suppress(AccessDenied):
                bounds = autoscaling.registered(aws, live.name)
                return ScalingChange(bounds, None) if bounds and bounds.is_ours else None
        return None
    before = autoscaling.registered(aws, live.name) if live else None
    if before == (bounds_of(after) if after else None):
        return None
    return ScalingChange(before, after)


def planned_before(record: Deployment | None) -> bool:
    """Whether the plan in service or the pending one scales, as far as this machine knows."""
    return record is not None and any(map(_scaling_of, (record.serving, record.pending)))


def _scaling_of(revision: Revision | None) -> Scaling | None:
    return revision.plan.scaling if revision and revision.plan else None


def keeps_count(aws: Aws, record: Deployment | None, revision: Revision, live: Endpoint) -> bool:
    """Whether an update to ``revision`` keeps the number of instances, because scaling chose it."""
    try:
        registered = autoscaling.registered(aws, live.name, policies=False)
    except AccessDenied:
        return _scaling_of(revision) is not None or planned_before(record)
    return registered is not None or _scaling_of(record.serving if record else None) is not None


def count_at_update(aws: Aws, record: Deployment | None, revision: Revision, live: Endpoint) -> int:
    """How many instances an update to ``revision`` starts."""
    kept = keeps_count(aws, record, revision, live)
    return max(1, live.instance_count) if kept else revision.served.instance_count


def end_scaling_for_new_type(
    context: DeploymentContext, revision: Revision, live: Endpoint
) -> None:
    """Deregister what our own plans registered, if ``revision`` has a different instance type:
    SageMaker refuses one while the endpoint scales. It is registered again once the update is
    proved."""
    now = revision_in_service(context.record, live.revision)
    if now is None or now.served.instance_type == revision.served.instance_type:
        return
    planned = _scaling_of(revision) is not None or planned_before(context.record)
    with suppress(AccessDenied):
        # Without a plan of ours that scales, the plans may be another machine's.
        registered = autoscaling.registered(context.aws, live.name, policies=not planned)
        if registered and (planned or registered.is_ours):
            context.say("Scaling", "ends while the instance type changes")
            autoscaling.deregister(context.aws, live.name)


def most_instances(
    aws: Aws, record: Deployment, revision: Revision, live: Endpoint | None, keeps_bounds: bool
) -> int:
    """The most instances that the endpoint ``live`` may have once it serves ``revision``: by its
    plan; without scaling there, by what is registered if that stays, as after a promotion
    (``keeps_bounds``) and where others scale it."""
    if after := _scaling_of(revision):
        return after.max_instances
    if live is None:
        return revision.served.instance_count
    is_served = revision.name == live.revision
    count = live.instance_count if is_served else count_at_update(aws, record, revision, live)
    if keeps_bounds or not planned_before(record):
        with suppress(AccessDenied):
            if bounds := autoscaling.registered(aws, live.name, policies=False):
                per_instance = revision.served.per_instance if bounds.scales_copies else 1
                return max(count, math.ceil(bounds.maximum / per_instance))
    return count


def apply_scaling(context: DeploymentContext, after: Scaling | None) -> None:
    """Register the endpoint with this scaling, or end it. May be repeated."""
    name = context.record.name
    if after is not None:
        context.say("Scaling", after.text)
        before = (
            autoscaling.registered(context.aws, name, policies=False)
            if after.scales_copies
            else None
        )
        autoscaling.register(context.aws, name, after, _tags(context))
        if before and before.scales_copies and before.minimum == 0 and not after.scales_to_zero:
            autoscaling.stay_awake(context.aws, name)
        return
    live = sagemaker.describe(context.aws, name)
    copies = live is not None and live.hosts_components
    context.say("Scaling", f"ends; the number of {counted(2, copies)} stays")
    autoscaling.deregister(context.aws, name, copies)


def _tags(context: DeploymentContext) -> list[Tag]:
    """The tags of an alarm of the deployment."""
    deployment_tags = {DEPLOYMENT_TAG: context.record.name, ID_TAG: context.record.id}
    plan = context.record.current.plan
    company_tags = plan.company.tag_list if plan else []
    return [
        *({"Key": key, "Value": value} for key, value in deployment_tags.items()),
        *company_tags,
    ]


def kept_copies(aws: Aws, live: Endpoint, planned: int, scales: bool) -> int:
    """How many copies an update brings up: those that scaling chose, at least one to prove, else
    the ``planned`` number. ``scales``: whether the plan does, where that may not be read."""
    if live.component is None:
        return planned
    with suppress(AccessDenied):
        scales = autoscaling.registered(aws, live.name, policies=False) is not None
    return max(1, live.component.desired_copies) if scales else planned


def return_to_scaling(context: DeploymentContext, revision: Revision) -> None:
    """``apply_scaling`` as the plan of a kept revision has it, if a plan of the deployment scales.

    Of a plan that another machine has, the tag of its configuration says so; without that tag,
    what is registered stays.
    """
    unknown = any(recorded.plan is None for recorded in context.record.revisions)
    after, is_known = _kept_scaling(context, revision)
    scales = any(map(_scaling_of, context.record.revisions)) or after is not None
    if not scales and unknown:
        with suppress(AccessDenied):
            registered = autoscaling.registered(context.aws, context.record.name)
            scales = registered is not None and registered.is_ours
    if scales and is_known:
        apply_scaling(context, after)
    elif scales:
        context.say("Scaling", f"stays: what {revision.name} was deployed with is unknown")


def scaling_tag(scaling: Scaling | None) -> Tag:
    """The tag of a configuration with the scaling of its plan: bounds, target and cooldowns."""
    value = _NO_SCALING
    if scaling is not None:
        value = _BETWEEN.join(
            str(number) for number in scaling.model_dump(exclude_none=True).values()
        )
    return {"Key": SCALING_TAG, "Value": value}


def tag_scaling(context: DeploymentContext, revision: Revision, scaling: Scaling | None) -> None:
    """Tag the configuration of a revision whose plan now has this scaling."""
    config = sagemaker.description(context.aws, "EndpointConfig", revision.endpoint_config)
    sagemaker.retag(context.aws, config["EndpointConfigArn"], [scaling_tag(scaling)])


def _kept_scaling(context: DeploymentContext, revision: Revision) -> tuple[Scaling | None, bool]:
    """The scaling of a kept revision: of its plan, else in the tag of its configuration; and
    whether that is known."""
    if revision.plan is not None:
        return revision.plan.scaling, True
    with suppress(AccessDenied, Missing, ValueError):
        config = sagemaker.description(context.aws, "EndpointConfig", revision.endpoint_config)
        value = sagemaker.tags_of(context.aws, config["EndpointConfigArn"]).get(SCALING_TAG, "")
        if value == _NO_SCALING:
            return None, True
        fields = zip(Scaling.model_fields, value.split(_BETWEEN), strict=False)
        return Scaling.model_validate_strings(dict(fields)), True
    return None, False


def scaling_document(aws: Aws, live: Endpoint | None) -> dict[str, Any] | None:
    """The bounds and the target of a live endpoint, for ``--json``; ``None`` for a fixed number of
    instances, and where it may not be read."""
    if live is None:
        return None
    with suppress(AccessDenied):
        bounds = autoscaling.registered(aws, live.name)
        return bounds.document() if bounds else None
    return None


def listed_scaling(aws: Aws) -> Mapping[str, Bounds]:
    """The bounds by endpoint; empty where they may not be read."""
    with suppress(AccessDenied):
        return autoscaling.all_registered(aws)
    return {}


def bounds_fields(bounds: Bounds | None) -> dict[str, int | None]:
    """The bounds in a row of ``list``: of instances, or of copies, else ``None``."""
    names = [f"{bound}_{unit}" for unit in ("instances", "copies") for bound in ("min", "max")]
    values = bounds.document() if bounds else {}
    return {name: values.get(name) for name in names}
