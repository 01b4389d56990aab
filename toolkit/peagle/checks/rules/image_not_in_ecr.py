"""The image is in ECR, from which SageMaker pulls images.

CreateModel takes the name of any registry, and the endpoint then fails.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import in_ecr
from peagle.findings import Finding, error

CODE = "image-not-in-ecr"
ABOUT = "hardware"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error for an image of another registry."""
    if case.image is not None and in_ecr(case.image) is None:
        message = f"SageMaker takes images from ECR only, and {case.image} is not one"
        fix = "push it there: `peagle image push NAME`, and give the address that it prints"
        yield error(CODE, "image", message, fix)
