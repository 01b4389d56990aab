"""A cache in 8-bit floats is not left to vLLM's Triton backend on a GPU that has no such numbers.

That backend refuses one below compute capability 8.9 when it starts; before vLLM's pull request
43914 it failed while it compiled its kernels. There FlashAttention has no such cache, so that all
depends on FlashInfer, which vLLM does not take for every target.
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
"""Caches in 8-bit floats that FlashInfer has; Triton alone has the others."""

_FLASHINFER_HEADS = (64, 128, 256, 512)
"""Numbers in one attention head for which FlashInfer has kernels (get_supported_head_sizes)."""

_FLASHINFER_FROM = 80
_TRITON_FROM = 89
"""Oldest compute capabilities, times ten: of FlashInfer, and of an 8-bit cache on Triton."""


def check(case: Case) -> Iterator[Finding]:
    """A finding where vLLM would keep such a cache with Triton on an older GPU."""
    kind, instance = str(setting(case, "kv-cache-dtype") or ""), case.instance
    if case.on_cpu or instance is None or not kind.startswith("fp8"):
        return
    capability = instance.capability
    if capability < _TRITON_FROM and _takes_triton(case, kind, capability):
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", f"--kv-cache-dtype {kind} on {instance.gpu}")


def flashinfer_can(shape: Architecture) -> bool:
    """Whether FlashInfer runs such a target before Blackwell: it has no sinks there, which GPT-OSS
    needs, and not every size of heads."""
    sizes = {group.head_dim for group in shape.attention}
    return not shape.class_name.startswith("GptOss") and sizes <= set(_FLASHINFER_HEADS)


def _takes_triton(case: Case, kind: str, capability: int) -> bool:
    """Whether vLLM takes Triton on a GPU before Ada, for it is asked to or nothing else is left."""
    backend, shape = setting(case, "attention-backend"), shape_of(case)
    if backend:
        return str(backend).upper() == "TRITON_ATTN"
    flashinfer = kind in FLASHINFER_CACHES and capability >= _FLASHINFER_FROM
    return not flashinfer or not flashinfer_can(shape) or _is_forced(shape)


def _is_forced(shape: Architecture) -> bool:
    """Whether vLLM takes Triton where FlashAttention 4 is missing, as for Gemma-4's heads of two
    sizes (Gemma4Config of model_executor/models/config.py)."""
    sizes = {group.head_dim for group in shape.attention}
    return shape.class_name.startswith("Gemma4") and len(sizes) > 1
