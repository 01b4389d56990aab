"""The numbers in which vLLM serves a checkpoint on a GPU, where no ``--dtype`` says it.

As ``_resolve_auto_dtype`` of vllm/config/model.py in vLLM 0.28.0: a type that the GPU does not
compute in, and float32, which it does, become bfloat16 (float16, as large, before compute
capability 8.0). Memory is allocated in that type, and what the files hold is cast while it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from peagle.checkpoints.models import Tensor

_KEPT = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16"}
_USUAL = "bfloat16"
_WIDE = {"F32": 4, "F64": 8}
"""Fractions of safetensors that take more bytes than those of the types served in."""

_NARROW = 2


def served_dtype(saved: str) -> str:
    """The type in which vLLM computes with weights that were saved as ``saved``."""
    return _KEPT.get(saved.removeprefix("torch."), _USUAL)


def served_tensors(
    tensors: Mapping[str, Tensor], quantization: str | None = None
) -> dict[str, Tensor]:
    """The tensors with the sizes that they have once loaded: wide fractions are served in 16 bits.

    The scales of quantised weights stay as they are.
    """
    return {name: _cast(name, tensor, quantization) for name, tensor in tensors.items()}


def _cast(name: str, tensor: Tensor, quantization: str | None) -> Tensor:
    width = _WIDE.get(tensor.dtype)
    if width is None or (quantization is not None and "scale" in name):
        return tensor
    return replace(tensor, dtype="BF16", size=tensor.size // width * _NARROW)
