"""A region without AWS's vLLM images, where the image is not the user's own.

SageMaker pulls images only from ECR in the endpoint's region.
"""

from peagle.case import Case
from peagle.catalog.tables import region_hint
from peagle.checks.registry import Findings, Rule

RULE = Rule("region-unknown", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    region, known = case.region, case.runtimes.accounts
    if region is not None and region not in known and case.image is None:
        message = f"{region!r} is not a region with AWS's vLLM images"
        yield RULE.error("region", message, region_hint(region, known))
