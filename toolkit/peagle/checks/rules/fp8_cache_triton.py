"""An FP8 KV cache on vLLM's Triton backend on a GPU without FP8.

The backend rejects compute capabilities below 8.9 at start; before vLLM's pull request 43914 its
kernels failed to compile. FlashAttention has no FP8 cache on these GPUs, so vLLM must select
FlashInfer, which it does not do for every target.
"""

from peagle.case import Case
from peagle.catalog.schema import Architecture
from peagle.checks.registry import Findings, Rule

RULE = Rule("fp8-cache-triton", about="version", vllm_notices="at start")

E5M2 = "fp8_e5m2"
FLASHINFER_CACHES = ("fp8", "fp8_e4m3", E5M2)
"""FP8 cache dtypes of FlashInfer; only Triton supports the others."""

_FLASHINFER_HEADS = {64, 128, 256, 512}
"""Head sizes for which FlashInfer has kernels (get_supported_head_sizes)."""

_FLASHINFER_FROM = 80
_TRITON_FROM = 89
"""Minimum compute capabilities, times ten: of FlashInfer, and of an FP8 cache on Triton."""


def check(case: Case) -> Findings:
    kind, instance = str(case.setting("kv-cache-dtype") or ""), case.instance
    if case.on_cpu or instance is None or not kind.startswith("fp8"):
        return
    if instance.capability < _TRITON_FROM and _uses_triton(case, kind, instance.capability):
        yield from RULE.by_version(case, "vllm", f"--kv-cache-dtype {kind} on {instance.gpu}")


def flashinfer_supports(target: Architecture) -> bool:
    """Whether FlashInfer supports the target before Blackwell: not GPT-OSS, which needs attention
    sinks, and not every head size."""
    return not target.class_name.startswith("GptOss") and _head_sizes(target) <= _FLASHINFER_HEADS


def _uses_triton(case: Case, kind: str, capability: int) -> bool:
    """Whether vLLM uses Triton before Ada, by request or as the only backend left."""
    backend, target = case.setting("attention-backend"), case.architecture
    if backend:
        return str(backend).upper() == "TRITON_ATTN"
    # vLLM forces Triton without FlashAttention 4 for Gemma-4's two head sizes (Gemma4Config of
    # model_executor/models/config.py).
    forced = target.class_name.startswith("Gemma4") and len(_head_sizes(target)) > 1
    flashinfer = kind in FLASHINFER_CACHES and capability >= _FLASHINFER_FROM
    return forced or not flashinfer or not flashinfer_supports(target)


def _head_sizes(target: Architecture) -> set[int]:
    return {group.head_dim for group in target.attention}
