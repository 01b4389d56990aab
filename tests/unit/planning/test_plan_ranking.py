"""The choice of the instance, and of K: by price and measured speed, within the user's limits."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Instance, Scarcity
from peagle.planning import Plan
from peagle.workload import Slo
from tests.unit.planning.rows import Expected, check_plan, read
from tests.unit.planning.small_catalog import CATALOG, CHAT, TODAY, codes, finding_of, plan
from tests.unit.planning.small_catalog import with_target as _with_target
from tests.unit.planning.speeds import FAST, SLOW, measured, row, run

MEASURED = measured(run(FAST))
G7E: dict[str, Any] = {"instance_type": "ml.g7e.2xlarge"}
B200: dict[str, Any] = {"instance_type": "ml.p6-b200.48xlarge"}
ON_FAST: dict[str, Any] = {**G7E, "catalog": MEASURED}
HUGE = _with_target(CHAT.model_copy(update={"weight_bytes": 10**13}))


def types(made: Plan) -> list[str]:
    names: list[str] = read(made, "types")
    return names


def with_instances(*instances: Instance) -> Catalog:
    table = CATALOG.instances.model_copy(update={"instances": instances})
    return replace(CATALOG, instances=table)


def only(*gpus: str) -> Catalog:
    """The small catalogue with the types that have one of these GPUs, priced in us-east-1."""
    here = {"region": "us-east-1"}
    return with_instances(
        *(
            instance.model_copy(
                update={"prices": tuple(p.model_copy(update=here) for p in instance.prices)}
            )
            for instance in CATALOG.instances.instances
            if instance.gpu in gpus
        )
    )


PLANS: dict[str, tuple[str, dict[str, Any], Expected]] = {
    "the three cheapest are shown, unpriced ones last": ("chat", {}, {
        "instance_type": "ml.g5.12xlarge", "basis": "unknown", "speed": None,
        "types": ["ml.g5.12xlarge", "ml.g7e.2xlarge", "ml.g6e.xlarge"]}),
    "the user's type is kept": ("chat", B200, {
        "instance_type": "ml.p6-b200.48xlarge", "because instance_type": None,
        "types": ["ml.g5.12xlarge", "ml.g7e.2xlarge", "ml.g6e.xlarge"]}),
    "only types that reach a speed": (
        "chat", {"catalog": MEASURED, "min_tokens_per_second": 900}, {
            "types": ["ml.g7e.2xlarge"], "errors": [], "lacks": {"speed-unverified"},
            "because instance_type": "only-instance", "values instance_type": {
                "types": 1, "holds_load": True, "required": True, "meets": True,
                "usd_per_hour": 4.2}}),
    "no evidence": ("chat", {"min_tokens_per_second": 900}, {
        "errors": [], "has": {"speed-unverified"}, "message speed-unverified":
        "the speed of ml.g5.12xlarge is unknown, so it may not reach 900",
        "types": ["ml.g5.12xlarge", "ml.g7e.2xlarge", "ml.g6e.xlarge"]}),
    "an unmeasured type": (
        "chat", {**B200, "catalog": MEASURED, "min_tokens_per_second": 900}, {
            "fix speed-unverified":
            "use --instance-type ml.g7e.2xlarge at $4.20 an hour (900 tokens/s"}),
    "a missed speed": ("chat", {**ON_FAST, "min_tokens_per_second": 5000}, {
        "errors": ["speed-below-minimum"],
        "message error": "8 x ml.g7e.2xlarge does not reach 5,000 tokens/s: 1,920",
        "fix error": "require less"}),
    "times decide": ("chat", {"catalog": MEASURED, "slo": Slo(ttft=0.2)}, {
        "instance_type": "ml.g7e.2xlarge", "errors": [], "slo": Slo(ttft=0.2)}),
    "missed times": ("chat", {**ON_FAST, "slo": Slo(ttft=0.05)}, {
        "errors": ["speed-below-minimum"], "message error": "does not reach ttft=0.05"}),
    # Prices
    "the price limit": ("chat", {"max_price_per_hour": 4.0}, {"types": ["ml.g5.12xlarge"]}),
    "it is that of all instances": ("chat", {"max_price_per_hour": 7.9, "instance_count": 2}, {
        "errors": ["price-above-limit"],
        "message error": "2 x ml.g5.12xlarge costs $8.00 an hour; the limit is $7.90"}),
    "none is below it": ("chat", {"max_price_per_hour": 3.5}, {
        "errors": ["price-above-limit"], "fix error": "--max-price-per-hour 4.00",
        "message error": "ml.g5.12xlarge costs $4.00 an hour; the limit is $3.50"}),
    "an unknown price is above it": ("chat", {**B200, "max_price_per_hour": 3}, {
        "errors": ["price-above-limit"], "message error": "price of ml.p6-b200.48xlarge is unk"}),
    "however high": ("chat", {**B200, "max_price_per_hour": 10**6}, {
        "errors": ["price-above-limit"], "types": ["ml.g5.12xlarge", "ml.g7e.2xlarge"]}),
    "a fast type above it is no fix": (
        "chat", {"catalog": MEASURED, "min_tokens_per_second": 900, "max_price_per_hour": 4}, {
            "instance_type": "ml.g5.12xlarge", "has": {"speed-unverified"}}),
    "of this region": ("chat", {**G7E, "instance_count": 2}, {
        "price_per_hour_usd": 8.4, "price_date": "2026-07-01", "codes": ["image-by-tag"]}),
    "of another region": ("chat", {**G7E, "region": "eu-west-1"}, {
        "price_per_hour_usd": 4.2, "has": {"price-of-another-region"}}),
    "of another region, not used": (
        "chat", {"instance_type": "ml.g6e.xlarge", "region": "us-east-1"}, {
            "price_per_hour_usd": None, "warnings": ["price-unknown"]}),
    "is one finding with a limit, too": (
        "chat", {"instance_type": "ml.g6e.xlarge", "max_price_per_hour": 5.0}, {
            "errors": ["price-above-limit"], "lacks": {"price-unknown"}}),
    "without a fit": ("chat", {
        "catalog": HUGE, "min_tokens_per_second": 5, "max_price_per_hour": 5}, {
            "types": [], "errors": ["instance-too-small"]}),
    # K and speculation
    "the fastest K for one request": ("chat", {**ON_FAST, "concurrency": 1}, {
        "k": 7, "speed": 240, "because k": "fastest-k", "values k": {
            "basis": "measured", "tokens_per_second": 240, "requests": 1}}),
    "the fastest K for eight": ("chat", {**ON_FAST, "concurrency": 8}, {
        "k": 3, "speed": 900, "because k": "fastest-k", "values k": {
            "basis": "measured", "tokens_per_second": 900, "others": {"7": 800.0}}}),
    "interpolated": ("chat", {**ON_FAST, "concurrency": 20, "speculation": False}, {
        "speed": 1078.6}),  # on the curve from 500 at 8 to 1600 at 32
    "above the measured loads": ("chat", {**ON_FAST, "concurrency": 33}, {
        "basis": "unknown", "k": 5}),
    "far above": ("chat", {**ON_FAST, "concurrency": 1000}, {"basis": "unknown", "k": 5}),
    "below the measured loads": ("chat", {
        **G7E, "concurrency": 7,
        "catalog": measured(run(speeds=tuple(r for r in run().speeds if r.concurrency >= 8)))},
        {"basis": "unknown"}),
    "speculation that loses": ("chat", {**ON_FAST, "concurrency": 32}, {
        "speculation": None, "drafter": None, "pair": "acme/chat", "speed": 1600,
        "argument speculative-config": None, "fit.drafter_gib": 0, "name": "peagle-chat",
        "because k": None, "because speculation": "cost-without-drafter",
        "values speculation": {"other_drafter": "p-eagle", "usd_per_million_tokens": 0.7292,
                               "other_usd_per_million_tokens": 0.7778}}),
    "but stays where the drafter is named": (
        "chat+p-eagle", {**ON_FAST, "concurrency": 32}, {
            "k": 3, "warnings": ["speculation-loses"],
            "fix speculation-loses": "--no-speculation"}),
    "or by an option": ("chat", {**ON_FAST, "concurrency": 32, "drafter": "p-eagle"}, {
        "k": 3, "has": {"speculation-loses"}}),
    "or K is": ("chat", {
        **G7E, "concurrency": 32, "k": 5,
        "catalog": measured(run(speeds=(*run().speeds, row("p-eagle", 5, 32, 1300))))}, {
            "k": 5, "has": {"speculation-loses"}}),
    "or without a baseline": ("chat", {
        **G7E, "catalog": measured(run(speeds=(row("p-eagle", 3, 8, 5),)))}, {
            "k": 3, "lacks": {"speculation-loses"}}),
    "a slower K of the user": ("chat", {**ON_FAST, "concurrency": 8, "k": 7}, {
        "k": 7, "speed": 800,
        "message k-below-fastest": "K=7 reaches 800 tokens/s with 8 requests at a time, K=3 900"}),
    "the fastest K of the user": ("chat", {**ON_FAST, "concurrency": 8, "k": 3}, {
        "lacks": {"k-below-fastest"}}),
    "an unmeasured K": ("chat", {**ON_FAST, "concurrency": 8, "k": 4}, {
        "k": 4, "basis": "unknown"}),
    "a measured K above training": ("chat", {**G7E, "catalog": measured(run(
        speeds=(row("p-eagle", 3, 8, 900), row("p-eagle", 9, 8, 9000))))}, {"k": 3}),
    "rows by the id of the weights": ("chat", {**G7E, "catalog": measured(run(
        speeds=(row("acme/chat-p-eagle", 4, 8, 900),)))}, {"k": 4}),
    "the user's own head": ("chat", {**ON_FAST, "drafter": "s3://bucket/head"}, {
        "basis": "unknown", "k": 5}),
    "another drafter wins": ("chat", {**G7E, "concurrency": 8, "catalog": measured(run(
        speeds=(*run().speeds, row("eagle3", 4, 8, 1900))))}, {
            "drafter.name": "eagle3", "k": 4, "name": "peagle-chat"}),
    "other GPUs": ("chat", {**G7E, "catalog": measured(run(gpu="GPU-sm_100"))}, {
        "basis": "unknown", "k": 5}),
    "more GPUs": ("chat", {**G7E, "catalog": measured(run(tensor_parallel_size=2))}, {
        "basis": "unknown", "k": 5}),
    "another target": ("chat", {**G7E, "catalog": replace(
        CATALOG, speeds={"acme/other": (run(target="acme/other"),)})}, {"basis": "unknown"}),
    "two GPUs on which two were measured": ("chat", {
        "catalog": measured(run("GPU-sm_86", tensor_parallel_size=2))}, {"basis": "measured"}),
    "two GPUs on which one was": ("chat", {
        "catalog": measured(run("GPU-sm_86", tensor_parallel_size=1))}, {"basis": "unknown"}),
    # Regions
    "a region by a price": ("chat", {}, {"lacks": {"instance-region-unknown"}}),
    "an unknown region": ("chat", {"region": "ap-east-1"}, {
        "has": {"instance-region-unknown"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str) -> None:
    pair, options, expected = PLANS[name]
    check_plan(plan(pair, **options), expected)


def test_alternatives_have_the_numbers_of_their_candidates() -> None:
    made = plan()
    first = made.alternatives[0]
    assert [row.price_per_hour_usd for row in made.alternatives] == [4.0, 4.2, None]
    assert (first.tensor_parallel_size, first.k, first.instance_count) == (2, 5, 1)
    assert first.max_concurrency == made.fit.max_concurrency
    assert first.kv_cache_tokens == made.fit.kv_cache_tokens
    for row_of in made.alternatives:
        assert (row_of.tokens_per_second, row_of.basis, row_of.verified) == (None, "unknown", False)
    planned = plan(concurrency=8, catalog=MEASURED)
    by_type = {row.instance_type: row for row in planned.alternatives}
    fast = by_type["ml.g7e.2xlarge"]
    assert (fast.k, fast.tokens_per_second, fast.verified) == (3, 900, True)
    assert fast.source.startswith("speed.json: GPU-sm_120, vLLM 0.28.0, 2,048 + 256 tokens")
    assert by_type["ml.g5.12xlarge"].k == 5
    assert planned.instance_type == "ml.g5.12xlarge", "not all speeds are known, so price decides"
    loses = {
        row.instance_type: row.k for row in plan(catalog=MEASURED, concurrency=32).alternatives
    }
    assert (loses["ml.g7e.2xlarge"], loses["ml.g5.12xlarge"]) == (0, 5)


@pytest.mark.parametrize(("slow", "fast", "chosen"), [
    (0.5, 1.0, "ml.g7e.2xlarge"),
    (0.5, 0.5, "ml.g6e.xlarge"),
    (0.5, 0.9, "ml.g7e.2xlarge"),
    (0.65, 1.0, "ml.g6e.xlarge"),  # a tenth per token: within the precision of estimates
])  # fmt: skip
def test_cost_per_token_decides_where_all_speeds_are_known(
    slow: float, fast: float, chosen: str
) -> None:
    """ml.g6e.xlarge costs $3.00 and ml.g7e.2xlarge $4.20 in a region that has both."""
    catalog = measured(run(SLOW, times=slow), run(FAST, times=fast), catalog=only(SLOW, FAST))
    check_plan(plan(catalog=catalog, concurrency=8), {
        "instance_type": chosen, "speed": 900 * (fast if "g7e" in chosen else slow),
        "because instance_type": "lowest-cost", "values instance_type": {"types": 2},
        "because speculation": "cost-with-drafter",
    } if slow == 0.5 else {"instance_type": chosen})  # fmt: skip


@pytest.mark.parametrize(("speed", "chosen"), [(920, "p-eagle"), (950, "eagle3")])
def test_another_drafter_must_be_faster_than_what_counts_as_equal(
    speed: float, chosen: str
) -> None:
    """The pair's own drafter reaches 900 tokens/s."""
    faster = {"output_tokens_per_second": speed, "low": speed - 30}
    rows = tuple(
        each.model_copy(update=faster)
        if (each.drafter, each.concurrency) == ("eagle3", 8)
        else each
        for each in run(FAST).speeds
    )
    made = plan(catalog=measured(run(FAST, speeds=rows), catalog=only(FAST)), concurrency=8)
    assert made.pair == f"acme/chat+acme/chat-{chosen}"


