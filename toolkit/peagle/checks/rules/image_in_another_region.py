"""An image in another region than the endpoint.

SageMaker does not pull from another region's ECR; the endpoint fails after some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import in_ecr
from peagle.findings import Finding, error

CODE = "image-in-another-region"
ABOUT = "hardware"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error when the two regions differ."""
    found = in_ecr(case.image) if case.image is not None else None
    if found is None or case.region is None or found.region == case.region:
        return
    message = f"the image is in {found.region}, the endpoint in {case.region}"
    fix = f"push it to ECR in {case.region}, or use --region {found.region}"
    yield error(CODE, "image", message, fix)
