"""Tensor-parallel sizes that vLLM refuses for the blocks of quantized weights."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.checkpoints.architecture import read_architecture
from peagle.checkpoints.division import division_problem, divisions
from tests.unit.checkpoints import public_targets as public


def moe(hidden: int, width: int, layers: int, heads: int, experts: int = 128) -> dict[str, Any]:
    return public.config(
        "Qwen3MoeForCausalLM", "qwen3_moe", f"{hidden} 12288 {layers} {heads} 4 151936 262144",
        head_dim=128, moe_intermediate_size=width, num_experts=experts, num_experts_per_tok=8,
    )  # fmt: skip


def dense(width: int, **settings: Any) -> dict[str, Any]:
    return public.config(
        "Qwen3ForCausalLM", "qwen3", f"5120 {width} 64 64 8 151936 40960", head_dim=128,
        quantization_config=settings,
    )  # fmt: skip


FP8 = {"quantization_config": public.BLOCK_FP8}
COMPRESSED = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "g": {"weights": {"type": "float", "num_bits": 8, "block_structure": [128, 128]}}
        },
    }
}
INT4, HALVED = (
    {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "g": {"weights": {"type": "int", "num_bits": 4, "group_size": 128, **order}}
            },
        }
    }
    for order in ({}, {"actorder": "group"})
)
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
QWEN_235B, QWEN_30B = moe(4096, 1536, 94, 64), moe(2048, 768, 48, 32)


@pytest.mark.parametrize(
    ("config", "sizes", "with_whole_experts"),
    [
        (QWEN_235B, [1, 2, 4, 8], [1, 2, 4, 8]),
        (QWEN_235B | FP8, [1, 2, 4], [1, 2, 4, 8]),
        (QWEN_235B | COMPRESSED, [1, 2, 4], [1, 2, 4, 8]),
        (QWEN_30B | FP8, [1, 2], [1, 2, 4, 8]),
        (QWEN_30B | INT4, [1, 2], [1, 2, 4, 8]),
        (QWEN_30B | HALVED, [1, 2, 4, 8], [1, 2, 4, 8]),
        (QWEN_30B | AWQ, [1, 2, 4, 8], [1, 2, 4, 8]),
        (public.GLM45_AIR | FP8, [1], [1]),
        (public.DEEPSEEK_V3 | FP8, [1, 2, 4, 8], [1, 2, 4, 8]),
        (public.KIMI_K2 | FP8, [1, 2, 4, 8], [1, 2, 4, 8]),
        (public.QWEN3_NEXT | FP8, [1, 2, 4], [1, 2, 4]),
        (public.MINIMAX_M2 | FP8, [1, 2, 4], [1, 2, 4, 8]),
        (dense(29568, quant_method="gptq", bits=4, group_size=128), [1], [1]),
        (dense(29568, quant_method="awq", bits=4, group_size=32), [1, 2, 4], [1, 2, 4]),
        (dense(29696, quant_method="awq", bits=4, group_size=128), [1, 2, 4, 8], [1, 2, 4, 8]),
        (dense(27648, quant_method="fp8", weight_block_size=[128, 128]), [1, 2, 4, 8],
         [1, 2, 4, 8]),
        (dense(27648, quant_method="awq", bits=4, group_size=128), [1, 2, 4, 8], [1, 2, 4, 8]),
        (public.NEMOTRON_H, [1, 2, 4, 8], [1, 2, 4, 8]),
        (public.FALCON_H1, [1, 2], [1, 2]),
        (public.QWEN3_NEXT, [1, 2, 4, 8], [1, 2, 4, 8]),
    ],
)  # fmt: skip
def test_sizes(config: dict[str, Any], sizes: list[int], with_whole_experts: list[int]) -> None:
    shape = read_architecture(config)
    assert divisions(shape, 8) == sizes
    assert divisions(shape, 8, expert_parallel=True) == with_whole_experts


def test_the_problem_names_share_block_and_source() -> None:
    problem = division_problem(read_architecture(QWEN_235B | FP8), 8)
    assert problem is not None
    for part in ("1,536 / 8 = 192", "128", "fp8.py:534"):
        assert part in problem


def test_one_size_is_left_where_vllm_refuses_all() -> None:
    ragged = read_architecture(moe(2048, 704, 48, 32) | FP8)
    assert divisions(ragged, 8) == [1]
    assert division_problem(ragged, 1) is not None
