"""The memory fit of plans: terms, KV cache, and the choice of the instance."""

import math
from typing import Any

import pytest

from peagle.catalog.tables import Instance
from peagle.fit.estimate import GIB, missing_bytes
from peagle.planning.load import Load
from tests.unit.planning.rows import Expected, check_plan
from tests.unit.planning.small_catalog import (
    CATALOG,
    CHAT,
    INSTANCES,
    P_EAGLE,
    codes,
    finding_of,
    plan,
    with_target,
)

G7E: dict[str, Any] = {"instance_type": "ml.g7e.2xlarge"}
B200: dict[str, Any] = {"instance_type": "ml.p6-b200.48xlarge"}


def changed(**fields: Any) -> dict[str, Any]:
    """The option for the small catalogue with another target."""
    return {"catalog": with_target(CHAT.model_copy(update=fields))}


ODD = CHAT.architecture.model_copy(update={"query_heads": 18})
PLANS: dict[str, tuple[dict[str, Any], Expected]] = {
    # g5.xlarge ($1) is too small, g4dn.xlarge ($0.50) too old, g6e.xlarge priced elsewhere.
    "the cheapest priced instance that fits": ({}, {
        "instance_type": "ml.g5.12xlarge", "fit.tensor_parallel_size": 2,
        "because tensor_parallel_size": "fewest-gpus", "values tensor_parallel_size": {
            "gpus": 4}}),
    "another one of another region": ({"region": "eu-west-1"}, {"instance_type": "ml.g6e.xlarge"}),
    "an unpriced one where no other fits": (changed(weight_bytes=150 * 10**9), {
        "instance_type": "ml.p6-b200.48xlarge", "price_per_hour_usd": None, "price_date": None,
        "has": {"price-unknown"}}),
    "no instance fits": (changed(weight_bytes=10**13), {
        "instance_type": "ml.p6-b200.48xlarge", "errors": ["instance-too-small"]}),
    "an old GPU": ({"instance_type": "ml.g4dn.xlarge"}, {"errors": ["gpu-too-old"]}),
    "that serves float16": ({"instance_type": "ml.g4dn.xlarge", **changed(dtype="float16")}, {
        "errors": []}),
    "18 heads do not divide by 4": (
        {"instance_type": "ml.g5.12xlarge", **changed(architecture=ODD, weight_bytes=24 * 10**9)},
        {"fit.tensor_parallel_size": 2}),
    "idle GPUs": ({**B200, "copies": 1}, {"has": {"gpus-idle"}}),
    "of the cheapest": ({"copies": 1}, {"has": {"gpus-idle"}}),
    "a single GPU is not idle": ({**G7E, "copies": 1}, {"lacks": {"gpus-idle"}}),
    "nor are those of copies": (B200, {"lacks": {"gpus-idle"}}),
    "too many drafts for a step": ({"concurrency": 100_000}, {
        "errors": ["instance-too-small"], "fix error": "--concurrency"}),
    "nothing to report": (G7E, {"notes": ["image-by-tag"]}),
    "short requests": ({
        "pair": "chat+p-eagle", **G7E, "concurrency": 500, "prompt_tokens": 928,
        "output_tokens": 96}, {"instance_count": 1}),
    "longer requests": ({
        "pair": "chat+p-eagle", **G7E, "concurrency": 500, "prompt_tokens": 4000,
        "output_tokens": 96}, {"instance_count": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str) -> None:
    options, expected = PLANS[name]
    check_plan(plan(**options), expected)


def test_the_terms_add_up_to_the_gpu() -> None:
    fit = plan(**G7E).fit
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
    cache = fit.terms["cache_of_one_full_request"]
    assert cache == pytest.approx(20 * 2 * 8 * 64 * 2 * 4096 / GIB, abs=0.001)
    assert fit.max_concurrency == pytest.approx(fit.kv_cache_gib / cache, rel=0.01)
    assert fit.kv_cache_tokens == pytest.approx(fit.max_concurrency * 4096, rel=0.001)


SMALL: Instance = next(i for i in INSTANCES.instances if i.type == "ml.g5.xlarge")
LOAD = Load(CHAT, "0.28.0", 4096, 8, CATALOG)


def test_the_missing_memory_makes_it_fit() -> None:
    made = plan(instance_type="ml.g5.xlarge")
    missing = missing_bytes(LOAD.engine(SMALL, 1, P_EAGLE, 5).case) / GIB
    assert not made.fit.fits
    finding = finding_of(made, "error")
    assert finding.code == "instance-too-small"
    assert f"{missing:.2f} GiB" in finding.message
    assert "use --instance-type ml.g5.12xlarge, the best for this load at $4.00" in finding.fix
    # What is kept free and what the driver keeps grow with the memory.
    visible = 1 - made.fit.terms["kept_by_driver"] / made.fit.gpu_memory_gib
    needed = int((SMALL.gpu_memory_mib / 1024 + missing / 0.9 / visible) * 1024)
    for mib, fits in ((needed + 12, True), (needed - 12, False)):
        instance = SMALL.model_copy(update={"gpu_memory_mib": mib})
        assert LOAD.engine(instance, 1, P_EAGLE, 5).fit.fits == fits


def test_a_cache_for_part_of_the_load_is_a_note_with_the_length_that_fits() -> None:
    made = plan(**G7E, concurrency=500)
    finding, held = finding_of(made, "cache-below-concurrency"), made.fit.max_concurrency
    assert 125 < held < 500
    assert finding.level == "note"
    assert f"{held:.1f} requests of full length" in finding.message
    assert f"about {made.fit.kv_cache_tokens // 500:,} tokens or less" in finding.fix


def test_a_load_above_one_instance_gets_more_of_them() -> None:
    made = plan(**G7E, concurrency=2000)
    held = math.floor(made.fit.max_concurrency / (2304 / 4096))  # of requests of the usual size
    assert made.instance_count == math.ceil(2000 / held) > 1
    assert "cache-below-concurrency" not in codes(made, "warning")
    assert "several-instances" in codes(made)


@pytest.mark.thorough
def test_a_cache_far_below_the_load_is_a_warning_with_a_type_that_works() -> None:
    chosen: dict[str, Any] = {"instance_type": "ml.g5.12xlarge", "instance_count": 1}
    made = plan(**chosen, concurrency=1000)
    finding = finding_of(made, "cache-below-concurrency")
    assert (finding.level, made.fit.fits) == ("warning", True)
    (_, larger) = finding.options
    fixed = plan(**chosen | {"concurrency": 1000, "instance_type": larger})
    assert "cache-below-concurrency" not in codes(fixed, "warning")
    assert fixed.fit.fits
