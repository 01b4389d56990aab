"""How updates are rolled out: steps that SageMaker accepts, what they take, and their alarms."""

from typing import Any

import pytest

from peagle.planning import Options, Plan, make_plan
from peagle.planning.operation import adapt_rollout, cost_text
from peagle.planning.plan import Pins, Step
from peagle.planning.weights import with_pins
from peagle.render.alarms import alarms, metric_filters
from peagle.render.requests import deploy_command
from peagle.render.resources import deployment_config
from peagle.render.values import values
from peagle.workload import Slo
from tests.unit.planning.small_catalog import codes
from tests.unit.rendering.plans import CATALOG

OWN_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle:1"


def planned(**options: Any) -> Plan:
    return make_plan(Options(pair="gpt-oss-20b", **options), CATALOG)


def name_policy(plan: Plan) -> dict[str, Any]:
    config = deployment_config(plan)
    assert config is not None
    (policy,) = (value for key, value in config.items() if key.endswith("Policy"))
    document: dict[str, Any] = policy
    return document


@pytest.mark.parametrize(("kind", "count", "step", "extra"), [
    ("rolling", 4, 1, 1),
    ("rolling", 40, 2, 2),
    ("canary", 4, 1, 4),
    ("canary", 40, 4, 40),
    ("linear", 8, 2, 8),
    ("linear", 2, 1, 2),
])  # fmt: skip
def test_the_default_step_is_one_that_sagemaker_accepts(
    kind: Any, count: int, step: int, extra: int
) -> None:
    plan = planned(rollout=kind, instance_count=count)
    assert plan.rollout is not None
    assert plan.rollout.step is not None
    assert (plan.rollout.step.value, plan.rollout.extra_instances) == (step, extra)
    assert plan.price_per_hour_usd is not None
    assert plan.rollout.extra_usd_per_hour == pytest.approx(
        plan.price_per_hour_usd * extra / count, abs=1e-3
    )
    assert "rollout-one-instance" not in codes(plan)


@pytest.mark.parametrize("kind", ["rolling", "canary"])
def test_a_rollout_of_one_instance_is_an_error(kind: Any) -> None:
    plan = planned(rollout=kind, instance_count=1)
    levels = [f.level for f in plan.findings if f.code == "rollout-one-instance"]
    assert levels == ["error"]


@pytest.mark.parametrize(("kind", "count", "step", "accepted"), [
    ("rolling", 4, 3, Step(value=2, unit="instances")),
    ("canary", 4, 3, Step(value=2, unit="instances")),
    ("linear", 40, 2, Step(value=4, unit="instances")),
    ("linear", 40, 10, Step(value=10, unit="instances")),
])  # fmt: skip
def test_the_step_is_the_nearest_that_sagemaker_accepts(
    kind: Any, count: int, step: int, accepted: Step
) -> None:
    plan = planned(rollout=kind, instance_count=count, rollout_step=step)
    assert plan.rollout is not None
    assert plan.rollout.step == accepted


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("kind", ["rolling", "canary", "linear"])
def test_a_plan_that_may_scale_to_one_instance_has_steps_from_two_on(kind: Any, count: int) -> None:
    plan = planned(rollout=kind, instance_count=count, max_instances=4)
    assert "rollout-one-instance" not in codes(plan)
    assert plan.rollout is not None
    of_one, of_two = adapt_rollout(plan.rollout, 1), adapt_rollout(plan.rollout, 2)
    assert (of_one.kind, of_one.step, of_one.extra_instances) == ("all-at-once", None, 1)
    assert (of_two.kind, of_two.step) == (kind, Step(value=1, unit="instances"))
    in_template = name_policy(plan)
    assert in_template["TrafficRoutingConfiguration"]["Type"] == "ALL_AT_ONCE"


@pytest.mark.parametrize("count", [2, 3, 7, 20, 21, 40, 99])
@pytest.mark.parametrize(
    ("kind", "most"), [("rolling", (5, 50)), ("canary", (1, 50)), ("linear", (10, 50))]
)
def test_any_number_of_instances_has_a_step_that_sagemaker_accepts(
    kind: Any, most: tuple[int, int], count: int
) -> None:
    plan = planned(rollout=kind, instance_count=4, rollout_step=2, max_instances=99)
    assert plan.rollout is not None
    rollout = adapt_rollout(plan.rollout, count)
    assert rollout.step is not None
    assert most[0] <= rollout.step.percent(count) <= most[1]


def test_any_number_of_copies_above_one_has_a_batch_that_sagemaker_accepts() -> None:
    plan = planned(rollout="rolling", instance_type="ml.p5.48xlarge", copies=8, rollout_step=2)
    assert plan.rollout is not None
    for count in (2, 3, 8, 16, 41, 99):
        rollout = adapt_rollout(plan.rollout, count, copies=True)
        assert rollout is not None
        assert rollout.step is not None
        assert 5 <= rollout.step.percent(count) <= 50
    assert adapt_rollout(plan.rollout, 1, copies=True) is None
    assert deployment_config(plan, 1) is None


def test_one_copy_that_may_become_two_can_be_rolled_out() -> None:
    plan = planned(scale_to_zero=True, max_instances=2, rollout="rolling")
    assert "rollout-one-instance" not in codes(plan)
    alone = planned(scale_to_zero=True, rollout="rolling")
    assert "rollout-one-instance" in codes(alone)


