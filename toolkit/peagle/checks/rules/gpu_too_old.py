"""A GPU that does not support the target's dtype or quantization.

vLLM refuses bfloat16 and 4-bit weights at start on a GPU without support for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.findings import Finding, error
from peagle.vllm.gpus import needed_capability

CODE = "gpu-too-old"
ABOUT = "hardware"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for an older GPU."""
    instance = case.instance
    if instance is None or case.on_cpu:
        return
    needed = needed_capability(case.target.dtype, case.target.quantization)
    if instance.capability < needed:
        message = (
            f"{case.target.title} needs a GPU of compute capability {needed / 10}, but the "
            f"{instance.gpu} of {instance.type} has {instance.capability / 10}"
        )
        fix = "leave --instance-type out to use the cheapest type that fits"
        yield error(CODE, "instance_type", message, fix)
