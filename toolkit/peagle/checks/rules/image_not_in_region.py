"""A vLLM version whose AWS image is not in the endpoint's region.

SageMaker fails to pull it.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("image-not-in-region", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    runtime, region = case.runtime, case.region
    if case.image is not None or region is None or region not in case.runtimes.accounts:
        return
    if not runtime.regions or region in runtime.regions:
        return
    others = [r.vllm for r in case.runtimes.runtimes if not r.regions or region in r.regions]
    newest = others[-1] if others else ""
    fix = Fix(f"use --vllm {newest}, or --image", options=("--vllm", newest))
    if not newest:
        fix = Fix("use another --region, or --image")
    message = f"AWS has no image of vLLM {runtime.vllm} in {region}"
    yield RULE.error("region", message, fix)
