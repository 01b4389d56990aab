"""The memory fit of plans: terms, KV cache, and the choice of the instance."""

from __future__ import annotations

import math
from typing import Any

import pytest

from peagle.catalog.tables import Instance
from peagle.errors import NotFound
from peagle.fit.estimate import GIB, missing_bytes
from peagle.planning.engines import Load
from tests.support import raises_code
from tests.unit.planning.small_catalog import (
    CATALOG,
    CHAT,
    INSTANCES,
    P_EAGLE,
    because,
    codes,
    finding_of,
    plan,
    with_target,
)


def test_the_terms_add_up_to_the_gpu() -> None:
    fit = plan(instance_type="ml.g7e.2xlarge").fit
    without_cache = sum(gib for name, gib in fit.terms.items() if not name.startswith("cache_"))
    assert fit.gpu_memory_gib == 96
    assert without_cache + fit.kv_cache_gib == pytest.approx(96, abs=0.01)
    # The allocator rounds each tensor up.
    assert fit.weights_gib == pytest.approx(16e9 / GIB, rel=0.01)
    assert fit.drafter_gib == pytest.approx(1e9 / GIB, rel=0.03)
    visible = 96 - fit.terms["kept_by_driver"]
    assert 93 < visible < 96
    assert fit.terms["kept_free"] == pytest.approx(visible / 10, abs=0.001)
    # 16 + 4 layers, 8 heads of 64, bfloat16, key and value, 4096 tokens; the drafter's as full.
    assert fit.terms["cache_of_one_full_request"] == pytest.approx(
        20 * 2 * 8 * 64 * 2 * 4096 / GIB, abs=0.001
    )
    assert fit.max_concurrency == pytest.approx(
        fit.kv_cache_gib / fit.terms["cache_of_one_full_request"], rel=0.01
    )
    assert fit.kv_cache_tokens == pytest.approx(fit.max_concurrency * 4096, rel=0.001)


def test_a_cache_in_fp8_holds_twice_as_much() -> None:
    on_blackwell = plan(instance_type="ml.p6-b200.48xlarge")
    assert "--kv-cache-dtype" in on_blackwell.engine_arguments
    assert because(on_blackwell, "--kv-cache-dtype") == "Blackwell"
    other = plan(instance_type="ml.g7e.2xlarge")
    assert "--kv-cache-dtype" not in other.engine_arguments
    one = "cache_of_one_full_request"
    assert 2 * on_blackwell.fit.terms[one] == pytest.approx(other.fit.terms[one], abs=0.002)


def test_settings_of_other_versions_are_left_out() -> None:
    assert "--old-flag" in plan(vllm="0.19.0").engine_arguments
    assert "--old-flag" not in plan().engine_arguments


def test_the_cheapest_priced_instance_that_fits_is_chosen() -> None:
    # g5.xlarge ($1) is too small, g4dn.xlarge ($0.50) too old, g6e.xlarge priced elsewhere.
    made = plan()
    assert made.instance_type == "ml.g5.12xlarge"
    assert because(made, "instance_type") == (
        "the cheapest of 4 types that fit for this load; at $4.00 an hour"
    )
    assert made.fit.tensor_parallel_size == 2
    assert "fewest of the 4 GPUs" in str(because(made, "tensor_parallel_size"))
    assert plan(region="eu-west-1").instance_type == "ml.g6e.xlarge"


def test_an_unpriced_instance_is_chosen_only_when_no_priced_one_fits() -> None:
    large = with_target(CHAT.model_copy(update={"weight_bytes": 150_000_000_000}))
    made = plan(catalog=large)
    assert made.instance_type == "ml.p6-b200.48xlarge"
    assert made.price_per_hour_usd is None
    assert made.price_date is None
    assert "price-unknown" in codes(made, "warning")


def test_an_instance_that_is_too_small_is_an_error_with_alternatives() -> None:
    made = plan(instance_type="ml.g5.xlarge")
    assert not made.fit.fits
    finding = finding_of(made, "error")
    assert finding.code == "instance-too-small"
    what, _, why = finding.message.partition(": ")
    assert what == "the pair does not fit on ml.g5.xlarge (1 x GPU-sm_86, 16.0 GiB each)"
    needed = f"one request of 4,096 tokens needs {missing_gib():.2f} GiB more GPU memory"
    assert why == needed
    assert "use --instance-type ml.g5.12xlarge, the best for this load at $4.00" in finding.fix


