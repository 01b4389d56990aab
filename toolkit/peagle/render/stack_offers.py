"""What a stack offers beyond its plan, switched off: scaling, alarms and a dashboard.

A template's parameter switches them on, without another plan.
"""

from __future__ import annotations

from peagle.planning.choose_scaling import SCALE_OUT_SECONDS, SHORTEST_SCALE_IN_SECONDS
from peagle.planning.observe_model import Observe
from peagle.planning.plan import Plan
from peagle.planning.rollout_model import AlarmKind
from peagle.planning.scaling import Scaling
from peagle.render.alarms import running_limit


def scalable(plan: Plan) -> bool:
    """Whether a stack of the plan can scale: not copies, unless the plan scales them."""
    return plan.copies is None or plan.scaling is not None


def offered_scaling(plan: Plan) -> Scaling | None:
    """The plan's scaling, or the one that its stack offers: up to twice the instances, each with
    the requests that its engine runs at a time; ``None`` where none is offered."""
    if plan.scaling is not None or not scalable(plan):
        return plan.scaling
    return Scaling(
        min_instances=plan.instance_count,
        max_instances=2 * plan.instance_count,
        target_concurrency=running_limit(plan),
        scale_in_cooldown_seconds=max(SHORTEST_SCALE_IN_SECONDS, plan.startup_timeout_seconds),
        scale_out_cooldown_seconds=SCALE_OUT_SECONDS,
    )


def with_observability(plan: Plan) -> Plan:
    """The plan with its dashboard and alarms; without any, with those that it has limits for."""
    if plan.observe is not None and plan.observe.dashboard:
        return plan
    kinds: list[AlarmKind] = ["errors", "load"]
    if plan.slo is not None and plan.slo.ttft is not None:
        kinds.insert(0, "ttft")
    if plan.speculation is not None and plan.speculation.acceptance_floor is not None:
        kinds.insert(-1, "acceptance")
    observe = plan.observe or Observe(dashboard=False)
    offered = observe.model_copy(update={"dashboard": True, "alarms": tuple(kinds)})
    return plan.model_copy(update={"observe": offered})
