"""Automatic scaling of a deployment: registered once proved, kept by updates, removed first."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.deploy.scaling import ScaleRequest, plan_scale, scale
from peagle.deploy.state import Deployment
from peagle.deploy.status import deployment_status, list_deployments
from peagle.errors import CloudError, UserError
from peagle.planning.plan import Plan, Rollout, Scaling, Step
from peagle.render.resources import policy_parameters
from tests.support import raises_code
from tests.unit.aws.cloud import Engine
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World

TARGET = f"endpoint/{NAME}/variant/AllTraffic"
SCALING = Scaling(
    min_instances=1,
    max_instances=3,
    target_concurrency=4,
    scale_in_cooldown_seconds=600,
    scale_out_cooldown_seconds=60,
)


def scaled(**changes: Any) -> Plan:
    return a_plan(scaling=SCALING.model_copy(update=changes))


def ready(world: World) -> World:
    world.cloud.quotas["ml.g5.xlarge for endpoint usage"] = 20
    return world


def run(world: World, **request: Any) -> Deployment:
    """``peagle scale`` with this request."""
    record = world.current()
    change = plan_scale(world.aws, record, ScaleRequest(**request), world.clock)
    scale(world.context(record), change)
    return record


def test_scaling_that_others_registered_is_left_alone(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.add_scalable_target(TARGET)
    assert world.preflight(a_plan()).change == "nothing"
    world.deploy(another(a_plan()))
    assert world.cloud.scaled == {TARGET}
    assert world.cloud.updates[-1]["RetainAllVariantProperties"] is True


@pytest.mark.thorough
@pytest.mark.parametrize(("running", "kind"), [(1, "ALL_AT_ONCE"), (3, "CANARY")])
def test_a_rollout_is_for_the_instances_that_run(world: World, running: int, kind: str) -> None:
    ready(world).deploy(scaled())
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


def test_another_instance_type_ends_the_scaling_for_the_update(world: World) -> None:
    ready(world).cloud.quotas["ml.g6.xlarge for endpoint usage"] = 20
    world.deploy(scaled())
    world.cloud.calls.clear()
    world.deploy(another(scaled()).model_copy(update={"instance_type": "ml.g6.xlarge"}))
    changing = ("deregister_scalable_target", "update_endpoint", "register_scalable_target")
    assert [call for call in world.cloud.calls if call in changing] == list(changing)
    assert world.cloud.updates[-1]["RetainAllVariantProperties"] is True


@pytest.mark.thorough
def test_another_machine_returns_to_the_scaling_of_the_revision(world: World) -> None:
    ready(world).deploy(scaled())
    world.deploy(scaled(max_instances=2))
    world.deploy(another(scaled(max_instances=8)))
    world.forget()
    world.rollback()
    assert world.cloud.bounds == {TARGET: (1, 2)}
    expected = policy_parameters(NAME, "AllTraffic", SCALING)
    tracking = world.cloud.policies[TARGET].target_tracking_scaling_policy_configuration
    assert tracking == expected["TargetTrackingScalingPolicyConfiguration"]
    world.forget()
    world.rollback()
    assert world.cloud.bounds == {TARGET: (1, 8)}


def test_a_plan_without_scaling_ends_that_of_another_machine(world: World) -> None:
    ready(world).deploy(scaled())
    world.forget()
    preflight = world.preflight(a_plan())
    assert preflight.scaling.text == "1 to 3 instances, target 4 requests at a time each -> none"
    world.deploy(a_plan())
    assert world.cloud.scaled == set()


def test_status_and_list_show_the_bounds_and_the_present_number(world: World) -> None:
    record = ready(world).deploy(scaled())
    world.cloud.endpoints[NAME].count = 2
    status = deployment_status(world.aws, record)
    assert status.scaling == {
        "min_instances": 1,
        "max_instances": 3,
        "target_concurrency": 4.0,
    }
    assert status.instances_running == 2
    (row,) = list_deployments(world.aws, ["us-east-1"], lambda: None).rows
    shown = [getattr(row, name) for name in ("min_instances", "max_instances", "instances_running")]
    assert shown == [1, 3, 2]


def test_a_quota_below_the_maximum_is_a_warning(world: World) -> None:
    world.cloud.quotas["ml.g5.xlarge for endpoint usage"] = 2
    findings = {finding.code: finding for finding in world.preflight(scaled()).findings}
    assert findings["quota-too-small"].level == "warning"
    assert "scaling to 3 instances will fail" in findings["quota-too-small"].message


@pytest.mark.parametrize(
    "request_",
    [{}, {"to": 2, "maximum": 3}, {"minimum": 2}, {"maximum": 3}, {"maximum": 3, "minimum": 4}],
)
def test_an_impossible_request_is_refused(world: World, request_: dict[str, Any]) -> None:
    """Of a deployment whose plan does not scale: a target is unknown, too."""
    world.deploy(a_plan())
    with pytest.raises(UserError):
        run(world, **request_)
    assert world.cloud.scaled == set()


def test_fewer_instances_than_asked_for_are_an_error(world: World) -> None:
    world.deploy(a_plan())
    change = plan_scale(world.aws, world.current(), ScaleRequest(to=2))

    def one_starts(operation: str) -> None:
        if operation == "update_endpoint_weights_and_capacities":
            world.cloud.endpoints[NAME].count = 1

    world.cloud.after = one_starts
    with raises_code("not-scaled", CloudError):
        scale(world.context(), change)
