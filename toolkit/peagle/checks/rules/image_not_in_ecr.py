"""An image outside ECR, from which SageMaker cannot pull.

CreateModel accepts the name of any registry, and the endpoint then fails.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import in_ecr
from peagle.errors import Fix
from peagle.findings import Finding, error

CODE = "image-not-in-ecr"
ABOUT = "hardware"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error for an image of another registry."""
    if case.image is not None and in_ecr(case.image) is None:
        message = f"SageMaker pulls images from ECR only; {case.image} is not in ECR"
        fix = Fix(
            "push the image to ECR and pass the address that this command prints with --image",
            ("peagle", "image", "push", case.image),
        )
        yield error(CODE, "image", message, fix)
