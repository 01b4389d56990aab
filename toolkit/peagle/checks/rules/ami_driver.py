"""A host AMI whose driver is too old for the image's CUDA.

A driver of the same CUDA major version works; with an older major version vLLM finds no GPU.
"""

from peagle.case import Case
from peagle.catalog.tables import Ami
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("ami-driver", about="hardware", vllm_notices="at start")


def check(case: Case) -> Findings:
    ami = ami_of(case)
    if ami is not None and cuda_version(ami.cuda)[0] < cuda_version(case.runtime.cuda)[0]:
        message = (
            f"{ami.name} has driver {ami.driver} for CUDA {ami.cuda}; the image of vLLM "
            f"{case.runtime.vllm} uses CUDA {case.runtime.cuda}"
        )
        yield RULE.error("ami", message, planned_ami(case))


def planned_ami(case: Case) -> Fix:
    """To use the AMI of the case's runtime."""
    name = case.runtime.ami
    return Fix(f"use --ami {name}", options=("--ami", name) if name else ())


def ami_of(case: Case) -> Ami | None:
    """The case's host AMI, if the catalogue has it."""
    return next((ami for ami in case.runtimes.amis if ami.name == case.ami), None)


def cuda_version(text: str) -> tuple[int, ...]:
    """``12.8`` as numbers."""
    return tuple(map(int, text.split(".")))
