"""An image that is named by its tag, not by its digest.

Anyone who may push to the repository can move the tag: the next start, or the next instance of the
same endpoint, may run a different image from the one that was proved.
"""

from peagle.case import Case
from peagle.checks.facts import is_aws_image, parse_ecr_image
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("image-by-tag", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    image = parse_ecr_image(case.image)
    if image is None or image.digest is not None:
        return
    if is_aws_image(case.image, case.runtimes):
        message = (
            "the catalogue has no digest of AWS's image, so the plan names a tag, which can move"
        )
        command = ("peagle", "catalog", "refresh", "--digests", "--region", image.region)
        yield RULE.note("image", message, Fix("fetch the digests", command))
    else:
        message = f"{case.image} is named by its tag, which can move"
        yield RULE.note("image", message, "use the address with its digest, as a push prints it")
