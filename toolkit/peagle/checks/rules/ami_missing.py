"""No host AMI given where SageMaker's default AMI has too old a driver for the image.

CUDA 13 images do not start on the default AMI of some instance families: vLLM finds no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case, family_of
from peagle.findings import Finding, error

CODE = "ami-missing"
ABOUT = "hardware"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error when no AMI is given for one of these families."""
    if case.instance is None or case.ami is not None or case.on_cpu:
        return
    family = family_of(case.instance.type)
    if family in case.runtimes.ami_families:
        message = f"the image uses CUDA {case.runtime.cuda}; the default AMI of {family} is older"
        yield error(CODE, "ami", message, f"use the AMI {case.runtime.ami}")
