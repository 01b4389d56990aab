"""A GPU that the CUDA version of the image or host AMI does not support.

Blackwell needs CUDA 12.8 (sm_100, sm_120) or 12.9 (sm_103). With an older version vLLM finds no
GPU, or no kernels for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.rules import ami_driver
from peagle.findings import Finding, error

CODE = "gpu-too-new"
ABOUT = "hardware"
VLLM_NOTICES = "at start"

FIRST_CUDA = {"sm_100": "12.8", "sm_103": "12.9", "sm_120": "12.8"}
"""GPU architecture -> first CUDA version that supports it (release notes of CUDA 12.8 and 12.9).
Every image of the catalogue supports the architectures that are not listed."""


def check(case: Case) -> Iterator[Finding]:
    """An error for an older CUDA version in the image or the AMI."""
    instance = case.instance
    first = FIRST_CUDA.get(instance.gpu_architecture) if instance else None
    if instance is None or first is None or case.on_cpu:
        return
    ami = next((ami for ami in case.runtimes.amis if ami.name == case.ami), None)
    parts = {f"the image of vLLM {case.runtime.vllm}": case.runtime.cuda}
    if ami is not None and not any(ami_driver.check(case)):
        parts[f"the AMI {ami.name}"] = ami.cuda
    for who, cuda in parts.items():
        if _number(cuda) < _number(first):
            message = f"the {instance.gpu} of {instance.type} needs CUDA {first}; {who} has {cuda}"
            fix = "use a newer --vllm with its AMI, or leave --ami out"
            yield error(CODE, "instance_type", message, fix)


def _number(cuda: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cuda.split("."))
