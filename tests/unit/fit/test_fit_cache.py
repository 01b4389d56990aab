"""The KV cache as vLLM allocates it; ``tests/engine/test_fit_vllm.py`` compares with vLLM."""

from __future__ import annotations

import pytest

from peagle.catalog.schema import AttentionGroup
from peagle.fit.estimate import Layout, layout_of
from peagle.vllm.defaults import BLOCK_TOKENS

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


def test_a_drafter_costs_a_hybrid_target_more_than_its_layers() -> None:
    alone = layout(*GPT_OSS_20B).request_bytes(32768, 4096)
    both = layout(*GPT_OSS_20B, group(4, 8, 64))
    assert both.request_bytes(32768, 4096) / alone == pytest.approx(16 / 12), "not 28 / 24"
    padding = both.request_bytes(32768, 4096) - both.used_bytes(32768, 4096)
    assert padding == 4 * 2 * 8 * 64 * 2 * 16 * both.groups[0].blocks(32768, 4096)


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


def test_heads_are_divided_among_gpus_until_each_has_one() -> None:
    layout = layout_of(QWEN_CODER, 4, 2, RATIO)
    assert layout.block_bytes == 48 * 2 * 1 * 128 * 2 * BLOCK_TOKENS
    assert layout_of(QWEN_CODER, 8, 2, RATIO) == layout
    assert layout_of(QWEN_CODER, 1, 1, RATIO).block_bytes == 48 * 2 * 4 * 128 * BLOCK_TOKENS
