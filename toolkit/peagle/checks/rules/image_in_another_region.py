"""An image in a different region from the endpoint's.

SageMaker does not pull from another region's ECR; the endpoint fails after some minutes.
"""

from peagle.case import Case
from peagle.checks.facts import parse_ecr_image
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("image-in-another-region", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    image, region = parse_ecr_image(case.image), case.region
    if image is not None and region is not None and image.region != region:
        message = f"the image is in {image.region}, the endpoint in {region}"
        fix = Fix(
            f"push it to ECR in {region}, or use --region {image.region}",
            options=("--region", image.region),
        )
        yield RULE.error("image", message, fix)
