"""A host AMI that SageMaker does not have for GPU endpoints.

CreateEndpointConfig refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.findings import Finding, error

CODE = "ami-unknown"
ABOUT = "hardware"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error that names the AMI for the image."""
    known = [ami.name for ami in case.runtimes.amis]
    if case.ami is None or not known or case.ami in known:
        return
    fix = f"use {case.runtime.ami}, which the image of vLLM {case.runtime.vllm} needs"
    yield error(CODE, "ami", f"SageMaker has no AMI {case.ami!r} for endpoints", fix)
