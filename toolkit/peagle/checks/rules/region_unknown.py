"""A region without AWS's vLLM images.

SageMaker pulls images only from ECR in the endpoint's region.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.tables import region_hint
from peagle.findings import Finding, error

CODE = "region-unknown"
ABOUT = "hardware"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error that names the nearest known region, unless the image is the user's own."""
    region, known = case.region, case.runtimes.accounts
    if region is None or region in known or case.image is not None:
        return
    message = f"{region!r} is not a region with AWS's vLLM images"
    yield error(CODE, "region", message, region_hint(region, known))
