"""Automatic scaling of a deployment: registered once proved, kept by updates, removed first."""

from typing import Any

import pytest

from peagle.planning.plan import Plan, Rollout, Scaling, Step
from tests.unit.aws.cloud import Engine
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World

TARGET = f"endpoint/{NAME}/variant/AllTraffic"
SCALING = Scaling(
    min_instances=1, max_instances=3, target_concurrency=4, scale_in_cooldown_seconds=600,
    scale_out_cooldown_seconds=60,
)  # fmt: skip


def scaled(**changes: Any) -> Plan:
    return a_plan(scaling=SCALING.model_copy(update=changes))


@pytest.mark.thorough
@pytest.mark.parametrize(("running", "kind"), [(1, "ALL_AT_ONCE"), (3, "CANARY")])
def test_a_rollout_is_for_the_instances_that_run(world: World, running: int, kind: str) -> None:
    world.cloud.quotas["ml.g5.xlarge for endpoint usage"] = 20
    world.deploy(scaled())
    world.cloud.endpoints[NAME].count = running
    if running > 1:
        world.cloud.streams = {f"AllTraffic/i-{each}": Engine() for each in range(1, running + 1)}
    canary = Rollout(
        kind="canary",
        step=Step(value=1, unit="instances"),
        baking_seconds=600,
        extra_instances=4,
        extra_usd_per_hour=None,
        alarms=("errors",),
    )
    plan = another(scaled()).model_copy(update={"rollout": canary, "instance_count": 4})
    preflight = world.preflight(plan)
    assert preflight.rollout.extra_instances == running
    world.deploy(plan)
    (update,) = world.cloud.updates
    policy = update["DeploymentConfig"]["BlueGreenUpdatePolicy"]
    assert policy["TrafficRoutingConfiguration"]["Type"] == kind


def test_a_quota_below_the_maximum_is_a_warning(world: World) -> None:
    world.cloud.quotas["ml.g5.xlarge for endpoint usage"] = 2
    findings = {finding.code: finding for finding in world.preflight(scaled()).findings}
    assert findings["quota-too-small"].level == "warning"
