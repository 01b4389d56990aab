"""A host AMI whose driver is too old for the image's CUDA.

A driver of the same CUDA major version works; with an older major version vLLM finds no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.findings import Finding, error

CODE = "ami-driver"
ABOUT = "hardware"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for an AMI with an older CUDA major version."""
    ami = next((ami for ami in case.runtimes.amis if ami.name == case.ami), None)
    if ami is None or _major(ami.cuda) >= _major(case.runtime.cuda):
        return
    message = (
        f"{ami.name} has driver {ami.driver} for CUDA {ami.cuda}; the image of vLLM "
        f"{case.runtime.vllm} uses CUDA {case.runtime.cuda}"
    )
    yield error(CODE, "ami", message, f"use the AMI {case.runtime.ami}")


def _major(cuda: str) -> int:
    return int(cuda.partition(".")[0])
