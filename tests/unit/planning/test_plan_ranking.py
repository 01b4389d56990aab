"""The choice of the instance: by price and measured speed, within the user's limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.errors import NotFound, UserError
from peagle.findings import errors
from peagle.planning import Options, Plan, make_plan
from peagle.speed.slo import Slo
from tests.support import raises_code
from tests.unit.planning.small_catalog import (
    CATALOG,
    CHAT,
    because,
    codes,
    finding_of,
    plan,
    with_target,
)
from tests.unit.planning.speeds import FAST, SLOW, measured, row, run

MEASURED = measured(run(FAST))


def types(made: Plan) -> list[str]:
    return [candidate.instance_type for candidate in made.alternatives]


def error_of(made: Plan) -> tuple[str, str, str]:
    finding = finding_of(made, "error")
    return finding.code, finding.message, finding.fix


def test_the_three_cheapest_that_fit_are_shown_unpriced_ones_last() -> None:
    made = plan()
    assert types(made) == ["ml.g5.12xlarge", "ml.g7e.2xlarge", "ml.g6e.xlarge"]
    assert [candidate.price_per_hour_usd for candidate in made.alternatives] == [4.0, 4.2, None]
    assert made.instance_type == "ml.g5.12xlarge"
    first = made.alternatives[0]
    assert (first.tensor_parallel_size, first.k, first.instance_count) == (2, 5, 1)
    assert first.max_concurrency == made.fit.max_concurrency
    assert first.kv_cache_tokens == made.fit.kv_cache_tokens


def test_an_unmeasured_candidate_is_unverified() -> None:
    made = plan()
    assert made.speed is not None
    for candidate in (made.speed, *made.alternatives):
        assert (candidate.tokens_per_second, candidate.basis) == (None, "unknown")
        assert candidate.usd_per_million_tokens is None
    assert not any(candidate.verified for candidate in made.alternatives)


def test_each_candidate_has_the_k_and_speed_of_its_gpu() -> None:
    made = plan(concurrency=8, catalog=MEASURED)
    by_type = {candidate.instance_type: candidate for candidate in made.alternatives}
    fast = by_type["ml.g7e.2xlarge"]
    assert (fast.k, fast.tokens_per_second, fast.verified) == (3, 900, True)
    assert fast.source.startswith("speed.json: GPU-sm_120, vLLM 0.28.0, 2,048 + 256 tokens")
    assert by_type["ml.g5.12xlarge"].k == 5
    assert made.instance_type == "ml.g5.12xlarge", "not all speeds are known, so price decides"


def test_the_price_of_a_million_tokens_is_price_over_speed() -> None:
    made = plan(instance_type="ml.g7e.2xlarge", catalog=MEASURED)
    assert made.speed is not None
    assert made.speed.usd_per_million_tokens == pytest.approx(4.2 / (900 * 3600) * 1e6, abs=1e-4)
    assert made.without_speculation is not None
    alone = made.without_speculation
    assert (alone.instance_type, alone.drafter, alone.k) == ("ml.g7e.2xlarge", None, 0)
    (better,) = [one for one in made.reasons if one.what == "instance_without_speculation"]
    assert better.value == "ml.g5.12xlarge"
    made = plan(catalog=MEASURED)
    assert made.without_speculation is not None
    assert made.without_speculation.instance_type == "ml.g5.12xlarge"
    assert because(made, "instance_without_speculation") is None


def test_cost_per_token_decides_where_all_speeds_are_known() -> None:
    """ml.g6e.xlarge costs $3.00 and ml.g7e.2xlarge $4.20 in a region that has both."""
    for times, chosen in ((1.0, "ml.g7e.2xlarge"), (0.5, "ml.g6e.xlarge"), (0.9, "ml.g7e.2xlarge")):
        catalog = measured(run(SLOW, times=0.5), run(FAST, times=times), catalog=only(SLOW, FAST))
        made = plan(catalog=catalog, concurrency=8)
        assert made.instance_type == chosen, times
        assert made.speed is not None
        assert made.speed.tokens_per_second == 900 * (times if chosen[3:6] == "g7e" else 0.5)
        assert "the lowest cost of 2 types" in str(because(made, "instance_type"))
        assert made.without_speculation is not None
        assert made.without_speculation.usd_per_million_tokens is not None
        assert "per million output tokens with it" in str(because(made, "speculation"))


def test_costs_within_the_precision_of_estimates_leave_the_choice_to_the_price() -> None:
    """$4.20 for 900 tokens/s and $3.00 for 900 x 0.65 differ by a tenth per token."""
    catalog = measured(run(SLOW, times=0.65), run(FAST), catalog=only(SLOW, FAST))
    assert plan(catalog=catalog, concurrency=8).instance_type == "ml.g6e.xlarge"


@pytest.mark.parametrize(("speed", "chosen"), [(920, "p-eagle"), (950, "eagle3")])
def test_another_drafter_must_be_faster_than_what_counts_as_equal(
    speed: float, chosen: str
) -> None:
    """The pair's own drafter reaches 900 tokens/s."""
    one = run(FAST)
    rows = tuple(
        each.model_copy(update={"output_tokens_per_second": speed, "low": speed - 30})
        if (each.drafter, each.concurrency) == ("eagle3", 8)
        else each
        for each in one.speeds
    )
    catalog = measured(one.model_copy(update={"speeds": rows}), catalog=only(FAST))
    made = plan(catalog=catalog, concurrency=8)
    assert made.speculation is not None
    assert made.pair == f"acme/chat+acme/chat-{chosen}"


