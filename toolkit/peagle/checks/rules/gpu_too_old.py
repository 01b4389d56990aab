"""The GPU computes in the target's type, and vLLM's kernels run on it.

vLLM refuses bfloat16 and 4-bit weights on a GPU without them when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.schema import Target
from peagle.findings import Finding, error

CODE = "gpu-too-old"
ABOUT = "hardware"
VLLM_NOTICES = "at start"

OLDEST_GPU = 75
"""Oldest compute capability that vLLM runs on with CUDA 13, times ten."""

OLDEST_GPU_FOR_BFLOAT16 = 80
"""Oldest that computes in bfloat16, and that vLLM's kernels for 4-bit weights take."""


def check(case: Case) -> Iterator[Finding]:
    """An error for an older GPU."""
    instance = case.instance
    if instance is None or case.on_cpu:
        return
    capability, oldest = capability_of(instance.gpu_architecture), oldest_gpu(case.target)
    if capability < oldest:
        message = (
            f"{case.target.title} needs a GPU of compute capability {oldest / 10}, and the "
            f"{instance.gpu} of {instance.type} has {capability / 10}"
        )
        fix = "leave --instance-type out to get the cheapest that fits"
        yield error(CODE, "instance_type", message, fix)


def capability_of(architecture: str) -> int:
    """``sm_90`` is 90."""
    return int(architecture.removeprefix("sm_"))


def oldest_gpu(target: Target) -> int:
    """The oldest compute capability, times ten, on which the target runs."""
    small_numbers = target.dtype == "bfloat16" or target.quantization in ("mxfp4", "nvfp4")
    return OLDEST_GPU_FOR_BFLOAT16 if small_numbers else OLDEST_GPU
