"""The search for advice: its values, and its speed for any settings."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from peagle.fit.estimate import fit_of
from peagle.fit.models import FitCase
from peagle.fit.report import MAX_K_TRIED, advise
from tests.unit.fit.geometry import case, changes_of, with_engine


def advised(one: FitCase) -> dict[str, str]:
    return {advice.knob: advice.value for advice in advise(one, changes_of(one))}


@pytest.mark.parametrize(
    "engine",
    [
        {"k": 100_000},
        {"k": 10**9, "vllm": "0.28.0"},
        {"max_num_batched_tokens": 10**12},
        {"max_model_len": 10**12},
        {"max_num_seqs": 10**12},
    ],
)
def test_advice_for_huge_settings_is_fast(engine: dict[str, Any]) -> None:
    one, tried = case("gpt-oss-20b", **engine), Counter[str]()
    plain = changes_of(one)

    def counting(setting: str, value: object) -> FitCase | None:
        tried[setting] += 1
        return plain(setting, value)

    advise(one, counting)
    assert tried
    assert max(tried.values()) <= MAX_K_TRIED, tried


@pytest.mark.parametrize("gib", [16.4, 16.6, 16.8, 17.0])
def test_the_largest_k_that_fits_is_advised(gib: float) -> None:
    """All K are tried: a larger one can need less memory, since batches are rounded up to steps."""
    one = case("gpt-oss-20b", k=18, gpu_memory_gib=gib, max_num_seqs=64, max_model_len=4096)
    fitting = [k for k in range(1, 18) if fit_of(with_engine(one, k=k)).fits]
    if not fit_of(one).fits:
        assert advised(one).get("k") == (str(fitting[-1]) if fitting else None)


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
    assert fit_of(with_engine(large, max_num_batched_tokens=step)).fits
    assert not fit_of(with_engine(large, max_num_batched_tokens=2 * step)).fits


@pytest.mark.parametrize("vllm", ["0.27.1", "0.28.0"])
def test_the_advised_step_is_at_least_the_minimum_of_vllm(vllm: str) -> None:
    """One token per request, and one beside the slots (before 0.28 those of all requests)."""
    crowded = case("gpt-oss-20b", vllm=vllm, max_num_seqs=1000, max_num_batched_tokens=2**30)
    step = int(advised(crowded)["max-num-batched-tokens"])
    assert step > (6 * 1000 if vllm == "0.27.1" else 999)
    small = case("gpt-oss-20b", vllm=vllm, gpu_memory_gib=15.8, max_num_seqs=1000)
    assert "max-num-batched-tokens" not in advised(small), "no step for as many requests fits"
