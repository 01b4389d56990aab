"""vLLM's defaults, and what it derives from its arguments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peagle.catalog.schema import AttentionGroup
from peagle.fit.estimate import FitCase, Layout, bytes_taken, graph_bytes, layout_of
from peagle.vllm.defaults import (
    batch_limits,
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


@pytest.mark.parametrize(
    ("pair", "head", "k", "piecewise", "full"),
    [
        ("gpt-oss-20b", None, 0, (83, 1024), (19, 128)),
        ("gpt-oss-20b", "p-eagle", 7, (80, 1024), (80, 1024)),
        ("gpt-oss-20b", "p-eagle", 3, (81, 1024), (49, 512)),
        ("gpt-oss-120b", "p-eagle", 5, (80, 1008), (65, 768)),
        ("qwen3-coder-30b", None, 0, (35, 256), (19, 128)),
        ("qwen3-coder-30b", "p-eagle", 10, (39, 506), (39, 506)),
        ("qwen3-coder-30b", "p-eagle", 5, (48, 498), (48, 498)),
        ("qwen3-coder-30b", "eagle3", 3, (49, 512), (49, 512)),
    ],
)
def test_captured_graph_sizes(
    pair: str, head: str | None, k: int, piecewise: tuple[int, int], full: tuple[int, int]
) -> None:
    """Number and largest batch, from the log of vLLM 0.26.0 (``Profiling CUDA graph memory``)."""
    small, whole = captured(case(pair, head, k=k))
    assert (len(small), small[-1]) == piecewise
    assert (len(whole), whole[-1]) == full


def test_eager_mode_captures_no_graphs() -> None:
    assert captured(case("gpt-oss-20b", enforce_eager=True)) == ((), ())


def test_dense_targets_run_on_model_runner_v2_unless_they_draft_in_parallel() -> None:
    assert runs_on_v2(case("gemma-4-31b", None))
    assert runs_on_v2(case("gemma-4-31b", "eagle3"))
    assert not runs_on_v2(case("gemma-4-31b", "p-eagle"))
    assert not runs_on_v2(case("gpt-oss-20b", None))


def test_defaults_grow_with_the_gpu() -> None:
    assert default_batched_tokens("L4", 22.0, "0.28.0") == 2048
    assert default_batched_tokens("H200", 139.8, "0.28.0") == 8192
    assert default_batched_tokens("A100", 79.2, "0.28.0") == 2048
    assert default_batched_tokens("B200", 178.4, "0.28.0") == 16384
    assert default_batched_tokens("B200", 178.4, "0.27.1") == 8192
    none = None, None
    assert batch_limits("L4", 22.0, "0.28.0", 32768, none) == (256, 2048)


@pytest.mark.parametrize(
    ("length", "settings", "batch"),
    [
        (32768, (None, None), (1024, 8192)),
        (1024, (2, None), (2, 2048)),
        (32768, (None, 512), (512, 512)),
        (32768, (2000, 512), (2000, 512)),
        (4, (None, None), (1024, 4096)),
    ],
)
def test_a_default_batch_is_limited_by_the_other_value(
    length: int, settings: tuple[int | None, int | None], batch: tuple[int, int]
) -> None:
    assert batch_limits("H200", 139.8, "0.28.0", length, settings) == batch


def test_data_centre_blackwell_captures_more_since_0_28() -> None:
    blackwell = {"max_num_seqs": 1024, "capability": 100}
    largest = [
        captured(case("qwen3-coder-30b", None, vllm=vllm, **blackwell))[0][-1]
        for vllm in ("0.27.1", "0.28.0")
    ]
    assert largest == [512, 1024]


@pytest.mark.parametrize(
    ("vllm", "method", "parallel", "slots"),
    [
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
    ],
)
def test_since_0_28_only_the_slots_of_one_request_count(
    vllm: str, method: str, parallel: bool, slots: int
) -> None:
    many = case("qwen3-coder-30b", vllm=vllm, k=5, max_num_seqs=1024)
    assert many.drafter is not None
    drafter = replace(many.drafter, method=method, parallel_drafting=parallel)
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


# The KV cache as vLLM allocates it; ``tests/engine/test_fit_vllm.py`` compares with vLLM.
GIB = 1 << 30
RATIO = 1.5
"""That of vLLM 0.28.0."""


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


def layout(*groups: AttentionGroup) -> Layout:
    return layout_of(groups, 1, 2, RATIO)


@pytest.mark.parametrize(
    ("groups", "length", "batched", "expected"),
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
def test_the_cache_equals_that_of_vllm(
    groups: tuple[AttentionGroup, ...], length: int, batched: int, expected: int
) -> None:
    """``expected``: tokens in 8 GiB by get_kv_cache_groups and get_kv_cache_capacity of vLLM
    0.28.0 for the same layers in bfloat16."""
    assert layout(*groups).capacity(8 * GIB, length, 2 * batched)[0] == expected


def test_older_vllm_pads_groups_below_a_smaller_ratio() -> None:
    """16 layers against 12: above 1.25 the groups are cut to 12, and the drafter's kind has two."""
    groups = (*GPT_OSS_20B, group(4, 8, 64))
    assert [part.tables for part in layout_of(groups, 1, 2, 1.5).groups] == [1, 1]
    assert [part.tables for part in layout_of(groups, 1, 2, 1.25).groups] == [1, 2]


def test_the_block_size_that_is_set_counts() -> None:
    for groups in (QWEN_CODER, GPT_OSS_20B, GEMMA):
        usual, set_ = (
            layout_of(groups, 1, 2, RATIO),
            layout_of(groups, 1, 2, RATIO, block_tokens=64),
        )
        assert set_.block_bytes == 4 * usual.block_bytes
        assert [g.block_tokens for g in set_.groups] == [4 * g.block_tokens for g in usual.groups]


# Working memory, term by term, against what torch counted in vLLM 0.26.0 on an H200.
MIB = 1 << 20


def test_older_engines_do_not_count_their_graphs() -> None:
    assert graph_bytes(case("gpt-oss-20b", vllm="0.20.2")) == 0
    assert graph_bytes(case("gpt-oss-20b", enforce_eager=True)) == 0


def test_tensor_parallelism_needs_all_reduce_buffers() -> None:
    tp1, two, four = (
        bytes_taken(case("gpt-oss-20b", tensor_parallel_size=tp))["libraries_estimate"]
        for tp in (1, 2, 4)
    )
    assert tp1 == 240 * MIB
    assert two - four == 4 * (2 * 64 - 4 * 2) * MIB
    assert tp1 < four


def test_newer_engines_count_their_own_buffers() -> None:
    assert bytes_taken(case("gpt-oss-20b"))["buffers_estimate"] == 0
    newer, alone = (
        bytes_taken(case("gpt-oss-20b", head, vllm="0.28.0"))["buffers_estimate"]
        for head in ("p-eagle", None)
    )
    assert newer - alone == 2 * 8192 * 2880 * 2, "the head's inputs and hidden states"
