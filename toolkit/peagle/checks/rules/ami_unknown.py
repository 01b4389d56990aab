"""A host AMI that SageMaker does not have for GPU endpoints.

CreateEndpointConfig rejects it.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("ami-unknown", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    known = [ami.name for ami in case.runtimes.amis]
    if case.ami is not None and known and case.ami not in known:
        name = case.runtime.ami
        fix = Fix(
            f"use --ami {name}, which the image of vLLM {case.runtime.vllm} needs",
            options=("--ami", name),
        )
        yield RULE.error("ami", f"SageMaker has no AMI {case.ami!r} for endpoints", fix)