def test_more_instances_are_planned_for_a_required_speed() -> None:
    asked: dict[str, Any] = {"catalog": MEASURED, "min_tokens_per_second": 950, "concurrency": 8}
    made = plan(**asked)
    # Two with 4 requests each: between 180 at 1 and 900 at 8 with K=3, or 240 and 800 with K=7.
    check_plan(made, {
        "instance_type": "ml.g7e.2xlarge", "instance_count": 2, "price_per_hour_usd": 8.4,
        "speed": pytest.approx(2 * 535.5, abs=0.5), "has": {"several-instances"},
        "because instance_count": "fewer-too-slow"})  # fmt: skip
    assert made.speed is not None
    assert "2 times one instance with 4 requests at a time" in made.speed.source
    check_plan(plan(**asked, instance_count=2), {
        "speed": made.speed.tokens_per_second, "lacks": {"several-instances"}})  # fmt: skip


@pytest.mark.parametrize(("speed", "drafter"), [(510, None), (530, "p-eagle")])
def test_a_drafter_must_save_more_than_little(speed: float, drafter: str | None) -> None:
    rows = (row(None, 0, 8, 500), row("p-eagle", 3, 8, speed, low=speed - 20))
    made = plan(catalog=measured(run(speeds=rows)), **G7E)
    assert read(made, "drafter.name") == drafter


