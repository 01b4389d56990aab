"""A vLLM version without an image.

SageMaker fails to pull an image that AWS never published.
"""

from peagle.case import Case, nearest_version
from peagle.checks.registry import Findings, Rule
from peagle.vllm import versions

RULE = Rule("runtime-unknown", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    known = [versions.normalize(runtime.vllm) for runtime in case.runtimes.runtimes]
    version = case.runtime.vllm
    if version not in known and case.image is None:
        fix = f"use --vllm {nearest_version(version, known)}, or your own image with --image"
        yield RULE.error("vllm", f"the catalogue has no image with vLLM {version}", fix)
