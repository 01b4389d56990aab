"""The dtype in which vLLM serves a checkpoint."""

from __future__ import annotations

import pytest

from peagle.checkpoints import Tensor
from peagle.checkpoints.architecture import read_dtype
from peagle.fit.building import served_tensors


@pytest.mark.parametrize(
    ("saved", "served"),
    [
        ("float32", "bfloat16"),
        ("torch.float32", "bfloat16"),
        ("float64", "bfloat16"),
        ("float8_e4m3fn", "bfloat16"),
        ("bfloat16", "bfloat16"),
        ("float16", "float16"),
        ("half", "float16"),
    ],
)
def test_a_target_in_float32_is_served_in_bfloat16(saved: str, served: str) -> None:
    assert read_dtype({"dtype": saved}) == served
    assert read_dtype({"text_config": {"torch_dtype": saved}, "dtype": "float16"}) == served


def tensor(dtype: str, size: int) -> Tensor:
    return Tensor(dtype, (10,), size)


def test_wide_weights_take_16_bits_once_they_are_loaded() -> None:
    stored = {
        "q": tensor("F32", 40),
        "k": tensor("F64", 80),
        "v": tensor("BF16", 20),
        "o": tensor("F16", 20),
        "experts": tensor("U8", 10),
        "d2t": tensor("I64", 80),
    }
    sizes = {name: loaded.size for name, loaded in served_tensors(stored).items()}
    assert sizes == {"q": 20, "k": 20, "v": 20, "o": 20, "experts": 10, "d2t": 80}


def test_the_scales_of_quantized_weights_stay_wide() -> None:
    stored = {"a.weight_scale_inv": tensor("F32", 40), "norm.weight": tensor("F32", 40)}
    loaded = served_tensors(stored, "fp8")
    assert [loaded[name].size for name in stored] == [40, 20]
