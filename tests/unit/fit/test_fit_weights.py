"""Weights on one GPU: by the byte, from geometry and from headers."""

import math
from collections.abc import Mapping
from functools import cache

import pytest

from peagle.checkpoints.models import Tensor
from peagle.fit.estimate import drafter_on_gpu
from peagle.fit.weights import (
    TargetModel,
    allocated,
    bytes_from_headers,
    checkpoint_bytes,
    stored_parameters,
    target_bytes,
    vision_bytes,
)
from tests.unit.fit.geometry import TARGETS, drafter, target

PUBLISHED = {
    "gpt-oss-20b": 13_761_264_768,
    "gpt-oss-120b": 65_248_815_744,
    "qwen3-coder-30b": 61_064_245_248,
    "gemma-4-31b": 62_546_177_752,
}
"""Bytes of the weight files, from their indexes."""


@pytest.mark.parametrize("name", TARGETS)
def test_estimated_bytes_equal_the_published_files(name: str) -> None:
    model = target(name)
    tower = vision_bytes(model.vision, 5376) if model.vision else 0
    assert checkpoint_bytes(model) + tower == PUBLISHED[name]


def test_key_value_heads_are_divided_until_each_rank_has_one() -> None:
    model = target("qwen3-coder-30b")
    four, eight = (target_bytes(model, tp, 90) for tp in (4, 8))
    # 48 layers keep 4 heads of 128: at tp=8 each rank holds a whole one, as at tp=4.
    kept_double = 48 * 2 * 128 * 2048 * 2 / 2
    assert eight - four / 2 > kept_double


def test_mxfp4_experts_are_padded_for_the_kernel_of_the_gpu() -> None:
    model = target("gpt-oss-20b")
    hopper, blackwell, other = (target_bytes(model, 1, sm) for sm in (90, 100, 89))
    assert hopper < other < blackwell
    stored = checkpoint_bytes(model)
    assert 1.00 < hopper / stored < 1.02
    assert 1.08 < blackwell / stored < 1.15


def test_a_known_size_of_a_head_is_used() -> None:
    sized = drafter("qwen3-coder-30b")._replace(checkpoint_bytes=5_000_000_000)
    assert drafter_on_gpu(sized, 1) == pytest.approx(5_000_000_000 + 262144 * 128 * 2, rel=0.002)
    assert drafter_on_gpu(sized, 2) > drafter_on_gpu(sized, 1) / 2, "fc is on every rank"


def test_a_head_holds_the_parameters_of_its_layers() -> None:
    head = drafter("gpt-oss-20b", "eagle3")
    layer = 5120 * 5760 + 4096 * 2880 + 3 * 2880 * 2880 + 3 * 2880
    matrices = (201088 + 64000) * 2880
    assert stored_parameters(head) == layer + matrices + 3 * 2880 * 2880 + 2880


@cache
def headers(model: TargetModel) -> Mapping[str, Tensor]:
    """The headers of an unquantized checkpoint with this geometry."""
    shape = model.architecture
    group = shape.attention[0]
    hidden, width = shape.hidden_size, group.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, hidden),
        "lm_head.weight": (shape.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_norm.weight": (width,),
            f"{at}.self_attn.k_norm.weight": (width,),
            f"{at}.self_attn.q_proj.weight": (shape.query_heads * width, hidden),
            f"{at}.self_attn.k_proj.weight": (group.kv_heads * width, hidden),
            f"{at}.self_attn.v_proj.weight": (group.kv_heads * width, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, shape.query_heads * width),
            f"{at}.mlp.gate.weight": (shape.experts or 0, hidden),
        }
        for expert in range(shape.experts or 0):
            prefix = f"{at}.mlp.experts.{expert}"
            shapes |= {
                f"{prefix}.gate_proj.weight": (shape.intermediate_size, hidden),
                f"{prefix}.up_proj.weight": (shape.intermediate_size, hidden),
                f"{prefix}.down_proj.weight": (hidden, shape.intermediate_size),
            }
    sizes = dict.fromkeys(shapes, 2)
    for name, sides in shapes.items():
        for side in sides:
            sizes[name] *= side
    return {name: Tensor("BF16", sides, sizes[name]) for name, sides in shapes.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_headers_and_geometry_agree(tp: int) -> None:
    model = target("qwen3-coder-30b")
    weights = bytes_from_headers(model, headers(model), tp, 90)
    assert weights == pytest.approx(target_bytes(model, tp, 90), rel=0.001)


@pytest.mark.parametrize(("name", "sides", "ranks"), [
    ("lm_head.weight", (262144, 5376), 0),  # the embedding is used
    ("vision_tower.patch_embedding.weight", (4096, 4096), 1),  # every rank has all of it
    ("model.layers.0.layer_scalar", (), 1),
    ("model.layers.0.some_vector", (5376,), 1),
    ("model.layers.0.mlp.up_proj.weight", (8192, 4096), 2),
    ("model.layers.0.self_attn.k_proj.weight", (16 * 256, 4096), 2),
    ("model.layers.0.self_attn.k_proj.weight", (999, 4096), 2),
])  # fmt: skip
def test_the_share_of_a_rank_follows_from_the_name_of_the_tensor(
    name: str, sides: tuple[int, ...], ranks: int
) -> None:
    model = target("gemma-4-31b")
    size = 2 * math.prod(sides)
    stored_bytes = bytes_from_headers(model, {name: Tensor("BF16", sides, size)}, 2, 90)
    assert stored_bytes == (allocated(size / ranks) if ranks else 0)
