"""The choice of the instance: by price and measured speed, within the user's limits."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.errors import NotFound, UserError
from peagle.planning import Plan
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
from tests.unit.planning.speeds import FAST, SLOW, measured, run

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
    assert made.speed is None
    for candidate in made.alternatives:
        assert not candidate.verified
        assert (candidate.tokens_per_second, candidate.speed_source) == (None, None)
        assert candidate.usd_per_million_tokens is None


def test_each_candidate_has_the_k_and_speed_of_its_gpu() -> None:
    made = plan(concurrency=8, catalog=MEASURED)
    by_type = {candidate.instance_type: candidate for candidate in made.alternatives}
    fast = by_type["ml.g7e.2xlarge"]
    assert (fast.k, fast.tokens_per_second, fast.verified) == (3, 900, True)
    assert "measured on 1 x GPU-sm_120" in str(fast.speed_source)
    assert by_type["ml.g5.12xlarge"].k == 5
    assert made.instance_type == "ml.g5.12xlarge", "without a required speed, price alone decides"


def test_the_price_of_a_million_tokens_is_price_over_speed() -> None:
    made = plan(instance_type="ml.g7e.2xlarge", catalog=MEASURED)
    assert made.speed is not None
    assert made.speed.usd_per_million_tokens == pytest.approx(4.2 / (900 * 3600) * 1e6, abs=1e-4)
    assert made.speed.alone_tokens_per_second == 500


def test_the_users_instance_is_kept_and_alternatives_are_shown() -> None:
    made = plan(instance_type="ml.p6-b200.48xlarge")
    assert made.instance_type == "ml.p6-b200.48xlarge"
    assert because(made, "instance_type") is None
    assert types(made) == types(plan())


def test_with_a_required_speed_measured_candidates_come_first() -> None:
    made = plan(catalog=MEASURED, min_tokens_per_second=900)
    assert types(made) == ["ml.g7e.2xlarge", "ml.g5.12xlarge", "ml.g6e.xlarge"]
    assert [candidate.verified for candidate in made.alternatives] == [True, False, False]
    assert codes(made, "error") == []
    assert "speed-unverified" not in codes(made)
    assert because(made, "instance_type") == (
        "the only type that fits, measured to reach 900 tokens/s; at $4.20 an hour"
    )


def test_the_cheapest_candidate_that_reaches_the_speed_is_chosen() -> None:
    catalog = measured(run(SLOW), run(FAST))
    made = plan(catalog=catalog, region="eu-west-1", min_tokens_per_second=900)
    assert made.instance_type == "ml.g6e.xlarge", "$3.00, and the other $4.20"
    slower = measured(run(SLOW, times=0.1), run(FAST))
    made = plan(catalog=slower, region="eu-west-1", min_tokens_per_second=900, instance_count=1)
    assert made.instance_type == "ml.g7e.2xlarge"
    assert "ml.g6e.xlarge" not in types(made), "known to be too slow"


def test_without_evidence_the_ranking_stays_with_a_warning() -> None:
    made = plan(min_tokens_per_second=900)
    assert types(made) == types(plan())
    finding = finding_of(made, "speed-unverified")
    assert finding.level == "warning"
    assert "this pair has not been measured on 2 x GPU-sm_86" in finding.message
    assert codes(made, "error") == []


def test_an_unmeasured_load_lists_the_measured_ones() -> None:
    made = plan(
        catalog=MEASURED,
        instance_type="ml.g7e.2xlarge",
        instance_count=1,
        concurrency=64,
        min_tokens_per_second=900,
    )
    finding = finding_of(made, "speed-unverified")
    assert "measured with 1 to 32 requests at a time, not with 64" in finding.message


def test_an_unmeasured_instance_has_a_warning_with_a_measured_one() -> None:
    made = plan(catalog=MEASURED, instance_type="ml.p6-b200.48xlarge", min_tokens_per_second=900)
    finding = finding_of(made, "speed-unverified")
    assert "ml.g7e.2xlarge is measured to reach 900 ($4.20 an hour)" in finding.fix


def test_a_missed_speed_is_an_error_with_the_fastest_and_fixes() -> None:
    made = plan(catalog=MEASURED, min_tokens_per_second=5000, concurrency=8)
    code, message, fix = error_of(made)
    assert code == "speed-below-wanted"
    assert "the fastest, 8 x ml.g7e.2xlarge, reaches 1,920 tokens/s" in message, "8 streams of 240"
    assert "--concurrency 128 on 4 x ml.g7e.2xlarge" in fix, "4 times 1,500 with K=3"
    assert types(made)[0] == "ml.g7e.2xlarge", "the best that is known is what is shown"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 7, "min_tokens_per_second": 850}, "omit --k: measured with K=3"),
        ({"min_tokens_per_second": 950, "instance_count": 1}, "use --instance-count 2"),
        ({"min_tokens_per_second": 1000, "instance_count": 1}, "--concurrency 32"),
        ({"min_tokens_per_second": 1500, "instance_count": 3}, "use --instance-count 6"),
    ],
)
def test_fixes_for_a_missed_speed(options: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"instance_count": 1, "instance_type": "ml.g7e.2xlarge", **options}
    made = plan("chat+p-eagle", catalog=MEASURED, **settings)
    code, _, fix = error_of(made)
    assert code == "speed-below-wanted"
    assert message in fix


def test_fixes_for_a_missed_speed_work() -> None:
    for options in ({"instance_count": 2}, {"instance_count": 1, "concurrency": 32}):
        made = plan(
            "chat+p-eagle",
            catalog=MEASURED,
            instance_type="ml.g7e.2xlarge",
            min_tokens_per_second=950,
            **options,
        )
        assert codes(made, "error") == []


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
    assert "instances-for-speed" in codes(made, "warning")
    assert str(because(made, "instance_count")).startswith("together they reach")
    given = plan(catalog=MEASURED, min_tokens_per_second=950, concurrency=8, instance_count=2)
    assert given.speed == made.speed
    assert "instances-for-speed" not in codes(given)


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


@pytest.mark.parametrize("limit", [3, 1_000_000])
def test_an_unknown_price_is_above_every_limit(limit: float) -> None:
    made = plan(max_price_per_hour=limit, instance_type="ml.p6-b200.48xlarge")
    code, message, _ = error_of(made)
    assert code == "price-above-limit"
    assert "price of ml.p6-b200.48xlarge is unknown" in message
    assert "ml.p6-b200.48xlarge" not in types(made)


def test_a_fast_candidate_above_the_price_limit_is_named() -> None:
    made = plan(catalog=MEASURED, min_tokens_per_second=900, max_price_per_hour=4)
    assert made.instance_type == "ml.g5.12xlarge"
    finding = finding_of(made, "speed-unverified")
    assert "ml.g7e.2xlarge is measured to reach 900 ($4.20 an hour)" in finding.fix


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("option", ["min_tokens_per_second", "max_price_per_hour"])
def test_an_invalid_limit_is_refused(option: str, limit: float) -> None:
    with raises_code("usage", UserError) as refused:
        plan("chat", CATALOG, **{option: limit})
    assert f"--{option.replace('_', '-')} {limit} " in refused.value.message


def test_a_drafter_that_makes_the_speed_more_expensive_has_a_warning() -> None:
    load: dict[str, Any] = {"concurrency": 32, "min_tokens_per_second": 1500}
    made = plan("chat+eagle3", MEASURED, **load)
    assert (made.instance_type, made.instance_count) == ("ml.g7e.2xlarge", 3)
    finding = finding_of(made, "speculation-costs-more")
    assert finding.level == "warning"
    assert finding.message == (
        "Chat alone reaches that speed for less: 1,600 tokens/s, measured, on ml.g7e.2xlarge at "
        "$4.20 an hour; with EAGLE-3 head for Chat it needs 3 x ml.g7e.2xlarge"
    )
    alone = plan("chat+eagle3", MEASURED, speculation=False, **load)
    assert (alone.instance_count, alone.price_per_hour_usd) == (1, 4.2)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 8, "min_tokens_per_second": 700},
        {"concurrency": 8, "min_tokens_per_second": 3000},
        {"concurrency": 32, "min_tokens_per_second": 900},
        {"concurrency": 32},
    ],
    ids=["one is needed either way", "faster than alone", "one is enough", "no required speed"],
)
def test_a_drafter_that_costs_no_more_has_no_warning(options: dict[str, Any]) -> None:
    for pair in ("chat+p-eagle", "chat+eagle3"):
        made = plan(pair, MEASURED, **options)
        assert "speculation-costs-more" not in codes(made), pair


def test_speculation_is_off_only_on_the_gpu_where_it_loses() -> None:
    made = plan(catalog=MEASURED, concurrency=32)
    by_type = {candidate.instance_type: candidate.k for candidate in made.alternatives}
    assert by_type["ml.g7e.2xlarge"] == 0
    assert by_type["ml.g5.12xlarge"] == 5
    assert made.speculation is not None, "the cheapest is another"
    assert "speculation-loses" not in codes(made)


def test_evidence_of_one_gpu_is_not_used_for_two() -> None:
    two = measured(run("GPU-sm_86", tensor_parallel_size=2))
    assert plan(catalog=two).speed is not None, "ml.g5.12xlarge takes two"
    one = measured(run("GPU-sm_86", tensor_parallel_size=1))
    assert plan(catalog=one).speed is None


def test_instances_with_equal_gpus_fit_equally() -> None:
    cheap = CATALOG.instances.instances[5]
    twin = cheap.model_copy(update={"type": "ml.g7e.4xlarge", "prices": (), "memory_gib": 999})
    table = CATALOG.instances.model_copy(update={"instances": (cheap, twin)})
    made = plan(catalog=CATALOG.model_copy(update={"instances": table}))
    first, second = made.alternatives
    assert first.max_concurrency == second.max_concurrency
    assert (first.instance_type, second.instance_type) == ("ml.g7e.2xlarge", "ml.g7e.4xlarge")
    assert second.price_per_hour_usd is None


def test_an_unknown_instance_type_is_refused_with_other_limits() -> None:
    with raises_code("not-found", NotFound) as refused:
        plan(instance_type="ml.g5.xlarg")
    assert "ml.g5.xlarge" in refused.value.fix


def test_without_a_fit_there_are_no_alternatives() -> None:
    huge = with_target(CHAT.model_copy(update={"weight_bytes": 10**13}))
    made = plan(catalog=huge, min_tokens_per_second=5, max_price_per_hour=5)
    assert made.alternatives == ()
    assert codes(made, "error") == ["instance-too-small"]
