"""An FP8 KV cache on vLLM's Triton backend on a GPU without FP8.

The backend refuses compute capabilities below 8.9 at start; before vLLM's pull request 43914 its
kernels failed to compile. FlashAttention has no FP8 cache on these GPUs, so vLLM must select
FlashInfer, which it does not do for every target.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.schema import Architecture
from peagle.checks.facts import entries, setting, shape_of, version_finding
from peagle.findings import Finding

CODE = "fp8-cache-triton"
ABOUT = "version"
VLLM_NOTICES = "at start"

E5M2 = "fp8_e5m2"
FLASHINFER_CACHES = ("fp8", "fp8_e4m3", E5M2)
"""FP8 cache dtypes of FlashInfer; only Triton supports the others."""

_FLASHINFER_HEADS = (64, 128, 256, 512)
"""Head sizes for which FlashInfer has kernels (get_supported_head_sizes)."""

_FLASHINFER_FROM = 80
_TRITON_FROM = 89
"""Minimum compute capabilities, times ten: of FlashInfer, and of an FP8 cache on Triton."""


def check(case: Case) -> Iterator[Finding]:
    """A finding when vLLM would use Triton for an FP8 cache on an older GPU."""
    kind, instance = str(setting(case, "kv-cache-dtype") or ""), case.instance
    if case.on_cpu or instance is None or not kind.startswith("fp8"):
        return
    capability = instance.capability
    if capability < _TRITON_FROM and _uses_triton(case, kind, capability):
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", f"--kv-cache-dtype {kind} on {instance.gpu}")


def flashinfer_supports(shape: Architecture) -> bool:
    """Whether FlashInfer supports the target before Blackwell: not GPT-OSS, which needs attention
    sinks, and not every head size."""
    sizes = {group.head_dim for group in shape.attention}
    return not shape.class_name.startswith("GptOss") and sizes <= set(_FLASHINFER_HEADS)


def _uses_triton(case: Case, kind: str, capability: int) -> bool:
    """Whether vLLM uses Triton before Ada, by request or as the only backend left."""
    backend, shape = setting(case, "attention-backend"), shape_of(case)
    if backend:
        return str(backend).upper() == "TRITON_ATTN"
    flashinfer = kind in FLASHINFER_CACHES and capability >= _FLASHINFER_FROM
    return not flashinfer or not flashinfer_supports(shape) or _forces_triton(shape)


def _forces_triton(shape: Architecture) -> bool:
    """Whether vLLM forces Triton without FlashAttention 4, as for Gemma-4's two head sizes
    (Gemma4Config of model_executor/models/config.py)."""
    sizes = {group.head_dim for group in shape.attention}
    return shape.class_name.startswith("Gemma4") and len(sizes) > 1