def small_instance() -> Instance:
    return next(i for i in INSTANCES.instances if i.type == "ml.g5.xlarge")


def missing_gib() -> float:
    """GiB that ml.g5.xlarge lacks for the pair."""
    load = Load(CHAT, "0.28.0", 4096, 8, CATALOG)
    return missing_bytes(load.engine(small_instance(), 1, P_EAGLE, 5).case) / GIB


def test_the_missing_memory_makes_it_fit() -> None:
    fit = plan(instance_type="ml.g5.xlarge").fit
    load = Load(CHAT, "0.28.0", 4096, 8, CATALOG)
    small = small_instance()
    # What is kept free and what the driver keeps grow with the memory.
    visible = 1 - fit.terms["kept_by_driver"] / fit.gpu_memory_gib
    needed = int((small.gpu_memory_mib / 1024 + missing_gib() / 0.9 / visible) * 1024)
    for mib, fits in ((needed + 12, True), (needed - 12, False)):
        instance = small.model_copy(update={"gpu_memory_mib": mib})
        assert load.engine(instance, 1, P_EAGLE, 5).fit.fits == fits


def test_a_pair_that_fits_on_no_instance_is_an_error() -> None:
    huge = with_target(CHAT.model_copy(update={"weight_bytes": 10**13}))
    made = plan(catalog=huge)
    assert codes(made, "error") == ["instance-too-small"]
    assert made.instance_type == "ml.p6-b200.48xlarge"


def test_an_old_gpu_is_an_error() -> None:
    made = plan(instance_type="ml.g4dn.xlarge")
    assert codes(made, "error") == ["gpu-too-old"]
    in_float32 = with_target(CHAT.model_copy(update={"dtype": "float16"}))
    assert codes(plan(catalog=in_float32, instance_type="ml.g4dn.xlarge"), "error") == []


def test_an_unknown_instance_type_suggests_the_nearest() -> None:
    with raises_code("instance-unknown", NotFound) as refused:
        plan(instance_type="ml.g5.xlarg")
    assert "ml.g5.xlarge" in refused.value.fix


def test_gpus_are_a_power_of_two_that_divides_the_heads() -> None:
    shape = CHAT.architecture.model_copy(update={"query_heads": 18})
    odd = CHAT.model_copy(update={"architecture": shape, "weight_bytes": 24_000_000_000})
    made = plan(catalog=with_target(odd), instance_type="ml.g5.12xlarge")
    assert made.fit.tensor_parallel_size == 2, "18 heads do not divide by 4"
    assert because(made, "tensor_parallel_size") is not None


def test_idle_gpus_are_a_note() -> None:
    assert "gpus-idle" in codes(plan(instance_type="ml.p6-b200.48xlarge", copies=1), "note")
    assert "gpus-idle" not in codes(plan(instance_type="ml.g7e.2xlarge", copies=1))
    assert "gpus-idle" in codes(plan(copies=1), "note"), "the cheapest, with idle GPUs"
    assert "gpus-idle" not in codes(plan(instance_type="ml.p6-b200.48xlarge"))


def test_a_cache_for_part_of_the_load_is_a_note_with_the_length_that_fits() -> None:
    made = plan(instance_type="ml.g7e.2xlarge", concurrency=500)
    finding = finding_of(made, "cache-below-concurrency")
    held = made.fit.max_concurrency
    assert 125 < held < 500
    assert finding.level == "note"
    assert (
        f"the KV cache holds {held:.1f} requests of full length (4,096 tokens)" in finding.message
    )
    assert "of the planned 500 requests" in finding.message
    assert f"about {made.fit.kv_cache_tokens // 500:,} tokens or less" in finding.fix


def test_a_load_above_one_instance_gets_more_of_them() -> None:
    made = plan(instance_type="ml.g7e.2xlarge", concurrency=2000)
    held = made.fit.max_concurrency / (2304 / 4096)  # of requests of the usual size
    assert made.instance_count == math.ceil(2000 / math.floor(held)) > 1
    assert "cache-below-concurrency" not in codes(made, "warning")
    finding = finding_of(made, "several-instances")
    assert f"enough for {math.floor(held):,} requests, not for 2,000" in finding.message
    assert f"enough for {math.floor(held):,} requests" in str(because(made, "instance_count"))


