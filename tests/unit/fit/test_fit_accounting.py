"""The memory fit: terms, refusals, advice, and the cost of speculation."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.fit.estimate import INSIDE, FitCase, compare, compute_fit, missing_bytes, refusal_reason
from peagle.fit.report import MAX_K_TRIED, advise
from tests.support import examples
from tests.unit.fit.geometry import TARGETS, case, changes_of, with_engine

GIB = 1 << 30
KNOBS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")


@pytest.mark.parametrize("name", TARGETS)
def test_terms_and_cache_add_up_to_the_gpu(name: str) -> None:
    fit = compute_fit(case(name, driver_gib=1.2))
    outside = sum(gib for term, gib in fit.terms.items() if not term.startswith(INSIDE))
    assert fit.fits
    assert fit.gpu_memory_gib == 141
    assert outside + fit.kv_cache_gib == pytest.approx(141, abs=0.01)
    assert fit.terms["target_weights"] == fit.weights_gib
    assert fit.terms["drafter_weights"] == fit.drafter_gib
    assert fit.kv_cache_tokens == pytest.approx(fit.max_concurrency * 32768, rel=1e-3)
    assert (
        0
        <= fit.terms["cache_padding_in_it"]
        < fit.terms["cache_of_drafter_in_it"] + fit.terms["cache_of_one_full_request"]
    )


def test_speculation_reduces_the_cache() -> None:
    speculating = case("gpt-oss-20b")
    without = compare(speculating, compute_fit(speculating))
    assert without is not None
    assert without.kv_cache_gib > compute_fit(speculating).kv_cache_gib + 3
    assert 0.65 < (without.concurrency_kept or 0) < 0.75
    assert compare(case("gpt-oss-20b", None), compute_fit(case("gpt-oss-20b", None))) is None


def test_a_refusal_has_the_missing_memory() -> None:
    small = case("gpt-oss-20b", gpu_memory_gib=18.0, max_model_len=131072)
    fit = compute_fit(small)
    assert not fit.fits
    missing = missing_bytes(small)
    assert refusal_reason(small) == (
        f"one request of 131,072 tokens needs {missing / GIB:.2f} GiB more GPU memory"
    )
    more = 18.0 + missing / GIB / small.engine.gpu_memory_utilization
    assert compute_fit(with_engine(small, gpu_memory_gib=more + 0.001)).fits
    assert not compute_fit(with_engine(small, gpu_memory_gib=more - 0.01)).fits


def test_parallel_drafts_can_reserve_a_whole_step() -> None:
    parallel = case("qwen3-coder-30b", k=10, max_num_seqs=1024)
    assert "reserves 9,216 tokens of a step for 1,024 concurrent requests" in (
        refusal_reason(parallel) or ""
    )
    assert not compute_fit(parallel).fits
    assert missing_bytes(parallel) == 0
    advice = advised(parallel)
    assert advice["k"] == "8"
    assert advice["max-num-seqs"] == "512"
    assert advice["max-num-batched-tokens"] == "16384"
    assert refusal_reason(case("qwen3-coder-30b", "eagle3", k=10, max_num_seqs=1024)) is None


def test_advice_is_the_smallest_change_that_fits() -> None:
    small = case("gpt-oss-20b", gpu_memory_gib=26.0, max_model_len=131072)
    advice = advised(small)
    length = int(advice["max-model-len"])
    assert compute_fit(with_engine(small, max_model_len=length)).fits
    assert not compute_fit(with_engine(small, max_model_len=length + 1)).fits
    share = float(advice["gpu-memory-utilization"])
    assert compute_fit(with_engine(small, gpu_memory_utilization=share)).fits
    assert not compute_fit(with_engine(small, gpu_memory_utilization=share - 0.01)).fits
    assert advice["tp"] == "2"
    assert advice["no-speculation"]
    assert advise(with_engine(small, max_model_len=length), changes_of(small)) == ()


@given(
    st.sampled_from(TARGETS),
    st.sampled_from(KNOBS),
    st.integers(1, 60_000),
    st.integers(1, 60_000),
    st.sampled_from([20.0, 80.0, 139.8]),
)
@settings(deadline=None, max_examples=examples(60))
def test_larger_settings_never_enlarge_the_cache(
    name: str, setting: str, less: int, more: int, memory: float
) -> None:
    less, more = sorted((less, more))
    smaller = case(name, gpu_memory_gib=memory)
    small, large = (compute_fit(with_engine(smaller, **{setting: value})) for value in (less, more))
    assert large.kv_cache_gib <= small.kv_cache_gib
    if setting == "max_model_len":
        assert large.max_concurrency <= small.max_concurrency
        assert large.fits <= small.fits


@given(st.sampled_from(TARGETS), st.floats(10, 300), st.floats(0.1, 1))
@settings(deadline=None, max_examples=examples(60))
def test_more_memory_never_reduces_the_cache(name: str, memory: float, share: float) -> None:
    smaller = case(name, gpu_memory_gib=memory, gpu_memory_utilization=share)
    more = compute_fit(with_engine(smaller, gpu_memory_gib=memory * 1.1))
    fit = compute_fit(smaller)
    assert fit.fits <= more.fits
    assert fit.kv_cache_tokens <= more.kv_cache_tokens
    assert fit.fits == (refusal_reason(smaller) is None)


# The search for advice: its values, and its speed for any settings.
def advised(fit_case: FitCase) -> dict[str, str]:
    return {advice.knob: advice.value for advice in advise(fit_case, changes_of(fit_case))}


@pytest.mark.parametrize("engine", [
    {"k": 100_000},
    {"k": 10**9, "vllm": "0.28.0"},
    {"max_num_batched_tokens": 10**12},
    {"max_model_len": 10**12},
    {"max_num_seqs": 10**12},
])  # fmt: skip
def test_advice_for_huge_settings_is_fast(engine: dict[str, Any]) -> None:
    huge, tried = case("gpt-oss-20b", **engine), Counter[str]()
    plain = changes_of(huge)

    def counting(setting: str, value: object) -> FitCase | None:
        tried[setting] += 1
        return plain(setting, value)

    advise(huge, counting)
    assert tried
    assert max(tried.values()) <= MAX_K_TRIED, tried


def test_the_advised_context_is_supported_by_target_and_head() -> None:
    long = case("gpt-oss-20b", max_model_len=10_000_000)
    assert advised(long)["max-model-len"] == "131072"
    wide = case("qwen3-coder-30b", max_model_len=10_000_000)
    assert wide.drafter is not None
    most = min(wide.target.architecture.max_positions, wide.drafter.shape.max_positions)
    assert advised(wide)["max-model-len"] == str(most)


def test_the_largest_step_that_fits_is_advised() -> None:
    large = case("gpt-oss-20b", gpu_memory_gib=23.6, max_num_seqs=8, max_num_batched_tokens=65536)
    step = int(advised(large)["max-num-batched-tokens"])
    assert compute_fit(with_engine(large, max_num_batched_tokens=step)).fits
    assert not compute_fit(with_engine(large, max_num_batched_tokens=2 * step)).fits


@pytest.mark.parametrize("vllm", ["0.27.1", "0.28.0"])
def test_the_advised_step_is_at_least_the_minimum_of_vllm(vllm: str) -> None:
    """One token per request, and one beside the slots (before 0.28 those of all requests)."""
    crowded = case("gpt-oss-20b", vllm=vllm, max_num_seqs=1000, max_num_batched_tokens=2**30)
    step = int(advised(crowded)["max-num-batched-tokens"])
    assert step > (6 * 1000 if vllm == "0.27.1" else 999)
    small = case("gpt-oss-20b", vllm=vllm, gpu_memory_gib=15.8, max_num_seqs=1000)
    assert "max-num-batched-tokens" not in advised(small), "no step for as many requests fits"
