"""Weights on one GPU, by the byte."""

import pytest

from peagle.fit.estimate import drafter_on_gpu
from peagle.fit.weights import (
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
