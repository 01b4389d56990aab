"""The memory fit: the cache as vLLM allots it, the terms, the instance that follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from toolkit.catalog.models import AttentionGroup
from toolkit.errors import NotFound
from toolkit.planning.cache import Layers, layers_on_one_gpu, request_bytes
from toolkit.planning.memory import Workload, memory_fit, missing_gib

GIB = 1024**3


def group(layers: int, heads: int, width: int, window: int | None = None) -> AttentionGroup:
    return AttentionGroup(
        kind="full" if window is None else "sliding",
        layers=layers,
        kv_heads=heads,
        head_dim=width,
        window=window,
    )


GPT_OSS_20B = (group(12, 8, 64, 128), group(12, 8, 64))
GPT_OSS_120B = (group(18, 8, 64, 128), group(18, 8, 64))
GEMMA = (group(50, 16, 256, 1024), group(10, 4, 512))
QWEN_CODER = (group(48, 4, 128),)


@pytest.mark.parametrize(
    ("groups", "length", "batched", "vllm_says"),
    [
        pytest.param(GPT_OSS_20B, 131072, 2048, 338567, id="gpt-oss-20b"),
        pytest.param((*GPT_OSS_20B, group(4, 8, 64)), 32768, 2048, 232110, id="20b-p-eagle"),
        pytest.param((*GPT_OSS_120B, group(4, 8, 64)), 32768, 8192, 126722, id="120b-p-eagle"),
        pytest.param(GEMMA, 16384, 8192, 9521, id="gemma"),
        pytest.param((*GEMMA, group(1, 4, 512)), 16384, 8192, 8655, id="gemma-like-layer"),
        pytest.param((*GEMMA, group(1, 8, 128)), 16384, 8192, 9480, id="gemma-other-layer"),
        pytest.param((*QWEN_CODER, group(4, 4, 128)), 16384, 8192, 80656, id="qwen-p-eagle"),
        pytest.param((group(36, 8, 128), group(4, 32, 128)), 16384, 8192, 40320, id="two-sizes"),
    ],
)
def test_the_cache_is_what_vllm_allots(
    groups: tuple[AttentionGroup, ...], length: int, batched: int, vllm_says: int
) -> None:
    """``vllm_says``: tokens in 8 GiB by get_kv_cache_groups and get_kv_cache_capacity of vLLM
    0.28.0 for the same layers in bfloat16. They round the cache down to whole blocks."""
    one_request = request_bytes(layers_on_one_gpu(groups, 1, 2), length, batched)
    assert 8 * GIB / one_request * length == pytest.approx(vllm_says, rel=5e-4)


def test_a_drafter_costs_a_hybrid_target_more_than_its_layers() -> None:
    alone = request_bytes(layers_on_one_gpu(GPT_OSS_20B, 1, 2), 32768, 2048)
    both = request_bytes(layers_on_one_gpu((*GPT_OSS_20B, group(4, 8, 64)), 1, 2), 32768, 2048)
    assert both / alone == pytest.approx(16 / 12), "not 28 / 24"


def test_heads_are_divided_among_gpus_until_each_has_one() -> None:
    assert layers_on_one_gpu(QWEN_CODER, 4, 2) == (Layers(48, None, 2 * 1 * 128 * 2),)
    assert layers_on_one_gpu(QWEN_CODER, 8, 2) == layers_on_one_gpu(QWEN_CODER, 4, 2)
    assert layers_on_one_gpu(QWEN_CODER, 1, 1)[0].token_bytes == 2 * 4 * 128


@given(
    st.lists(
        st.builds(
            group,
            st.integers(1, 60),
            st.sampled_from([1, 2, 4, 8]),
            st.sampled_from([64, 128]),
            st.sampled_from([None, 128, 1024]),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 100_000),
)
def test_a_longer_request_never_takes_less(groups: list[AttentionGroup], length: int) -> None:
    layers = layers_on_one_gpu(groups, 1, 2)
    shorter = request_bytes(layers, length, 2048)
    assert 0 < shorter <= request_bytes(layers, length + 1, 2048)
    assert shorter >= sum(kind.count * kind.token_bytes for kind in layers if not kind.window)


def test_the_terms_are_the_whole_gpu() -> None:
    fit = plan(instance_type="ml.g7e.2xlarge").fit
    without_cache = sum(
        gib for name, gib in fit.terms.items() if name != "cache_of_one_full_request"
    )
    assert fit.gpu_memory_gib == 96
    assert without_cache + fit.kv_cache_gib == pytest.approx(96, abs=0.01)
    assert fit.weights_gib == pytest.approx(16e9 / GIB, abs=0.001)
    assert fit.drafter_gib == pytest.approx(1e9 / GIB, abs=0.001)
    assert fit.terms["kept_free"] == pytest.approx(9.6)
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
    # The share that is kept free grows with the memory.
    needed = int((small.gpu_memory_mib / 1024 + missing_gib(fit) / 0.9) * 1024)
    assert memory_fit(work, {}, small.model_copy(update={"gpu_memory_mib": needed + 2}), 1).fits
    assert not memory_fit(work, {}, small.model_copy(update={"gpu_memory_mib": needed - 2}), 1).fits


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
    parameters = 2 * 32000 * 1024 + 3 * 1024**2 + 4 * 12 * 1024**2
    fit = plan(instance_type="ml.g7e.2xlarge").fit
    assert made.fit.drafter_gib * made.fit.tensor_parallel_size == pytest.approx(
        2 * parameters / GIB, abs=0.002
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
