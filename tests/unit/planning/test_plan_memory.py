"""The memory fit: the cache as vLLM allots it, the terms, the instance that follows from it."""

from __future__ import annotations

import pytest

from tests.unit.planning.small_catalog import (
    CATALOG,
    CHAT,
    INSTANCES,
    P_EAGLE,
    because,
    codes,
    plan,
    with_target,
)
from toolkit.errors import NotFound
from toolkit.planning.memory import Workload, memory_fit, missing_gib

GIB = 1024**3


def test_the_terms_are_the_whole_gpu() -> None:
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
    assert because(made, "instance_type") == "the cheapest of 4 types that fit, at $4.00 an hour"
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


def test_an_instance_that_is_too_small_is_an_error_with_the_way_out() -> None:
    made = plan(instance_type="ml.g5.xlarge")
    assert not made.fit.fits
    (finding,) = [f for f in made.findings if f.level == "error"]
    assert finding.code == "instance-too-small"
    assert finding.message.startswith("ml.g5.xlarge (1 x GPU-sm_86, 16.0 GiB each) lacks ")
    missing = float(finding.message.split("lacks ")[1].split(" GiB")[0])
    assert missing == pytest.approx(missing_gib(made.fit), abs=0.05)
    assert "ml.g6e.xlarge, the smallest that fits" in finding.fix
    assert "ml.g5.12xlarge, the cheapest at $4.00 an hour" in finding.fix


def test_what_is_missing_is_what_makes_it_fit() -> None:
    fit = plan(instance_type="ml.g5.xlarge").fit
    work = Workload(CHAT, P_EAGLE, 5, "0.28.0", 4096, 8)
    (small,) = [i for i in INSTANCES.instances if i.type == "ml.g5.xlarge"]
    # What is kept free and what the driver keeps grow with the memory.
    visible = 1 - fit.terms["kept_by_driver"] / fit.gpu_memory_gib
    needed = int((small.gpu_memory_mib / 1024 + missing_gib(fit) / 0.9 / visible) * 1024)
    assert memory_fit(work, {}, small.model_copy(update={"gpu_memory_mib": needed + 12}), 1).fits
    assert not memory_fit(
        work, {}, small.model_copy(update={"gpu_memory_mib": needed - 12}), 1
    ).fits


def test_what_no_instance_holds_is_an_error() -> None:
    huge = with_target(CHAT.model_copy(update={"weight_bytes": 10**13}))
    made = plan(catalog=huge)
    assert codes(made, "error") == ["instance-too-small"]
    assert made.instance_type == "ml.p6-b200.48xlarge"


def test_an_old_gpu_is_an_error() -> None:
    made = plan(instance_type="ml.g4dn.xlarge")
    assert codes(made, "error") == ["gpu-too-old"]
    in_float32 = with_target(CHAT.model_copy(update={"dtype": "float16"}))
    assert codes(plan(catalog=in_float32, instance_type="ml.g4dn.xlarge"), "error") == []


def test_an_unknown_instance_type_is_told_with_the_nearest() -> None:
    with pytest.raises(NotFound, match=r"ml\.g5\.xlarge"):
        plan(instance_type="ml.g5.xlarg")


def test_gpus_are_a_power_of_two_that_divides_the_heads() -> None:
    shape = CHAT.architecture.model_copy(update={"query_heads": 18})
    odd = CHAT.model_copy(update={"architecture": shape, "weight_bytes": 24_000_000_000})
    made = plan(catalog=with_target(odd), instance_type="ml.g5.12xlarge")
    assert made.fit.tensor_parallel_size == 2, "18 heads do not divide by 4"
    assert because(made, "tensor_parallel_size") is not None


def test_gpus_that_nobody_needs_are_a_note() -> None:
    assert "gpus-idle" in codes(plan(instance_type="ml.p6-b200.48xlarge"), "note")
    assert "gpus-idle" not in codes(plan(instance_type="ml.g7e.2xlarge"))


def test_a_load_beyond_the_cache_is_a_note() -> None:
    made = plan(instance_type="ml.g7e.2xlarge", concurrency=1000)
    assert codes(made, "note") == ["cache-below-concurrency"]
    assert made.fit.fits


def test_weights_larger_than_the_hosts_memory_are_a_note() -> None:
    large = with_target(CHAT.model_copy(update={"weight_bytes": 17 * GIB}))
    assert "host-memory-below-weights" in codes(
        plan(catalog=large, instance_type="ml.g7e.2xlarge"), "note"
    )
    assert codes(plan(instance_type="ml.g7e.2xlarge"), "note") == []


def test_a_drafter_of_unknown_size_is_reckoned_from_its_layers() -> None:
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


def test_the_price_is_the_regions_or_says_whose_it_is() -> None:
    made = plan(instance_type="ml.g7e.2xlarge", instance_count=2)
    assert (made.price_per_hour_usd, made.price_date) == (8.4, "2026-07-01")
    assert codes(made) == ["image-without-counters"]
    elsewhere = plan(instance_type="ml.g7e.2xlarge", region="eu-west-1")
    assert elsewhere.price_per_hour_usd == 4.2
    assert "price-of-another-region" in codes(elsewhere, "warning")
    unknown = plan(instance_type="ml.g6e.xlarge", region="us-east-1")
    assert unknown.price_per_hour_usd is None
    assert "price-unknown" in codes(unknown, "warning")


def test_the_catalogue_is_as_it_was() -> None:
    before = CATALOG.model_dump_json()
    plan("secret", drafter="s3://bucket/head", k=3)
    assert CATALOG.model_dump_json() == before
