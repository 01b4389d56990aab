"""A target with sliding-window layers on FlashInfer on Hopper.

vLLM's FlashInfer backend rejects them there after the weights are loaded. vLLM also selects
FlashInfer by itself: with an FP8 cache for heads wider than FlashAttention 3 supports, such as
Gemma-4's, and with fp8_e5m2, which FlashAttention does not support, for all targets.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules.fp8_cache_triton import E5M2, FLASHINFER_CACHES, flashinfer_supports

RULE = Rule("sliding-flashinfer", about="version", vllm_notices="at start")

_HOPPER = "sm_90"
_WIDEST_FOR_FLASH_ATTENTION = 256
"""Head size (FlashAttention 3; version 4 has no FP8 cache)."""


def check(case: Case) -> Findings:
    if case.on_cpu or case.instance is None or case.instance.gpu_architecture != _HOPPER:
        return
    argument = _selects_flashinfer(case)
    if argument and any(group.kind == "sliding" for group in case.architecture.attention):
        yield from RULE.by_version(case, "vllm", f"--{argument}")


def _selects_flashinfer(case: Case) -> str | None:
    """The argument that makes vLLM select FlashInfer, if any."""
    backend = case.setting("attention-backend")
    if backend:
        return "attention-backend" if str(backend).upper() == "FLASHINFER" else None
    kind, target = case.setting("kv-cache-dtype"), case.architecture
    if kind not in FLASHINFER_CACHES or not flashinfer_supports(target):
        return None
    widest = max(group.head_dim for group in target.attention)
    unsupported = kind == E5M2 or widest > _WIDEST_FOR_FLASH_ATTENTION
    return "kv-cache-dtype" if unsupported else None
