"""A vLLM version without an image.

SageMaker fails to pull an image that AWS never published.
"""

from peagle.case import Case, nearest_version
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules.vllm_below_minimum import minimum_of
from peagle.errors import Fix
from peagle.findings import Finding
from peagle.vllm import versions

RULE = Rule("runtime-unknown", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    found = unknown_version(case, takes_image=True)
    if found is not None:
        yield found


def unknown_version(case: Case, *, takes_image: bool) -> Finding | None:
    """The finding if the version has no image; ``takes_image``: the user may name another one."""
    known = [versions.normalize(runtime.vllm) for runtime in case.runtimes.runtimes]
    version = case.runtime.vllm
    if version in known or case.image is not None:
        return None
    who, minimum = minimum_of(case.target, case.drafter)
    recent = [name for name in known if versions.compare(name, minimum) >= 0]
    if recent:
        nearest = nearest_version(version, recent)
        own = ", or your own image with --image" if takes_image else ""
        fix = Fix(f"use --vllm {nearest}{own}", options=("--vllm", nearest))
    elif takes_image:
        fix = Fix("use your own image with --image")
    else:
        fix = Fix(f"choose another pair: no image is new enough for {who}")
    return RULE.error("vllm", f"the catalogue has no image with vLLM {version}", fix)