@pytest.mark.parametrize(("better", "worse"), [
    ({}, {"vllm": "0.26.0", "synthetic": False, "date": date(2026, 12, 1)}),
    ({"synthetic": False}, {"synthetic": True, "date": date(2026, 12, 1)}),
    ({"date": date(2026, 12, 1)}, {}),
], ids=["planned version", "trained head", "newest"])  # fmt: skip
def test_the_best_matching_run_is_used(better: dict[str, Any], worse: dict[str, Any]) -> None:
    for runs in ((run(times=2, **better), run(**worse)), (run(**worse), run(times=2, **better))):
        assert read(plan(catalog=measured(*runs), **G7E), "speed") == 1800


def test_only_rows_with_this_size_of_requests_are_used() -> None:
    rows = tuple(
        row("p-eagle", k, 8, speed, prompt_tokens=prompt)
        for prompt, k, speed in ((2048, 3, 900), (2048, 7, 800), (128, 3, 90), (128, 7, 5000))
    )
    on_fast: dict[str, Any] = {**G7E, "catalog": measured(run(speeds=rows))}
    check_plan(plan(**on_fast), {"k": 3})
    check_plan(plan(prompt_tokens=128, **on_fast), {"k": 7})
    check_plan(plan(prompt_tokens=1000, **on_fast), {"basis": "unknown"})


