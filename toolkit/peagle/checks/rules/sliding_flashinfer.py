"""A target with sliding-window layers on FlashInfer on Hopper.

vLLM's FlashInfer backend refuses them there after the weights are loaded. vLLM also selects
FlashInfer by itself: with an FP8 cache for heads wider than FlashAttention 3 supports, such as
Gemma-4's, and with fp8_e5m2, which FlashAttention does not support, for all targets.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, setting, shape_of, version_finding
from peagle.checks.rules.fp8_cache_triton import E5M2, FLASHINFER_CACHES, flashinfer_supports
from peagle.findings import Finding

CODE = "sliding-flashinfer"
ABOUT = "version"
VLLM_NOTICES = "at start"

_HOPPER = "sm_90"
_WIDEST_FOR_FLASH_ATTENTION = 256
"""Head size (FlashAttention 3; version 4 has no FP8 cache)."""


def check(case: Case) -> Iterator[Finding]:
    """A finding where vLLM would run sliding layers on FlashInfer."""
    if case.on_cpu or case.instance is None or case.instance.gpu_architecture != _HOPPER:
        return
    if not any(group.kind == "sliding" for group in shape_of(case).attention):
        return
    if argument := _selects_flashinfer(case):
        for entry in entries(case, CODE):
            yield version_finding(entry, "vllm", f"--{argument}")


def _selects_flashinfer(case: Case) -> str | None:
    """The argument that makes vLLM select FlashInfer, if any."""
    backend = setting(case, "attention-backend")
    if backend:
        return "attention-backend" if str(backend).upper() == "FLASHINFER" else None
    kind, shape = setting(case, "kv-cache-dtype"), shape_of(case)
    if kind not in FLASHINFER_CACHES or not flashinfer_supports(shape):
        return None
    widest = max(group.head_dim for group in shape.attention)
    unsupported = kind == E5M2 or widest > _WIDEST_FOR_FLASH_ATTENTION
    return "kv-cache-dtype" if unsupported else None
