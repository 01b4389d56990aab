"""A vLLM version without an image.

SageMaker fails to pull an image that AWS never published.
"""

from peagle.case import Case, nearest_version
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules.vllm_below_minimum import minimum_of
from peagle.vllm import versions

RULE = Rule("runtime-unknown", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    known = [versions.normalize(runtime.vllm) for runtime in case.runtimes.runtimes]
    version = case.runtime.vllm
    if version in known or case.image is not None:
        return
    _, minimum = minimum_of(case.target, case.drafter)
    recent = [name for name in known if versions.compare(name, minimum) >= 0]
    near = f"--vllm {nearest_version(version, recent)}, or " if recent else ""
    fix = f"use {near}your own image with --image"
    yield RULE.error("vllm", f"the catalogue has no image with vLLM {version}", fix)
