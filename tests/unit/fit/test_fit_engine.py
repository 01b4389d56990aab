"""vLLM's defaults, and what it derives from its arguments."""

from typing import Any

import pytest

from peagle.fit.estimate import FitCase, bytes_taken, cache_layout, graph_bytes
from peagle.vllm.defaults import (
    batch_limits,
    capture_size,
    capture_sizes,
    default_batched_tokens,
    extra_slots,
    in_flight_tokens,
    uses_model_runner_v2,
)
from peagle.vllm.gpus import cuda_visible_gib, visible_gib
from tests.unit.fit.geometry import case


def captured(fit_case: FitCase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return capture_sizes(fit_case.engine, fit_case.drafter, fit_case.target.architecture.class_name)


def runs_on_v2(fit_case: FitCase) -> bool:
    experts = bool(fit_case.target.architecture.experts)
    return uses_model_runner_v2(fit_case.engine, fit_case.drafter, mixture_of_experts=experts)


@pytest.mark.parametrize(("pair", "head", "k", "piecewise", "full"), [
    ("gpt-oss-20b", None, 0, (83, 1024), (19, 128)),
    ("gpt-oss-20b", "p-eagle", 7, (80, 1024), (80, 1024)),
    ("gpt-oss-20b", "p-eagle", 3, (81, 1024), (49, 512)),
    ("gpt-oss-120b", "p-eagle", 5, (80, 1008), (65, 768)),
    ("qwen3-coder-30b", None, 0, (35, 256), (19, 128)),
    ("qwen3-coder-30b", "p-eagle", 10, (39, 506), (39, 506)),
    ("qwen3-coder-30b", "p-eagle", 5, (48, 498), (48, 498)),
    ("qwen3-coder-30b", "eagle3", 3, (49, 512), (49, 512)),
])  # fmt: skip
def test_captured_graph_sizes(
    pair: str, head: str | None, k: int, piecewise: tuple[int, int], full: tuple[int, int]
) -> None:
    """Number and largest batch, from the log of vLLM 0.26.0 (``Profiling CUDA graph memory``)."""
    small, whole = captured(case(pair, head, k=k))
    assert (len(small), small[-1]) == piecewise
    assert (len(whole), whole[-1]) == full


@pytest.mark.parametrize(("requests", "k", "size"), [
    (128, 7, 1024), (128, 10, 1408), (128, 16, 2176), (128, 18, 2432), (64, 8, 576), (170, 2, 528),
    (96, 7, 768), (33, 15, 528), (1, 600, 608),
])  # fmt: skip
def test_the_size_of_graphs_holds_a_step_of_all_requests(requests: int, k: int, size: int) -> None:
    """vLLM rounds its sizes up to whole requests; what exceeds the largest one has no graph."""
    assert capture_size(requests * (k + 1), k) == size
    engine: dict[str, Any] = {"k": k, "max_num_seqs": requests, "max_cudagraph_capture_size": size}
    assert captured(case("qwen3-coder-30b", **engine))[0][-1] >= requests * (k + 1)


def test_dense_targets_run_on_model_runner_v2_unless_they_draft_in_parallel() -> None:
    assert runs_on_v2(case("gemma-4-31b", None))
    assert runs_on_v2(case("gemma-4-31b", "eagle3"))
    assert not runs_on_v2(case("gemma-4-31b", "p-eagle"))
    assert not runs_on_v2(case("gpt-oss-20b", None))


def test_data_centre_blackwell_captures_more_since_0_28() -> None:
    for vllm, largest in (("0.27.1", 512), ("0.28.0", 1024)):
        blackwell = case("qwen3-coder-30b", None, vllm=vllm, max_num_seqs=1024, capability=100)
        assert captured(blackwell)[0][-1] == largest


def test_defaults_grow_with_the_gpu() -> None:
    assert default_batched_tokens("L4", 22.0, "0.28.0") == 2048
    assert default_batched_tokens("H200", 139.8, "0.28.0") == 8192
    assert default_batched_tokens("A100", 79.2, "0.28.0") == 2048
    assert default_batched_tokens("B200", 178.4, "0.28.0") == 16384
    assert default_batched_tokens("B200", 178.4, "0.27.1") == 8192
    none = None, None
    assert batch_limits("L4", 22.0, "0.28.0", 32768, none) == (256, 2048)


@pytest.mark.parametrize(("length", "settings", "batch"), [
    (32768, (None, None), (1024, 8192)),
    (1024, (2, None), (2, 2048)),
    (32768, (None, 512), (512, 512)),
    (32768, (2000, 512), (2000, 512)),
    (4, (None, None), (1024, 4096)),
])  # fmt: skip
def test_a_default_batch_is_limited_by_the_other_value(
    length: int, settings: tuple[int | None, int | None], batch: tuple[int, int]
) -> None:
    assert batch_limits("H200", 139.8, "0.28.0", length, settings) == batch


@pytest.mark.parametrize(("vllm", "method", "parallel", "slots"), [
    ("0.26.0", "eagle3", True, 4 * 1024),
    ("0.27.1", "eagle3", True, 4 * 1024),
    ("0.28.0", "eagle3", True, 4),
    ("0.30.0", "eagle3", True, 4),
    ("0.28.0", "eagle3", False, 0),
    ("0.26.0", "eagle3", False, 0),
    ("0.27.1", "dflash", False, 4 * 1024),
    ("0.28.0", "dflash", False, 5),
    ("0.28.0", "dspark", False, 4),
    ("0.28.0", "mtp", False, 0),
])  # fmt: skip
def test_since_0_28_only_the_slots_of_one_request_count(
    vllm: str, method: str, parallel: bool, slots: int
) -> None:
    many = case("qwen3-coder-30b", vllm=vllm, k=5, max_num_seqs=1024)
    assert many.drafter is not None
    drafter = many.drafter._replace(method=method, parallel_drafting=parallel)
    assert extra_slots(many.engine, drafter) == slots
    assert extra_slots(many.engine, None) == 0


def test_asynchronous_scheduling_keeps_two_batches() -> None:
    assert in_flight_tokens(case("gpt-oss-20b").engine, None) == 2 * 8192
    ngram = case("gpt-oss-20b", None, draftless="ngram").engine
    assert in_flight_tokens(ngram, None) == 8192


def test_visible_memory_is_less_than_on_the_data_sheet() -> None:
    assert cuda_visible_gib(141, "H200") == pytest.approx(139.8, abs=0.05)
    assert cuda_visible_gib(139.5, "H200") == 139.5
    assert cuda_visible_gib(100, "H200") == 100
    assert visible_gib("H200", 144384) == pytest.approx(139.8, abs=0.05)
    assert visible_gib("unheard of", 102400) == pytest.approx(97)


@pytest.mark.parametrize(("pair", "head", "length", "batched", "tokens"), [
    ("gpt-oss-20b", None, 131072, 2048, 338567),
    ("gpt-oss-20b", "p-eagle", 32768, 2048, 232110),
    ("gpt-oss-120b", "p-eagle", 32768, 8192, 126722),
    ("gemma-4-31b", None, 16384, 8192, 9521),
    ("qwen3-coder-30b", "p-eagle", 16384, 8192, 80656),
])  # fmt: skip
def test_the_cache_equals_that_of_vllm(
    pair: str, head: str | None, length: int, batched: int, tokens: int
) -> None:
    """Tokens in 8 GiB by get_kv_cache_capacity of vLLM 0.28.0, with which
    ``tests/engine/test_fit_vllm.py`` compares more."""
    layout = cache_layout(case(pair, head, vllm="0.28.0"))
    assert layout.capacity(8 << 30, length, 2 * batched)[0] == tokens


def test_older_engines_do_not_count_their_graphs() -> None:
    assert graph_bytes(case("gpt-oss-20b", vllm="0.20.2")) == 0
    assert graph_bytes(case("gpt-oss-20b", enforce_eager=True)) == 0


def test_newer_engines_count_their_own_buffers() -> None:
    assert bytes_taken(case("gpt-oss-20b"))["buffers_estimate"] == 0
    newer, alone = (
        bytes_taken(case("gpt-oss-20b", head, vllm="0.28.0"))["buffers_estimate"]
        for head in ("p-eagle", None)
    )
    assert newer - alone == 2 * 8192 * 2880 * 2, "the head's inputs and hidden states"
