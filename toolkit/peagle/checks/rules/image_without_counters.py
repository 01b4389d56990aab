"""An image that exposes no speculation counters, so that deploy cannot verify acceptance.

AWS's stock image drafts, but its endpoints do not expose the engine's metrics.
"""

from peagle.case import Case
from peagle.checks.facts import parse_ecr_image
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("image-without-counters", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    image = parse_ecr_image(case.image)
    if case.drafter is None or image is None:
        return
    if image.account in case.runtimes.accounts.values():
        message = (
            "the stock image exposes no speculation counters; deploy cannot verify acceptance "
            "(exit 3)"
        )
        fix = "build an image with counters and pass its address with --image"
        command = ("peagle", "image", "build", *_pair_arguments(case), "--push")
        yield RULE.warning("image", message, Fix(fix, command))


def _pair_arguments(case: Case) -> list[str]:
    """The pair as command-line arguments."""
    drafter, target = case.drafter, case.target
    if drafter is None:
        return [target.short_name]
    known = any((d.name, d.weights) == (drafter.name, drafter.weights) for d in target.drafters)
    if known or drafter.weights is None:
        return [f"{target.short_name}+{drafter.name}"]
    revision = f"@{drafter.revision}" if drafter.revision else ""
    kind = "" if drafter.parallel_drafting else "+eagle3"
    return [f"{target.short_name}{kind}", "--drafter", f"{drafter.weights}{revision}"]
