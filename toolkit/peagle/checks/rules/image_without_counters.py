"""An image that exposes no speculation counters, so that deploy cannot verify acceptance.

AWS's stock image drafts, but its endpoints do not expose the engine's metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import in_ecr
from peagle.errors import Fix
from peagle.findings import Finding, warning

CODE = "image-without-counters"
ABOUT = "hardware"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A warning for an image from one of AWS's own accounts."""
    found = in_ecr(case.image) if case.image is not None else None
    aws_accounts = case.runtimes.accounts.values()
    if case.drafter is None or found is None or found.account not in aws_accounts:
        return
    message = (
        "the stock image exposes no speculation counters; deploy cannot verify acceptance (exit 3)"
    )
    fix = Fix(
        "build an image with counters and pass its address with --image",
        ("peagle", "image", "build", *_pair_arguments(case), "--push"),
    )
    yield warning(CODE, "image", message, fix)


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
