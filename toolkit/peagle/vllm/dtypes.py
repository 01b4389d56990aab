"""Number formats: bytes per value, and the dtype in which vLLM serves a checkpoint.

Without ``--dtype``, ``_resolve_auto_dtype`` of vllm/config/model.py (vLLM 0.28.0) replaces a dtype
that the GPU cannot compute in, and float32, which it can, with bfloat16 (float16, of the same size,
before compute capability 8.0). Memory is allocated in that dtype; weights are cast while loading.
"""

from __future__ import annotations

_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}

_SERVED_AS_STORED = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16"}

_WIDE_BYTES = {"F32": 4, "F64": 8}
"""safetensors dtypes wider than the dtypes that vLLM serves in."""


def element_bytes(dtype: str) -> int:
    """Bytes per element of this dtype."""
    return _BYTES.get(dtype, 2)


def served_dtype(saved: str) -> str:
    """The dtype in which vLLM computes with weights that were saved as ``saved``."""
    return _SERVED_AS_STORED.get(saved.removeprefix("torch."), "bfloat16")


def served_size(dtype: str, size: int) -> tuple[str, int]:
    """safetensors dtype and bytes of a tensor once vLLM has loaded it."""
    width = _WIDE_BYTES.get(dtype)
    return (dtype, size) if width is None else ("BF16", size // width * 2)
