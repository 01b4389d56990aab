"""The host AMI is named where SageMaker's default has too old a driver for the image.

Images on CUDA 13 do not start on the default AMI of nine families: the engine finds no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case, family_of
from peagle.findings import Finding, error

CODE = "ami-missing"
ABOUT = "hardware"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for no AMI on one of these families."""
    if case.instance is None or case.ami is not None or case.on_cpu:
        return
    family = family_of(case.instance.type)
    if family in case.runtimes.ami_families:
        message = (
            f"the image is on CUDA {case.runtime.cuda}, and the default AMI of {family} is older"
        )
        yield error(CODE, "ami", message, f"use the AMI {case.runtime.ami}")