def only(*gpus: str) -> Catalog:
    """The small catalogue with the types that have one of these GPUs, priced in us-east-1."""
    kept = [one for one in CATALOG.instances.instances if one.gpu in gpus]
    priced = tuple(
        one.model_copy(
            update={
                "prices": tuple(p.model_copy(update={"region": "us-east-1"}) for p in one.prices)
            }
        )
        for one in kept
    )
    table = CATALOG.instances.model_copy(update={"instances": priced})
    return replace(CATALOG, instances=table)


def test_the_users_instance_is_kept_and_alternatives_are_shown() -> None:
    made = plan(instance_type="ml.p6-b200.48xlarge")
    assert made.instance_type == "ml.p6-b200.48xlarge"
    assert because(made, "instance_type") is None
    assert types(made) == types(plan())


def test_with_a_required_speed_only_those_that_reach_it_are_offered() -> None:
    made = plan(catalog=MEASURED, min_tokens_per_second=900)
    assert types(made) == ["ml.g7e.2xlarge"]
    assert [candidate.verified for candidate in made.alternatives] == [True]
    assert codes(made, "error") == []
    assert "speed-unverified" not in codes(made)
    assert because(made, "instance_type") == (
        "the only type that fits for this load, known to meet what is required; at $4.20 an hour"
    )


@pytest.mark.thorough
def test_the_cheapest_candidate_that_reaches_the_speed_is_chosen() -> None:
    catalog = measured(run(SLOW), run(FAST))
    made = plan(catalog=catalog, region="eu-west-1", min_tokens_per_second=900)
    assert made.instance_type == "ml.g6e.xlarge", "$3.00, and the other $4.20"
    slower = measured(run(SLOW, times=0.1), run(FAST))
    made = plan(catalog=slower, region="eu-west-1", min_tokens_per_second=900, instance_count=1)
    assert made.instance_type == "ml.g7e.2xlarge"
    assert types(made)[0] == "ml.g7e.2xlarge", "the other is known to be too slow"


def test_without_evidence_the_ranking_stays_with_a_warning() -> None:
    made = plan(min_tokens_per_second=900)
    assert types(made) == types(plan())
    finding = finding_of(made, "speed-unverified")
    assert finding.level == "warning"
    assert "the speed of ml.g5.12xlarge is unknown, so it may not reach 900" in finding.message
    assert codes(made, "error") == []


def test_an_unmeasured_instance_has_a_warning_with_a_measured_one() -> None:
    made = plan(catalog=MEASURED, instance_type="ml.p6-b200.48xlarge", min_tokens_per_second=900)
    finding = finding_of(made, "speed-unverified")
    assert "use --instance-type ml.g7e.2xlarge at $4.20 an hour (900 tokens/s" in finding.fix


def test_a_missed_speed_is_an_error_with_the_fastest() -> None:
    made = plan(catalog=MEASURED, instance_type="ml.g7e.2xlarge", min_tokens_per_second=5000)
    code, message, fix = error_of(made)
    assert code == "speed-below-minimum"
    assert "8 x ml.g7e.2xlarge does not reach 5,000 tokens/s" in message
    assert "1,920 tokens/s, 8 times one measured instance" in message, "8 streams of 240"
    assert fix == "lower --min-tokens-per-second to 1920"


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"k": 7, "min_tokens_per_second": 850}, "use --k 3 (900 tokens/s measured)"),
        ({"min_tokens_per_second": 950, "instance_count": 1}, "use --instance-count 2"),
        ({"min_tokens_per_second": 1500, "instance_count": 3}, "use --instance-count 6"),
        ({"min_tokens_per_second": 950}, "lower --min-tokens-per-second to 900"),
        ({"slo": Slo(itl=0.05)}, "use --slo itl=0.1"),
    ],
)
def test_fixes_for_a_missed_requirement(options: dict[str, Any], fix: str) -> None:
    settings: dict[str, Any] = {"instance_count": 1, "instance_type": "ml.g7e.2xlarge", **options}
    made = plan("chat+p-eagle", catalog=MEASURED, **settings)
    code, _, found = error_of(made)
    assert code == ("slo-missed" if "slo" in options else "speed-below-minimum")
    assert fix in found


