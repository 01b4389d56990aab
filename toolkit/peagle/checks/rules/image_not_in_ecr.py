"""An image outside ECR, from which SageMaker cannot pull.

CreateModel accepts the name of any registry, and the endpoint then fails.
"""

from peagle.case import Case
from peagle.checks.facts import parse_ecr_image
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("image-not-in-ecr", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    if case.image is not None and parse_ecr_image(case.image) is None:
        message = f"SageMaker pulls images from ECR only; {case.image} is not in ECR"
        fix = "push the image to ECR and pass the address that this command prints with --image"
        has_tag = ":" in case.image.rpartition("/")[2]
        name = case.image if has_tag and "/" not in case.image else "NAME:TAG"
        yield RULE.error("image", message, Fix(fix, ("peagle", "image", "push", name)))
