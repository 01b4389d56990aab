"""A promotion that is killed at any of its calls ends in the same state when it is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.planning.operation_model import Limit
from tests.unit.aws.interruptions import interrupt, moments_of, snapshot
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.test_observed import observed
from tests.unit.aws.test_rollout_alarms import rolled_out
from tests.unit.aws.test_scaling import ready, scaled
from tests.unit.aws.world import NAME, World

pytestmark = pytest.mark.thorough

OTHER_TYPE = "ml.g5.2xlarge"
"""SageMaker refuses it while the endpoint scales: the promotion ends and begins the scaling."""


def state(world: World) -> dict[str, Any]:
    """What is in the account and in the record, without times."""
    cloud, record = world.cloud, world.saved()
    ended = {"peagle:ends", "peagle:proof", "peagle:previous"}
    return {
        "serves": world.serves(),
        "state": world.state(),
        "models": set(cloud.models),
        "configs": set(cloud.configs),
        "tags": {arn: {k: v for k, v in tags.items() if k not in ended}
                 for arn, tags in cloud.tags.items()},
        "alarms": cloud.made_alarms,
        "filters": cloud.metric_filters,
        "dashboards": cloud.dashboards,
        "retention": cloud.retention,
        "scaled": {one: cloud.bounds[one] for one in cloud.scaled},
        "policies": cloud.policies,
        "schedules": set(cloud.scheduler.schedules),
        "resources": {(one.type, one.name, one.made) for one in record.resources},
        "revisions": [one and one.name for one in (record.serving, record.pending,
                                                      record.previous)],
        "comparison": record.comparison,
        "failure": record.failure,
        "ends": record.ends_at is not None,
    }  # fmt: skip


def compared(own_scaling: bool) -> World:
    """The plan in service scales; the candidate changes everything that a promotion applies."""
    world = ready(World())
    world.cloud.quotas[f"{OTHER_TYPE} for endpoint usage"] = 20
    world.deploy(rolled_out(scaled()))
    plan = another(scaled(max_instances=5) if own_scaling else a_plan())
    changes = {"instance_type": OTHER_TYPE, "limit": Limit(ttl_seconds=36_000)}
    world.compare(observed(rolled_out(plan, floor=1.5)).model_copy(update=changes))
    return world


@pytest.mark.usefixtures("plain_writes")
@pytest.mark.parametrize(("own_scaling", "bounds"), [(True, (1, 5)), (False, (1, 3))])
def test_a_killed_promotion_ends_as_one_that_was_not(
    own_scaling: bool, bounds: tuple[int, int]
) -> None:
    world = compared(own_scaling)
    start = snapshot(world)
    moments = moments_of(world, world.promote)
    ended = state(world)
    assert ended["scaled"] == {f"endpoint/{NAME}/variant/AllTraffic": bounds}
    assert ended["comparison"] is None

    # Where it is killed matters as much for both: one of them is killed after the proof only.
    for number in moments[-14:] if own_scaling else moments:
        world = start()
        interrupt(world, number, "before", world.promote, killed=True)
        where = f"killed before call {number}, {world.cloud.calls[-1]}"
        if world.saved().comparison:
            world.promote()
        assert state(world) == ended, where
