"""Which instance: by price, by what is known of its speed, within the user's limits."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.errors import NotFound, UserError
from peagle.planning import Plan
from tests.unit.planning.small_catalog import CATALOG, CHAT, because, codes, plan, with_target
from tests.unit.planning.speeds import FAST, SLOW, measured, run

MEASURED = measured(run(FAST))


def types(made: Plan) -> list[str]:
    return [place.instance_type for place in made.alternatives]


def error_of(made: Plan) -> tuple[str, str, str]:
    (finding,) = [f for f in made.findings if f.level == "error"]
    return finding.code, finding.message, finding.fix


def test_the_three_cheapest_that_fit_are_shown_unpriced_ones_last() -> None:
    made = plan()
    assert types(made) == ["ml.g5.12xlarge", "ml.g7e.2xlarge", "ml.g6e.xlarge"]
    assert [place.price_per_hour_usd for place in made.alternatives] == [4.0, 4.2, None]
    assert made.instance_type == "ml.g5.12xlarge"
    first = made.alternatives[0]
    assert (first.tensor_parallel_size, first.k, first.instance_count) == (2, 5, 1)
    assert first.max_concurrency == made.fit.max_concurrency
    assert first.kv_cache_tokens == made.fit.kv_cache_tokens


def test_what_nobody_measured_is_unverified() -> None:
    made = plan()
    assert made.speed is None
    for place in made.alternatives:
        assert not place.verified
        assert (place.tokens_per_second, place.speed_source) == (None, None)
        assert place.usd_per_million_tokens is None


def test_each_place_has_the_k_and_speed_of_its_own_gpu() -> None:
    made = plan(concurrency=8, catalog=MEASURED)
    by_type = {place.instance_type: place for place in made.alternatives}
    fast = by_type["ml.g7e.2xlarge"]
    assert (fast.k, fast.tokens_per_second, fast.verified) == (3, 900, True)
    assert "measured on 1 x GPU-sm_120" in str(fast.speed_source)
    assert by_type["ml.g5.12xlarge"].k == 5
    assert made.instance_type == "ml.g5.12xlarge", "without a speed asked for, price alone decides"


def test_money_for_a_million_tokens_is_price_over_speed() -> None:
    made = plan(instance_type="ml.g7e.2xlarge", catalog=MEASURED)
    assert made.speed is not None
    assert made.speed.usd_per_million_tokens == pytest.approx(4.2 / (900 * 3600) * 1e6, abs=1e-4)
    assert made.speed.alone_tokens_per_second == 500


def test_the_users_instance_is_kept_and_the_best_are_shown_all_the_same() -> None:
    made = plan(instance_type="ml.p6-b200.48xlarge")
    assert made.instance_type == "ml.p6-b200.48xlarge"
    assert because(made, "instance_type") is None
    assert types(made) == types(plan())


def test_with_a_speed_asked_for_what_is_measured_to_make_it_comes_first() -> None:
    made = plan(catalog=MEASURED, min_tokens_per_second=900)
    assert types(made) == ["ml.g7e.2xlarge", "ml.g5.12xlarge", "ml.g6e.xlarge"]
    assert [place.verified for place in made.alternatives] == [True, False, False]
    assert codes(made, "error") == []
    assert "speed-unverified" not in codes(made)
    assert because(made, "instance_type") == (
        "the only type that fits, measured to reach 900 tokens/s; at $4.20 an hour"
    )


def test_of_those_that_make_it_the_cheapest_is_taken() -> None:
    catalog = measured(run(SLOW), run(FAST))
    made = plan(catalog=catalog, region="eu-west-1", min_tokens_per_second=900)
    assert made.instance_type == "ml.g6e.xlarge", "$3.00, and the other $4.20"
    slower = measured(run(SLOW, times=0.1), run(FAST))
    made = plan(catalog=slower, region="eu-west-1", min_tokens_per_second=900, instance_count=1)
    assert made.instance_type == "ml.g7e.2xlarge"
    assert "ml.g6e.xlarge" not in types(made), "known to be too slow"


def test_without_any_evidence_the_ranking_stays_and_a_warning_says_so() -> None:
    made = plan(min_tokens_per_second=900)
    assert types(made) == types(plan())
    (finding,) = [f for f in made.findings if f.code == "speed-unverified"]
    assert finding.level == "warning"
    assert "this pair is not measured on 2 x GPU-sm_86" in finding.message
    assert codes(made, "error") == []


def test_an_unmeasured_load_is_told_with_the_measured_ones() -> None:
    made = plan(
        catalog=MEASURED,
        instance_type="ml.g7e.2xlarge",
        instance_count=1,
        concurrency=64,
        min_tokens_per_second=900,
    )
    (finding,) = [f for f in made.findings if f.code == "speed-unverified"]
    assert "measured with 1 to 32 requests at a time, not with 64" in finding.message


def test_an_unmeasured_instance_of_the_users_is_told_what_is_measured() -> None:
    made = plan(catalog=MEASURED, instance_type="ml.p6-b200.48xlarge", min_tokens_per_second=900)
    (finding,) = [f for f in made.findings if f.code == "speed-unverified"]
    assert "ml.g7e.2xlarge is measured to reach 900 ($4.20 an hour)" in finding.fix


def test_too_slow_is_an_error_with_the_best_known_and_what_would_help() -> None:
    made = plan(catalog=MEASURED, min_tokens_per_second=5000, concurrency=8)
    code, message, fix = error_of(made)
    assert code == "speed-below-wanted"
    assert "the fastest, 8 x ml.g7e.2xlarge, reaches 1,920 tokens/s" in message, "8 streams of 240"
    assert "--concurrency 128 on 4 x ml.g7e.2xlarge" in fix, "4 times 1,500 with K=3"
    assert types(made)[0] == "ml.g7e.2xlarge", "the best that is known is what is shown"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 7, "min_tokens_per_second": 850}, "leave --k out: K=3"),
        ({"min_tokens_per_second": 950, "instance_count": 1}, "use --instance-count 2"),
        ({"min_tokens_per_second": 1000, "instance_count": 1}, "--concurrency 32"),
        ({"min_tokens_per_second": 1500, "instance_count": 3}, "use --instance-count 6"),
    ],
)
def test_what_would_help_is_known_to_help(options: dict[str, Any], words: str) -> None:
    settings: dict[str, Any] = {"instance_count": 1, "instance_type": "ml.g7e.2xlarge", **options}
    made = plan("chat+p-eagle", catalog=MEASURED, **settings)
    code, _, fix = error_of(made)
    assert code == "speed-below-wanted"
    assert words in fix


def test_what_helps_does_help() -> None:
    for options in ({"instance_count": 2}, {"instance_count": 1, "concurrency": 32}):
        made = plan(
            "chat+p-eagle",
            catalog=MEASURED,
            instance_type="ml.g7e.2xlarge",
            min_tokens_per_second=950,
            **options,
        )
        assert codes(made, "error") == []


def test_one_instance_too_few_is_made_good_and_told() -> None:
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


def test_nothing_below_the_limit_is_an_error_with_the_cheapest() -> None:
    code, message, fix = error_of(plan(max_price_per_hour=3.5))
    assert code == "price-above-limit"
    assert message == "ml.g5.12xlarge costs $4.00 an hour; the limit is $3.50"
    assert "--max-price-per-hour 4" in fix


@pytest.mark.parametrize("limit", [3, 1_000_000])
def test_what_has_no_price_is_below_no_limit(limit: float) -> None:
    made = plan(max_price_per_hour=limit, instance_type="ml.p6-b200.48xlarge")
    code, message, _ = error_of(made)
    assert code == "price-above-limit"
    assert "price of ml.p6-b200.48xlarge is unknown" in message
    assert "ml.p6-b200.48xlarge" not in types(made)


def test_what_is_fast_enough_and_too_dear_is_named() -> None:
    made = plan(catalog=MEASURED, min_tokens_per_second=900, max_price_per_hour=4)
    assert made.instance_type == "ml.g5.12xlarge"
    (finding,) = [f for f in made.findings if f.code == "speed-unverified"]
    assert "ml.g7e.2xlarge is measured to reach 900 ($4.20 an hour)" in finding.fix


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("option", ["min_tokens_per_second", "max_price_per_hour"])
def test_a_limit_that_is_none_is_refused(option: str, limit: float) -> None:
    with pytest.raises(UserError, match="is not a positive number"):
        plan("chat", CATALOG, **{option: limit})


def test_a_drafter_with_which_the_speed_costs_more_is_told() -> None:
    asked: dict[str, Any] = {"concurrency": 32, "min_tokens_per_second": 1500}
    made = plan("chat+eagle3", MEASURED, **asked)
    assert (made.instance_type, made.instance_count) == ("ml.g7e.2xlarge", 3)
    (finding,) = [f for f in made.findings if f.code == "speculation-costs-more"]
    assert finding.level == "warning"
    assert finding.message == (
        "Chat alone reaches that speed for less: 1,600 tokens/s, measured, on ml.g7e.2xlarge at "
        "$4.20 an hour; with EAGLE-3 head for Chat it needs 3 x ml.g7e.2xlarge"
    )
    alone = plan("chat+eagle3", MEASURED, speculation=False, **asked)
    assert (alone.instance_count, alone.price_per_hour_usd) == (1, 4.2)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 8, "min_tokens_per_second": 700},
        {"concurrency": 8, "min_tokens_per_second": 3000},
        {"concurrency": 32, "min_tokens_per_second": 900},
        {"concurrency": 32},
    ],
    ids=["one is needed either way", "faster than alone", "one is enough", "no speed is asked for"],
)
def test_a_drafter_with_which_it_costs_no_more_is_not(options: dict[str, Any]) -> None:
    for pair in ("chat+p-eagle", "chat+eagle3"):
        made = plan(pair, MEASURED, **options)
        assert "speculation-costs-more" not in codes(made), pair


def test_where_speculation_loses_on_one_gpu_only_that_place_goes_without() -> None:
    made = plan(catalog=MEASURED, concurrency=32)
    by_type = {place.instance_type: place.k for place in made.alternatives}
    assert by_type["ml.g7e.2xlarge"] == 0
    assert by_type["ml.g5.12xlarge"] == 5
    assert made.speculation is not None, "the cheapest is another"
    assert "speculation-loses" not in codes(made)


def test_evidence_of_one_gpu_says_nothing_of_two() -> None:
    two = measured(run("GPU-sm_86", tensor_parallel_size=2))
    assert plan(catalog=two).speed is not None, "ml.g5.12xlarge takes two"
    one = measured(run("GPU-sm_86", tensor_parallel_size=1))
    assert plan(catalog=one).speed is None


def test_instances_that_are_alike_in_all_but_price_fit_alike() -> None:
    cheap = CATALOG.instances.instances[5]
    twin = cheap.model_copy(update={"type": "ml.g7e.4xlarge", "prices": (), "memory_gib": 999})
    table = CATALOG.instances.model_copy(update={"instances": (cheap, twin)})
    made = plan(catalog=CATALOG.model_copy(update={"instances": table}))
    first, second = made.alternatives
    assert first.max_concurrency == second.max_concurrency
    assert (first.instance_type, second.instance_type) == ("ml.g7e.2xlarge", "ml.g7e.4xlarge")
    assert second.price_per_hour_usd is None


def test_an_unknown_instance_type_is_still_told() -> None:
    with pytest.raises(NotFound, match=r"ml\.g5\.xlarge"):
        plan(instance_type="ml.g5.xlarg")


def test_when_nothing_fits_there_is_no_alternative() -> None:
    huge = with_target(CHAT.model_copy(update={"weight_bytes": 10**13}))
    made = plan(catalog=huge, min_tokens_per_second=5, max_price_per_hour=5)
    assert made.alternatives == ()
    assert codes(made, "error") == ["instance-too-small"]