def test_times_decide_as_speeds_do() -> None:
    made = plan(catalog=MEASURED, slo=Slo(ttft=0.2))
    assert made.instance_type == "ml.g7e.2xlarge", "the only one whose times are known"
    assert made.slo == Slo(ttft=0.2)
    assert codes(made, "error") == []
    missed = plan(catalog=MEASURED, instance_type="ml.g7e.2xlarge", slo=Slo(ttft=0.05))
    assert "does not reach ttft=0.05" in error_of(missed)[1]
    assert finding_of(missed, "slo-missed").where == "slo"


def test_each_missed_requirement_is_an_error_of_its_own() -> None:
    both: dict[str, Any] = {"min_tokens_per_second": 5000, "slo": Slo(ttft=0.05)}
    made = plan(catalog=MEASURED, instance_type="ml.g7e.2xlarge", **both)
    found = {one.where: one.fix for one in made.findings if one.level == "error"}
    assert set(found) == {"min_tokens_per_second", "slo"}
    assert "--slo" in found["slo"]
    assert "--slo" not in found["min_tokens_per_second"]


def test_more_instances_are_planned_for_a_required_speed() -> None:
    made = plan(catalog=MEASURED, min_tokens_per_second=950, concurrency=8)
    assert (made.instance_type, made.instance_count) == ("ml.g7e.2xlarge", 2)
    assert made.price_per_hour_usd == 8.4
    assert made.speed is not None
    # Two with 4 requests each: between 180 at 1 and 900 at 8 with K=3, or 240 and 800 with K=7.
    assert made.speed.tokens_per_second == pytest.approx(
        2 * max(180 + 720 * 3 / 7, 240 + 560 * 3 / 7), abs=0.05
    )
    assert "2 times one instance with 4 requests at a time" in made.speed.source
    assert "several-instances" in codes(made, "warning")
    assert str(because(made, "instance_count")).startswith("one is too slow; together they reach")
    given = plan(catalog=MEASURED, min_tokens_per_second=950, concurrency=8, instance_count=2)
    assert given.speed == made.speed
    assert "several-instances" not in codes(given)


def test_more_instances_than_requests_are_no_faster() -> None:
    one, two = (
        plan(catalog=MEASURED, instance_type="ml.g7e.2xlarge", concurrency=1, instance_count=n)
        for n in (1, 2)
    )
    assert one.speed is not None
    assert two.speed is not None
    assert one.speed.tokens_per_second == two.speed.tokens_per_second


def test_the_price_limit_is_that_of_all_instances() -> None:
    assert plan(max_price_per_hour=4.0).instance_type == "ml.g5.12xlarge"
    assert types(plan(max_price_per_hour=4.0)) == ["ml.g5.12xlarge"]
    code, message, _ = error_of(plan(max_price_per_hour=7.9, instance_count=2))
    assert code == "price-above-limit"
    assert "2 x ml.g5.12xlarge costs $8.00 an hour; the limit is $7.90" in message


def test_no_candidate_below_the_price_limit_is_an_error_with_the_cheapest() -> None:
    code, message, fix = error_of(plan(max_price_per_hour=3.5))
    assert code == "price-above-limit"
    assert message == "ml.g5.12xlarge costs $4.00 an hour; the limit is $3.50"
    assert "--max-price-per-hour 4.00" in fix


def test_the_fix_of_a_low_limit_is_the_price_of_the_cheapest_type_that_fits() -> None:
    catalog = load_catalog()
    refused = make_plan(Options(pair="gpt-oss-20b", max_price_per_hour=0.5), catalog)
    fix = error_of(refused)[2]
    assert fix == "use --max-price-per-hour 1.13: ml.g6.xlarge is the cheapest that fits"
    allowed = make_plan(Options(pair="gpt-oss-20b", max_price_per_hour=1.13), catalog)
    assert allowed.instance_type == "ml.g6.xlarge" != refused.instance_type
    assert not errors(allowed.findings)


@pytest.mark.parametrize("limit", [3, 1_000_000])
def test_an_unknown_price_is_above_every_limit(limit: float) -> None:
    made = plan(max_price_per_hour=limit, instance_type="ml.p6-b200.48xlarge")
    code, message, _ = error_of(made)
    assert code == "price-above-limit"
    assert "price of ml.p6-b200.48xlarge is unknown" in message
    assert "ml.p6-b200.48xlarge" not in types(made)


