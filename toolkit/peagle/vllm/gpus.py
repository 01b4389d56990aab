"""Facts about GPUs: memory that CUDA sees, dtypes, and tensor-parallel sizes.

Without ``--dtype``, ``_resolve_auto_dtype`` of vllm/config/model.py (vLLM 0.28.0) replaces a dtype
that the GPU cannot compute in, and float32, which it can, with bfloat16 (float16, of the same size,
before compute capability 8.0). Memory is allocated in that dtype; weights are cast while loading.
"""

from __future__ import annotations

from collections.abc import Iterable

VISIBLE_GIB: dict[str, tuple[float, ...]] = {
    "T4": (14.56,),
    "A10G": (22.06,),
    "L4": (22.03,),
    "L40S": (44.39,),
    "A100": (39.49, 79.15),
    "H100": (79.19,),
    "H200": (139.80,),
    "B200": (178.35,),
    "B300": (267.6,),
    "RTX PRO 4500": (31.36,),
    "RTX PRO 6000 SE": (94.97,),
}
"""Total GiB that cudaMemGetInfo reports; the driver reserves the rest. The H200 is measured
(evidence/memory-h200.json), the others are as torch prints them. Other GPUs are assumed to lose
the largest share here."""

_LARGEST_LOSS = 0.03


def visible_gib(gpu: str, memory_mib: int) -> float:
    """GiB of one GPU that CUDA reports, given ``memory_mib`` of its data sheet."""
    whole = memory_mib / 1024
    for visible in VISIBLE_GIB.get(gpu, ()):
        if 0.9 * whole < visible <= whole:
            return visible
    return round(whole * (1 - _LARGEST_LOSS), 2)


def needed_capability(dtype: str, quantization: str | None) -> int:
    """The lowest compute capability, times ten, on which vLLM runs such a model.

    vLLM with CUDA 13 starts at 7.5; bfloat16 and vLLM's kernels for 4-bit weights need 8.0.
    """
    return 80 if dtype == "bfloat16" or quantization in ("mxfp4", "nvfp4") else 75


def parallel_sizes(query_heads: int, kv_heads: Iterable[int], gpus: int) -> list[int]:
    """Powers of two up to ``gpus`` that divide the attention heads.

    ``kv_heads`` are the numbers of key-value heads of the target's layers; vLLM replicates them
    when there are fewer than GPUs.
    """
    numbers = set(kv_heads)
    return [
        size
        for size in (2**power for power in range(gpus.bit_length()))
        if query_heads % size == 0 and all(max(n, size) % min(n, size) == 0 for n in numbers)
    ]


def cuda_visible_gib(stated_gib: float, gpu: str) -> float:
    """GiB that CUDA reports for a GPU of ``stated_gib``: the same, unless the number is from the
    data sheet or nvidia-smi, which include the driver's memory."""
    for visible in VISIBLE_GIB.get(gpu, ()):
        if visible < stated_gib <= visible * (1 + _LARGEST_LOSS):
            return visible
    return stated_gib


def round_up(number: int, multiple: int) -> int:
    """The next multiple of ``multiple`` from ``number``."""
    return -(-number // multiple) * multiple


_SERVED_AS_STORED = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16"}

WIDE_BYTES = {"F32": 4, "F64": 8}
"""safetensors dtypes wider than the dtypes that vLLM serves in."""


def element_bytes(dtype: str) -> int:
    """Bytes per element of this dtype."""
    return 4 if dtype in ("float32", "float") else 2


def served_dtype(saved: str) -> str:
    """The dtype in which vLLM computes with weights that were saved as ``saved``."""
    return _SERVED_AS_STORED.get(saved.removeprefix("torch."), "bfloat16")
