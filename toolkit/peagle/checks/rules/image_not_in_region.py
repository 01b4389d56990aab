"""A vLLM version whose AWS image is not in the endpoint's region.

SageMaker fails to pull it.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("image-not-in-region", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    runtime, region = case.runtime, case.region
    if case.image is not None or region is None or region not in case.runtimes.accounts:
        return
    if not runtime.regions or region in runtime.regions:
        return
    others = [r.vllm for r in case.runtimes.runtimes if not r.regions or region in r.regions]
    fix = f"use --vllm {others[-1]}" if others else "use another --region"
    message = f"AWS has no image of vLLM {runtime.vllm} in {region}"
    yield RULE.error("region", message, f"{fix}, or --image")