def test_a_fast_candidate_above_the_price_limit_is_no_fix() -> None:
    made = plan(catalog=MEASURED, min_tokens_per_second=900, max_price_per_hour=4)
    assert made.instance_type == "ml.g5.12xlarge"
    assert "ml.g7e.2xlarge" not in finding_of(made, "speed-unverified").fix


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("option", ["min_tokens_per_second", "max_price_per_hour"])
def test_an_invalid_limit_is_refused(option: str, limit: float) -> None:
    with raises_code("out-of-range", UserError) as refused:
        plan("chat", CATALOG, **{option: limit})
    assert f"--{option.replace('_', '-')} {limit} " in refused.value.message


def test_a_named_drafter_that_costs_more_than_none_has_a_warning() -> None:
    load: dict[str, Any] = {"concurrency": 32, "instance_type": "ml.g7e.2xlarge"}
    catalog = measured(run(FAST), catalog=only(FAST))
    made = plan("chat+eagle3", catalog, **load)
    finding = finding_of(made, "speculation-costs-more")
    assert finding.level == "warning"
    assert finding.message == (
        "without speculation, ml.g7e.2xlarge at $4.20 an hour costs $0.73 per million output "
        "tokens (1,600 tokens/s measured); with EAGLE-3 head for Chat, ml.g7e.2xlarge at $4.20 an "
        "hour costs $1.17 (1,000 tokens/s measured)"
    )
    assert finding.fix == "use --no-speculation"
    for options in ({"speculation": False}, {}):
        free = plan("chat", catalog, **load, **options)
        assert free.drafter is None
        assert "speculation-costs-more" not in codes(free)


def test_another_drafter_of_the_target_may_win() -> None:
    rows = (*run().speeds, row("eagle3", 4, 8, 1900))
    made = plan(catalog=measured(run(speeds=rows)), concurrency=8, instance_type="ml.g7e.2xlarge")
    assert (made.drafter and made.drafter.name, made.speculation and made.speculation.k) == (
        "eagle3",
        4,
    )
    assert made.name == "peagle-chat", "what the bare target gives"


def test_a_drafter_must_save_more_than_little() -> None:
    for speed, drafter in ((510, None), (530, "p-eagle")):
        rows = (row(None, 0, 8, 500), row("p-eagle", 3, 8, speed, low=speed - 20))
        made = plan(catalog=measured(run(speeds=rows)), instance_type="ml.g7e.2xlarge")
        assert (made.drafter.name if made.drafter else None) == drafter


def test_speculation_is_off_only_on_the_gpu_where_it_loses() -> None:
    made = plan(catalog=MEASURED, concurrency=32)
    by_type = {candidate.instance_type: candidate.k for candidate in made.alternatives}
    assert by_type["ml.g7e.2xlarge"] == 0
    assert by_type["ml.g5.12xlarge"] == 5
    assert made.speculation is not None, "the cheapest is another"
    assert "speculation-loses" not in codes(made)


def test_evidence_of_one_gpu_is_not_used_for_two() -> None:
    two = measured(run("GPU-sm_86", tensor_parallel_size=2))
    assert basis(plan(catalog=two)) == "measured", "ml.g5.12xlarge takes two"
    one = measured(run("GPU-sm_86", tensor_parallel_size=1))
    assert basis(plan(catalog=one)) == "unknown"


def basis(made: Plan) -> str:
    assert made.speed is not None
    return made.speed.basis


def test_instances_with_equal_gpus_fit_equally() -> None:
    cheap = CATALOG.instances.instances[5]
    twin = cheap.model_copy(update={"type": "ml.g7e.4xlarge", "prices": (), "memory_gib": 999})
    table = CATALOG.instances.model_copy(update={"instances": (cheap, twin)})
    made = plan(catalog=replace(CATALOG, instances=table))
    first, second = made.alternatives
    assert first.max_concurrency == second.max_concurrency
    assert (first.instance_type, second.instance_type) == ("ml.g7e.2xlarge", "ml.g7e.4xlarge")
    assert second.price_per_hour_usd is None


def test_an_unknown_instance_type_is_refused_with_other_limits() -> None:
    with raises_code("instance-unknown", NotFound) as refused:
        plan(instance_type="ml.g5.xlarg")
    assert "ml.g5.xlarge" in refused.value.fix


def test_without_a_fit_there_are_no_alternatives() -> None:
    huge = with_target(CHAT.model_copy(update={"weight_bytes": 10**13}))
    made = plan(catalog=huge, min_tokens_per_second=5, max_price_per_hour=5)
    assert made.alternatives == ()
    assert codes(made, "error") == ["instance-too-small"]
