"""Copies of the engine on an instance, and the bounds and the target of automatic scaling."""

from dataclasses import replace
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.planning import Options, Plan, make_plan
from peagle.planning.plan import Scaling
from peagle.workload import Slo
from tests.unit.planning.rows import Expected, check_plan
from tests.unit.planning.small_catalog import codes, reason_of

CATALOG = load_catalog()
EIGHT = "ml.p5.48xlarge"
LONG = {"prompt_tokens": 100_000, "output_tokens": 1000, "max_model_len": 110_000}
LARGE = {"pair": "gpt-oss-120b", "instance_type": "ml.g7e.4xlarge", "concurrency": 8}


def plan(**options: Any) -> Plan:
    defaults = {"pair": "gpt-oss-20b", "instance_type": "ml.g6e.xlarge", "concurrency": 32}
    return make_plan(Options(**{**defaults, **options}), CATALOG)


def scaling_of(made: Plan) -> Scaling:
    assert made.scaling is not None
    return made.scaling


def on_eight(**options: Any) -> dict[str, Any]:
    return {"instance_type": EIGHT, "concurrency": 8, **options}


IDLE = "fix gpus-idle"
PLANS: dict[str, tuple[dict[str, Any], Expected]] = {
    "no scaling without a maximum": ({}, {"scaling": None, "because start_time": None}),
    "the target is what one runs at once": ({"max_instances": 4}, {
        "scaling.min_instances": 1, "scaling.max_instances": 4, "scaling.target_concurrency": 32,
        "because target_concurrency": "none-queues",
        "values target_concurrency": {"requests": 32, "in_cache": False}}),
    "a target above it": ({"max_instances": 4, "target_concurrency": 50.0}, {
        "scaling.target_concurrency": 50}),
    "the first number is the least": ({"min_instances": 2, "max_instances": 4}, {
        "instance_count": 2,
        "because instance_count": "bound-of-scaling"}),
    "and at most the maximum": ({"max_instances": 2, "concurrency": 256, **LONG}, {
        "instance_count": 2}),
    "a maximum above the price limit": ({"max_instances": 4, "max_price_per_hour": 6.0}, {
        "errors": ["scaling-above-price-limit"], "fix error": "use --max-instances 2"}),
    "an objective that always holds": (
        {"max_instances": 4, "concurrency": 32, "slo": Slo(ttft=100.0)}, {
            "scaling.target_concurrency": 32, "because target_concurrency": "objective-holds",
            "values target_concurrency": {"requests": 32, "basis": "estimated"}}),
    "an objective that never holds": (
        {"max_instances": 4, "concurrency": 32, "slo": Slo(ttft=0.0001)}, {
            "scaling.target_concurrency": 1, "because target_concurrency": "objective-breaks",
            "values target_concurrency": {"requests": 1, "holds_with": 0}}),
    "an objective that breaks": (
        {"max_instances": 4, "concurrency": 32, "slo": Slo(itl=0.021), "speculation": False,
         "instance_type": "ml.g6e.xlarge", "instance_count": 2}, {
            "scaling.target_concurrency": 14, "because target_concurrency": "objective-breaks",
            "values target_concurrency": {"requests": 15, "holds_with": 14}}),
    # Limits
    "an end after some time": ({"ttl": 36000}, {
        "because limit": "end-by-ttl", "lacks values limit": {"copies_seconds_before"}}),
    "copies end before": ({"ttl": 36000, "scale_to_zero": True}, {
        "because limit": "end-by-ttl", "values limit": {"copies_seconds_before": 600}}),
    "an end by the price": ({"budget": 50.0}, {
        "because limit": "end-by-budget", "lacks values limit": {"ttl_seconds"}}),
    "the earlier of both": ({"ttl": 36000, "budget": 50.0}, {
        "because limit": "end-by-budget",
        "values limit": {"ttl_seconds": 36000, "budget_usd": 50.0}}),
    # Copies
    "one engine on many GPUs": (on_eight(pair="tiny", copies=1), {
        "copies": None, "message gpus-idle": "7 of the 8 GPUs of ml.p5.48xlarge are idle",
        IDLE: "use --copies auto"}),
    "fewer copies than GPUs": (on_eight(concurrency=64, copies=5, rollout="rolling"), {
        "message gpus-idle": "3 of the 8 GPUs of ml.p5.48xlarge", IDLE: "use --copies auto"}),
    "a rollout that excludes copies": (on_eight(pair="tiny", rollout="all-at-once"), {
        "copies": None, IDLE: "leave --instance-type out"}),
    "captured data excludes copies": (on_eight(pair="tiny", capture_data="s3://captured/here"), {
        "copies": None, IDLE: "leave --instance-type out"}),
    "another rollout": (on_eight(pair="tiny", rollout="canary", instance_count=4), {
        "copies": None}),
    "tensor parallelism costs less": (
        LARGE | {"instance_type": "ml.g6.12xlarge", "copies": "auto"},
        {"copies": None, "fit.tensor_parallel_size": 4}),
    "no more copies than requests": (on_eight(concurrency=1, copies="auto"), {"engines": 1}),
    "one GPU needs no inference component": ({"copies": "auto"}, {"copies": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str) -> None:
    options, expected = PLANS[name]
    check_plan(plan(**options), expected)


@pytest.mark.thorough
def test_the_target_is_the_load_from_which_the_objective_breaks() -> None:
    """At one request more, the plan for that load misses the objective."""
    alone = {"slo": Slo(itl=0.025), "speculation": False}
    most = int(scaling_of(plan(max_instances=4, **alone)).target_concurrency)
    assert 1 < most < 32
    missed = [
        "speed-below-minimum" in codes(plan(concurrency=load, instance_count=1, **alone))
        for load in (most, most + 1)
    ]
    assert missed == [False, True]


def test_no_instance_is_ended_for_as_long_as_a_start_takes() -> None:
    made = plan(max_instances=4)
    cooldown = scaling_of(made).scale_in_cooldown_seconds
    (start,) = [reason for reason in made.reasons if reason.what == "start_time"]
    assert start.value == f"about {cooldown // 60} min"
    assert cooldown > 300
    longer = scaling_of(plan(max_instances=4, startup_timeout=3600))
    assert longer.scale_in_cooldown_seconds == cooldown


def test_the_prices_of_both_bounds() -> None:
    made = plan(min_instances=2, max_instances=5)
    assert made.price_per_hour_usd is not None
    of_one = made.price_per_hour_usd / 2
    prices = scaling_of(made).prices(made.price_per_hour_usd, 2)
    assert list(prices or ()) == [pytest.approx(2 * of_one), pytest.approx(5 * of_one)]
    assert scaling_of(made).prices(None, 2) is None


@pytest.mark.thorough
def test_copies_have_the_bounds_of_their_instances_and_a_target_of_one_copy() -> None:
    eight = on_eight(copies=8, concurrency=64)
    made = plan(min_instances=1, max_instances=3, **eight)
    scaling = scaling_of(made)
    assert (scaling.minimum, scaling.maximum, scaling.wake_up_seconds) == (8, 24, None)
    (target,) = [reason for reason in made.reasons if reason.what == "target_concurrency"]
    assert target.value.endswith("per copy")


def test_a_scale_to_zero_is_one_copy_and_says_how_long_it_takes_to_wake() -> None:
    made = plan(scale_to_zero=True)
    scaling = scaling_of(made)
    assert made.copies is not None
    assert (made.engines, scaling.minimum, scaling.maximum) == (1, 0, 1)
    assert scaling.prices(made.price_per_hour_usd, 1) == (0.0, made.price_per_hour_usd)
    assert scaling.wake_up_seconds == scaling.scale_in_cooldown_seconds


def start_reason(made: Plan) -> tuple[str, dict[str, Any]]:
    reason = reason_of(made, "start_time")
    assert reason is not None
    return reason.code, reason.values


def wake_up(made: Plan) -> int:
    return scaling_of(made).wake_up_seconds or 0


def test_compiled_code_of_an_earlier_start_shortens_the_wake_up() -> None:
    cold, warm = (
        plan(scale_to_zero=True, allow_unpinned_warm=allowed) for allowed in (False, True)
    )
    of_pair = [start for start in CATALOG.runtimes.starts if start.target == "gpt-oss-20b"]
    for made, kind in ((cold, "cold"), (warm, "restored")):
        slowest = max(start.seconds for start in of_pair if start.kind == kind)
        code, values = start_reason(made)
        expected = {"warm": made is warm, "measured_seconds": slowest, "target": "gpt-oss-20b"}
        assert code == "start-as-measured"
        assert {name: values[name] for name in expected} == expected
    assert 180 <= wake_up(cold) - wake_up(warm) <= 240


def test_a_start_says_what_was_measured_elsewhere_and_what_was_not() -> None:
    large = plan(**LARGE, scale_to_zero=True)
    code, values = start_reason(large)
    assert code == "start-as-measured"
    assert (values["target"], values["device"]) == ("gpt-oss-20b", "NVIDIA H200")
    assert (values["file"], values["instance_seconds"]) == ("warm-starts-h200.json", 300)
    assert values["hub_bytes"] > 10**10
    assert (values["loaded_bytes"], values["s3_bytes"]) == (values["hub_bytes"], 0)
    assert "engine_seconds" not in values
    assert wake_up(large) > wake_up(plan(scale_to_zero=True)), "more bytes take longer"
    options = Options(pair="gpt-oss-20b", scale_to_zero=True)
    runtimes = CATALOG.runtimes.model_copy(update={"starts": ()})
    made = make_plan(options, replace(CATALOG, runtimes=runtimes))
    code, values = start_reason(made)
    assert (code, values["engine_seconds"]) == ("start-not-measured", 600)
    assert "measured_seconds" not in values


@pytest.mark.thorough
def test_n_copies_are_n_engines_that_share_the_load_and_the_instance() -> None:
    eight = plan(**on_eight(concurrency=64, copies=8))
    single = plan(concurrency=8, instance_type="ml.p5.4xlarge")
    assert eight.speed is not None
    assert single.speed is not None
    speed = 8 * (single.speed.tokens_per_second or 0)
    assert eight.speed.tokens_per_second == pytest.approx(speed, rel=0.001)
    assert eight.speed.itl_seconds == single.speed.itl_seconds
    assert eight.copies is not None
    assert (eight.copies.per_instance, eight.engines) == (8, 8)
    assert eight.copies.cpu_cores * 8 <= 192
    assert eight.copies.memory_mib * 8 <= 2048 * 1024


def test_types_without_a_gpu_for_each_copy_are_not_chosen() -> None:
    made = make_plan(Options(pair="gpt-oss-20b", copies=4), CATALOG)
    assert made.fit.gpu_count >= 4
    assert all(row.copies == 4 for row in made.alternatives)
