"""Bounds and target of automatic scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.errors import UserError
from peagle.planning import Options, Plan, make_plan
from peagle.planning.operation_model import Scaling
from peagle.speed.slo import Slo
from peagle.text import format_duration

CATALOG = load_catalog()


def plan(**given: Any) -> Plan:
    options = {"pair": "gpt-oss-20b", "instance_type": "ml.g6e.xlarge", "concurrency": 32}
    return make_plan(Options(**{**options, **given}), CATALOG)


def scaling_of(**given: Any) -> Scaling:
    found = plan(max_instances=4, **given).scaling
    assert found is not None
    return found


def because(made: Plan, what: str) -> str:
    return next(reason.because for reason in made.reasons if reason.what == what)


@pytest.mark.thorough
def test_without_a_maximum_a_plan_does_not_scale() -> None:
    assert plan().scaling is None


@pytest.mark.thorough
def test_without_an_objective_the_target_is_what_one_instance_runs_at_once() -> None:
    made = plan(max_instances=4)

    assert made.scaling is not None
    assert (made.scaling.min_instances, made.scaling.max_instances) == (1, 4)
    assert made.scaling.target_concurrency == 32
    assert "one runs 32 requests at once (--concurrency), more would queue" in because(
        made, "target_concurrency"
    )


@pytest.mark.thorough
def test_the_target_is_the_load_from_which_the_objective_breaks() -> None:
    """At one request more, the plan for that load misses the objective."""
    alone = {"slo": Slo(itl=0.025), "speculation": False}
    most = scaling_of(**alone).target_concurrency

    assert 1 < most < 32
    codes = []
    for load in (int(most), int(most) + 1):
        made = plan(concurrency=load, instance_count=1, **alone)
        codes.append("slo-missed" in {finding.code for finding in made.findings})
    assert codes == [False, True]


@pytest.mark.thorough
def test_a_stricter_objective_never_raises_the_target() -> None:
    targets = [scaling_of(slo=Slo(ttft=one)).target_concurrency for one in (0.2, 0.5, 1, 4)]

    assert targets == sorted(targets)
    assert targets[0] < targets[-1] == 32


@pytest.mark.thorough
def test_the_kv_cache_limits_the_target() -> None:
    sizes = {"prompt_tokens": 100_000, "output_tokens": 1000, "max_model_len": 110_000}
    made = plan(max_instances=40, concurrency=256, **sizes)

    assert made.scaling is not None
    assert made.scaling.target_concurrency < 256
    assert "the KV cache of one holds" in because(made, "target_concurrency")


@pytest.mark.thorough
def test_a_target_above_what_one_instance_should_get_is_a_warning() -> None:
    made = plan(max_instances=4, target_concurrency=50.0)

    assert made.scaling is not None
    assert made.scaling.target_concurrency == 50
    (found,) = [one for one in made.findings if one.code == "scaling-target-high"]
    assert "use target_concurrency: 32" in found.fix


def test_no_instance_is_ended_for_as_long_as_a_start_takes() -> None:
    made = plan(max_instances=4)

    assert made.scaling is not None
    cooldown = made.scaling.scale_in_cooldown_seconds
    (start,) = [one for one in made.reasons if one.what == "start_time"]
    assert start.value == f"about {cooldown // 60} min"
    assert cooldown > 300
    assert scaling_of(startup_timeout=3600).scale_in_cooldown_seconds == cooldown
    assert "start_time" not in {one.what for one in plan().reasons}


@pytest.mark.thorough
def test_the_first_number_of_instances_is_within_the_bounds() -> None:
    assert plan(min_instances=2, max_instances=4).instance_count == 2
    assert because(plan(min_instances=2, max_instances=4), "instance_count") == "--min-instances"
    most = {"prompt_tokens": 100_000, "output_tokens": 1000, "max_model_len": 110_000}
    assert plan(max_instances=2, concurrency=256, **most).instance_count == 2


def test_the_prices_of_both_bounds() -> None:
    made = plan(min_instances=2, max_instances=5)

    assert made.scaling is not None
    assert made.price_per_hour_usd is not None
    one = made.price_per_hour_usd / 2
    assert list(made.scaling.prices(made.price_per_hour_usd, 2) or ()) == [
        pytest.approx(2 * one),
        pytest.approx(5 * one),
    ]
    assert made.scaling.prices(None, 2) is None


def test_a_maximum_above_the_price_limit_is_an_error() -> None:
    made = plan(max_instances=4, max_price_per_hour=6.0)

    (found,) = [one for one in made.findings if one.code == "scaling-above-price-limit"]
    assert (found.level, found.fix) == ("error", "use --max-instances 2")


@pytest.mark.parametrize(
    "given",
    [
        {"min_instances": 2},
        {"target_concurrency": 4.0},
        {"min_instances": 0, "max_instances": 2},
        {"min_instances": 2, "max_instances": 2},
        {"max_instances": 10**10},
        {"max_instances": 4, "instance_count": 5},
        {"max_instances": 4, "target_concurrency": 0.0},
        {"scale_to_zero": True, "min_instances": 1, "max_instances": 2},
        {"scale_to_zero": True, "target_concurrency": 0.0},
        {"scale_to_zero": True, "instance_count": 3, "max_instances": 2},
    ],
)
def test_contradicting_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        plan(**given)


@pytest.mark.thorough
def test_copies_have_the_bounds_of_their_instances_and_a_target_of_one_copy() -> None:
    eight = {"instance_type": "ml.p5.48xlarge", "copies": 8, "concurrency": 64}
    made = plan(min_instances=1, max_instances=3, **eight)

    assert made.scaling is not None
    assert (made.scaling.minimum, made.scaling.maximum) == (8, 24)
    assert made.scaling.wake_up_seconds is None
    (target,) = [one for one in made.reasons if one.what == "target_concurrency"]
    assert target.value.endswith("per copy")


@pytest.mark.parametrize(("region", "warned"), [("eu-west-3", True), ("eu-west-1", False)])
def test_a_region_that_refuses_scale_to_zero_gets_a_warning(region: str, warned: bool) -> None:
    codes = {f.code for f in plan(scale_to_zero=True, region=region).findings}
    assert ("scale-to-zero-refused" in codes) is warned


@pytest.mark.parametrize(("vllm", "offered"), [("0.28.0", False), ("0.30.0", True)])
def test_a_limit_of_the_queue_is_offered_with_an_objective(vllm: str, offered: bool) -> None:
    def codes(**options: Any) -> set[str]:
        return {f.code for f in plan(vllm=vllm, **options).findings}

    assert ("queue-unbounded" in codes(slo=Slo(ttft=1))) is offered
    assert "queue-unbounded" not in codes()
    assert "queue-unbounded" not in codes(slo=Slo(ttft=1), settings={"max-num-queued-reqs": "9"})


def test_a_scale_to_zero_is_one_copy_and_says_how_long_it_takes_to_wake() -> None:
    made = plan(scale_to_zero=True)

    assert made.copies is not None
    assert made.scaling is not None
    assert (made.engines, made.scaling.minimum, made.scaling.maximum) == (1, 0, 1)
    assert made.scaling.prices(made.price_per_hour_usd, 1) == (0.0, made.price_per_hour_usd)
    assert made.scaling.wake_up_seconds == made.scaling.scale_in_cooldown_seconds


def test_compiled_code_of_an_earlier_start_shortens_the_wake_up() -> None:
    cold, warm = (plan(scale_to_zero=True, allow_unpinned_warm=one) for one in (False, True))

    of_pair = [one for one in CATALOG.starts if one.target == "gpt-oss-20b"]
    for made, kind in ((cold, "cold"), (warm, "restored")):
        slowest = max(one.seconds for one in of_pair if one.kind == kind)
        expected = f"{format_duration(slowest)} for a {'cold' if made is cold else 'warm'} start"
        assert because(made, "start_time").startswith(f"{expected}, as measured with gpt-oss-20b")
    assert cold.scaling is not None
    assert warm.scaling is not None
    assert 180 <= (cold.scaling.wake_up_seconds or 0) - (warm.scaling.wake_up_seconds or 0) <= 240


def test_a_start_says_what_was_measured_elsewhere_and_what_was_not() -> None:
    made = plan(pair="gpt-oss-120b", instance_type="ml.g7e.4xlarge", scale_to_zero=True)

    measured, rest = because(made, "start_time").split("; not measured: ")
    assert "with gpt-oss-20b, dummy weights" in measured
    assert "on an NVIDIA H200 (warm-starts-h200.json)" in measured
    parts = rest.split(", ")
    assert parts[0] == "5m 00s for an instance and its image"
    assert [one.partition(" GB ")[2] for one in parts[1:]] == [
        "from the Hub at 50 MB/s",
        "to the GPU at 200 MB/s",
    ]


@pytest.mark.thorough
def test_more_bytes_take_longer_and_without_evidence_nothing_is_measured() -> None:
    small = plan(scale_to_zero=True)
    large = plan(pair="gpt-oss-120b", instance_type="ml.g7e.4xlarge", scale_to_zero=True)
    assert small.scaling is not None
    assert large.scaling is not None
    assert (large.scaling.wake_up_seconds or 0) > (small.scaling.wake_up_seconds or 0)

    options = Options(pair="gpt-oss-20b", scale_to_zero=True)
    unmeasured = because(make_plan(options, replace(CATALOG, starts=())), "start_time")
    assert unmeasured.startswith("not measured: ")
    assert unmeasured.endswith("10m 00s for the engine's start")