def test_the_values_have_the_kind_and_step_of_the_fewest_instances() -> None:
    """Terraform's module refuses a canary without a step."""
    rollout = values(planned(rollout="canary", max_instances=4), "terraform")["rollout"]
    assert (rollout["kind"], rollout["step"]) == ("all-at-once", None)


def test_all_at_once_suits_one_instance_and_waits_before_the_old_one_ends() -> None:
    plan = planned(rollout="all-at-once", baking_time=300, instance_count=1)
    assert "rollout-one-instance" not in codes(plan)
    policy = name_policy(plan)
    assert policy["TrafficRoutingConfiguration"] == {
        "Type": "ALL_AT_ONCE",
        "WaitIntervalInSeconds": 0,
    }
    assert policy["TerminationWaitInSeconds"] == 300


def test_a_step_is_a_number_of_instances() -> None:
    size = {"Type": "INSTANCE_COUNT", "Value": 2}
    canary = name_policy(planned(rollout="canary", instance_count=4, rollout_step=2))
    assert canary["TrafficRoutingConfiguration"]["CanarySize"] == size
    rolling = name_policy(planned(rollout="rolling", instance_count=4, rollout_step=2))
    assert rolling["MaximumBatchSize"] == size


def test_the_alarms_are_those_that_the_plan_can_judge() -> None:
    options: dict[str, Any] = {"rollout": "all-at-once", "instance_count": 1}
    with_slo = planned(**options, slo=Slo(ttft=1.0))
    assert with_slo.rollout is not None
    assert with_slo.rollout.alarms == ("ttft", "errors", "acceptance")
    ttft, errors, acceptance = alarms(with_slo, "c")
    assert (ttft["ExtendedStatistic"], ttft["Threshold"]) == ("p90", 1_000_000.0)
    assert errors["MetricName"] == "Invocation5XXErrors"
    assert with_slo.speculation is not None
    k = with_slo.speculation.k
    assert acceptance["Threshold"] == with_slo.speculation.acceptance_floor
    assert f"1 + {k} * accepted / drafted" in acceptance["Metrics"][0]["Expression"]
    alone = planned(**options, speculation=False)
    assert alone.rollout is not None
    assert alone.rollout.alarms == ("errors",)
    assert metric_filters(alone) == ()


def test_the_filters_read_what_the_image_logs() -> None:
    options: dict[str, Any] = {"rollout": "all-at-once", "instance_count": 1}
    stock = metric_filters(planned(**options))
    ours = metric_filters(planned(**options, image=OWN_IMAGE))
    assert [metric["metricTransformations"][0]["metricValue"] for metric in stock] == [
        "$accepted",
        "$drafted",
    ]
    assert 'w20="Accepted:", accepted, w22, w23="Drafted:", drafted' in stock[0]["filterPattern"]
    assert ours[1]["filterPattern"] == "{ $.drafted_tokens = * }"
    assert ours[1]["metricTransformations"][0]["metricValue"] == "$.drafted_tokens"


def test_a_deploy_is_a_command_unless_the_user_has_set_keys_of_the_file() -> None:
    agent = planned(workload="agent", rollout="all-at-once", instance_count=1)
    assert agent.shared_prompt_tokens  # by the preset, and found by the deploy
    pinned = with_pins(agent, Pins(warm=("1" * 64,)))
    for plan in (agent, pinned):
        assert deploy_command(plan)[:2] == ("peagle", "deploy")
    company = planned(kms_key="alias/models", rollout="all-at-once", instance_count=1)
    assert deploy_command(company) == ()


EIGHT = {"instance_type": "ml.p5.48xlarge", "copies": 8}


@pytest.mark.parametrize(("options", "size", "text"), [
    ({}, {"Type": "COPY_COUNT", "Value": 4}, "rolling, 4 copies per step, baking 10m 00s"),
    ({"rollout_step": 1, "baking_time": 300}, {"Type": "COPY_COUNT", "Value": 1},
     "rolling, 1 copy per step, baking 5m 00s"),
])  # fmt: skip
def test_copies_are_replaced_in_batches(
    options: dict[str, Any], size: dict[str, Any], text: str
) -> None:
    plan = planned(rollout="rolling", slo=Slo(ttft=0.5), **EIGHT, **options)
    assert plan.rollout is not None
    assert plan.rollout.text == text
    policy = name_policy(plan)
    assert policy["MaximumBatchSize"] == size
    assert policy["WaitIntervalInSeconds"] == plan.rollout.baking_seconds
    one_price = (plan.price_per_hour_usd or 0) / plan.instance_count
    assert f"1 more instance meanwhile (${one_price:.2f} per hour)" in cost_text(plan.rollout)
    watched = [alarm["Dimensions"] for alarm in alarms(plan, "config") if "Dimensions" in alarm]
    assert len(watched) == 2
    assert all(
        dimensions == [{"Name": "InferenceComponentName", "Value": plan.name}]
        for dimensions in watched
    )
    assert {metric["logGroupName"] for metric in metric_filters(plan)} == {
        f"/aws/sagemaker/InferenceComponents/{plan.name}"
    }


@pytest.mark.parametrize(("options", "size"), [
    ({"rollout_step": 5}, 4), ({"rollout_step": 9, "instance_count": 4}, 8),
])  # fmt: skip
def test_a_batch_of_copies_is_a_half_at_most_and_fits_on_one_more_instance(
    options: dict[str, Any], size: int
) -> None:
    made = planned(**EIGHT | {"rollout": "rolling"} | options)
    assert made.rollout is not None
    assert made.rollout.step == Step(value=size, unit="copies")
