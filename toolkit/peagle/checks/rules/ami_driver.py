"""The driver of the host AMI is new enough for the image's CUDA.

Within one major version of CUDA an older driver will do; across two the engine finds no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.findings import Finding, error

CODE = "ami-driver"
ABOUT = "hardware"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for an AMI of an older major version of CUDA."""
    ami = next((ami for ami in case.runtimes.amis if ami.name == case.ami), None)
    if ami is None or _major(ami.cuda) >= _major(case.runtime.cuda):
        return
    message = (
        f"{ami.name} has driver {ami.driver} for CUDA {ami.cuda}, and the image of vLLM "
        f"{case.runtime.vllm} is on CUDA {case.runtime.cuda}"
    )
    yield error(CODE, "ami", message, f"use the AMI {case.runtime.ami}")


def _major(cuda: str) -> int:
    return int(cuda.partition(".")[0])
