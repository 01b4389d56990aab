"""The dashboard of a deployment, and the retention of its log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peagle.planning.plan import AlarmKind, Observe, Plan
from tests.unit.aws.plans import a_plan
from tests.unit.aws.test_rollout_alarms import rolled_out
from tests.unit.aws.world import NAME, World

LOG = f"/aws/sagemaker/Endpoints/{NAME}"
DASHBOARD = f"{NAME}-us-east-1"
TOPIC = "arn:aws:sns:us-east-1:123456789012:on-call"


def observed(plan: Plan, days: int | None = 30) -> Plan:
    return plan.model_copy(update={"observe": Observe(dashboard=True, log_retention_days=days)})


@pytest.mark.parametrize("change", [observed, rolled_out])
def test_the_log_has_the_tags_of_the_user(world: World, change: Callable[[Plan], Plan]) -> None:
    plan = change(a_plan())
    company = plan.company.model_copy(update={"tags": {"team": "search"}})
    world.deploy(plan.model_copy(update={"company": company}))
    assert world.cloud.log_tags == {LOG: {"team": "search"}}


def alarmed(plan: Plan, topic: str | None = TOPIC, *kinds: AlarmKind) -> Plan:
    """The plan with a dashboard and alarms."""
    observe = Observe(
        dashboard=True, alarms=kinds or ("errors", "acceptance", "load"), alarm_topic=topic
    )
    speculation = plan.speculation
    if speculation:
        speculation = speculation.model_copy(update={"acceptance_floor": 2.0})
    return plan.model_copy(update={"observe": observe, "speculation": speculation})


def test_alarms_without_a_rollout_watch_all_instances_and_notify_the_topic(world: World) -> None:
    world.cloud.topics[TOPIC] = {"SubscriptionsConfirmed": "1"}
    assert not world.preflight(alarmed(a_plan())).findings
    world.deploy(alarmed(a_plan()))
    made = world.cloud.made_alarms
    assert set(made) == {f"{NAME}-{kind}" for kind in ("5xx", "acceptance", "load")}
    assert all(one["AlarmActions"] == one["OKActions"] == [TOPIC] for one in made.values())
    names = {one["Name"] for one in made[f"{NAME}-5xx"]["Dimensions"]}
    assert names == {"EndpointName", "VariantName"}
    assert "--no-speculation" in made[f"{NAME}-acceptance"]["AlarmDescription"]
    assert made[f"{NAME}-load"]["Threshold"] == a_plan().concurrency
    world.destroy()
    assert world.cloud.made_alarms == world.cloud.metric_filters == {}


def test_what_an_update_stops_watching_is_said_and_removed(world: World) -> None:
    world.deploy(alarmed(a_plan()))
    found = world.preflight(a_plan())
    assert (found.change, [one.text for one in found.changes]) == (
        "nothing",
        [f"dashboard {DASHBOARD} -> none", "alarms acceptance, errors, load -> none"],
    )
    world.deploy(a_plan())
    assert world.cloud.dashboards == {}
    assert world.cloud.made_alarms == world.cloud.metric_filters == {}
    assert "update_endpoint" not in world.cloud.calls
    assert not world.preflight(a_plan()).changes