@pytest.mark.thorough
def test_a_cache_far_below_the_load_is_a_warning_with_fixes_that_work() -> None:
    chosen: dict[str, Any] = {"instance_type": "ml.g5.12xlarge", "instance_count": 1}
    made = plan(**chosen, concurrency=1000)
    finding = finding_of(made, "cache-below-concurrency")
    assert finding.level == "warning"
    assert made.fit.fits
    use, more, fewer, *_ = finding.fix.split("; or ")
    other = plan(instance_type=use.split()[2].rstrip(","), instance_count=1, concurrency=1000)
    several = plan(**chosen | {"instance_count": int(more.split()[-1])}, concurrency=1000)
    less = plan(**chosen, concurrency=int(fewer.split()[-1]))
    for changed in (other, several, less):
        assert "cache-below-concurrency" not in codes(changed, "warning")
        assert changed.fit.fits


def test_requests_that_are_longer_need_a_larger_cache() -> None:
    load: dict[str, Any] = {"instance_type": "ml.g7e.2xlarge", "concurrency": 500}
    short, long = (
        plan("chat+p-eagle", **load, prompt_tokens=n, output_tokens=96) for n in (928, 4000)
    )
    assert (short.instance_count, long.instance_count) == (1, 2)


def test_more_gpus_are_used_where_one_holds_too_little_of_the_load() -> None:
    one, more = (
        plan(
            instance_type="ml.p6-b200.48xlarge",
            instance_count=1,
            copies=1,
            concurrency=load,
            speculation=False,
        ).fit
        for load in (8, 9000)
    )
    assert one.tensor_parallel_size == 1
    assert more.tensor_parallel_size > 1
    assert more.max_concurrency > one.max_concurrency


@pytest.mark.thorough
def test_too_many_drafts_for_a_step_suggest_values_that_fit() -> None:
    made = plan(concurrency=100_000)
    finding = finding_of(made, "error")
    assert finding.code == "instance-too-small"
    assert "100,000 concurrent requests need one token each per step" in finding.message
    assert "0.0 GiB" not in finding.message
    assert "--max-model-len" not in finding.fix, "which would not help"
    fewer = int(finding.fix.split("--concurrency to ")[1].split()[0])
    assert plan(concurrency=fewer).fit.fits
    assert not plan(concurrency=fewer + 1, instance_type=made.instance_type).fit.fits


def test_weights_larger_than_the_hosts_memory_are_a_note() -> None:
    large = with_target(CHAT.model_copy(update={"weight_bytes": 17 * GIB}))
    assert "host-memory-below-weights" in codes(
        plan(catalog=large, instance_type="ml.g7e.2xlarge"), "note"
    )
    assert codes(plan(instance_type="ml.g7e.2xlarge"), "note") == ["image-by-tag"]


def test_a_drafter_of_unknown_size_is_estimated_from_its_layers() -> None:
    unknown = P_EAGLE.model_copy(update={"weight_bytes": None})
    made = plan(catalog=with_target(CHAT.model_copy(update={"drafters": (unknown,)})))
    # Two matrices of 32000 tokens, fc, and per layer q, k, v, o and three products of 4 x 1024.
    layer = 1024 * (1024 + 2 * 512 + 1024) + 3 * 4 * 1024**2
    parameters = 2 * 32000 * 1024 + 3 * 1024**2 + 4 * layer + 1024 * 2048
    fit = plan(instance_type="ml.g7e.2xlarge").fit
    assert made.fit.drafter_gib * made.fit.tensor_parallel_size == pytest.approx(
        2 * parameters / GIB, abs=0.015
    )
    assert fit.drafter_gib > 0


def test_a_price_of_another_region_has_a_finding() -> None:
    made = plan(instance_type="ml.g7e.2xlarge", instance_count=2)
    assert (made.price_per_hour_usd, made.price_date) == (8.4, "2026-07-01")
    assert codes(made) == ["image-by-tag"]
    elsewhere = plan(instance_type="ml.g7e.2xlarge", region="eu-west-1")
    assert elsewhere.price_per_hour_usd == 4.2
    assert "price-of-another-region" in codes(elsewhere, "warning")
    unknown = plan(instance_type="ml.g6e.xlarge", region="us-east-1")
    assert unknown.price_per_hour_usd is None
    assert "price-unknown" in codes(unknown, "warning")


def test_planning_does_not_change_the_catalogue() -> None:
    before = repr(CATALOG)
    plan("secret", drafter="s3://bucket/head", k=3)
    assert repr(CATALOG) == before
