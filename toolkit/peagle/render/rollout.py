"""The DeploymentConfig of an update: how its rollout replaces instances or copies."""

from __future__ import annotations

from typing import Any

from peagle.planning.plan import PROVISIONING_SECONDS, Plan, Rollout, Step
from peagle.planning.rollout import longest_seconds, rollout_of, rollout_of_copies
from peagle.render.alarms import rollback_alarm_names

_TIMEOUTS = (600, 28_800)
"""The least and the longest execution of an update that SageMaker accepts, in seconds."""


def deployment_config(plan: Plan, count: int = 0) -> dict[str, Any] | None:
    """The DeploymentConfig of an update of ``count`` instances, or copies of a plan with copies;
    ``None`` where the plan has no rollout, and for a single copy. 0 is for a template, which does
    not know how many run: the fewest that may, or the planned copies."""
    if plan.rollout is None:
        return None
    if plan.copies is not None:
        count = count or plan.engines
        rollout = rollout_of_copies(plan.rollout, count)
    else:
        count = count or (plan.scaling.min_instances if plan.scaling else plan.instance_count)
        rollout = rollout_of(plan.rollout, count)
    if rollout is None:
        return None
    policy = "RollingUpdatePolicy" if rollout.kind == "rolling" else "BlueGreenUpdatePolicy"
    settings = _rolling(rollout) if rollout.kind == "rolling" else _blue_green(rollout)
    return {
        policy: {**settings, "MaximumExecutionTimeoutInSeconds": _timeout(plan, rollout, count)},
        "AutoRollbackConfiguration": {
            "Alarms": [{"AlarmName": name} for name in rollback_alarm_names(plan)]
        },
    }


def _rolling(rollout: Rollout) -> dict[str, Any]:
    assert rollout.step is not None
    return {
        "MaximumBatchSize": _size(rollout.step),
        "WaitIntervalInSeconds": rollout.baking_seconds,
    }


def _blue_green(rollout: Rollout) -> dict[str, Any]:
    """All at once, the only wait is the one before the earlier instances end."""
    kind = rollout.kind.replace("-", "_").upper()
    wait = rollout.baking_seconds if rollout.step else 0
    traffic: dict[str, Any] = {"Type": kind, "WaitIntervalInSeconds": wait}
    if rollout.step:
        traffic["CanarySize" if kind == "CANARY" else "LinearStepSize"] = _size(rollout.step)
    return {
        "TrafficRoutingConfiguration": traffic,
        "TerminationWaitInSeconds": rollout.baking_seconds,
    }


def _size(step: Step) -> dict[str, Any]:
    kinds = {"percent": "CAPACITY_PERCENT", "instances": "INSTANCE_COUNT", "copies": "COPY_COUNT"}
    return {"Type": kinds[step.unit], "Value": step.value}


def _timeout(plan: Plan, rollout: Rollout, count: int) -> int:
    """How long an update may take at most, in seconds."""
    start = plan.startup_timeout_seconds + plan.download_timeout_seconds + PROVISIONING_SECONDS
    least, most = _TIMEOUTS
    needed = longest_seconds(rollout, count, start)
    return min(most, max(least, round(needed)))