def changed(*names: str, **fields: Any) -> Catalog:
    """The small catalogue, with these fields of the named types, by default of all."""
    return with_instances(
        *(
            instance.model_copy(update=fields) if not names or instance.type in names else instance
            for instance in CATALOG.instances.instances
        )
    )


def test_types_that_the_region_does_not_have_are_not_proposed() -> None:
    elsewhere = changed("ml.g5.12xlarge", regions=("eu-west-1",), prices=())
    assert "ml.g5.12xlarge" not in types(plan(catalog=elsewhere))
    here = changed("ml.g5.12xlarge", regions=("us-east-1",), prices=())
    made = plan(catalog=here, region="eu-west-1", instance_type="ml.g5.12xlarge")
    check_plan(made, {"errors": ["instance-not-in-region"], "fix error": "--region us-east-1"})
    assert "ml.g5.12xlarge" not in types(made) != []
    nowhere = plan(catalog=changed(regions=("us-west-2",), prices=()), region="us-east-1")
    assert codes(nowhere, "error") == ["instance-not-in-region"]


def test_a_scarce_type_is_a_warning_that_names_others() -> None:
    first = plan().instance_type
    scarce = Scarcity(note="was never free", checked=TODAY, source="a test")
    finding = finding_of(plan(catalog=changed(first, scarce=scarce)), "instance-scarce")
    assert finding.level == "warning"
    assert "was never free (a test)" in finding.message
    assert "--fallback-instance-types ml.g7e.2xlarge," in finding.fix
    assert first not in finding.fix
