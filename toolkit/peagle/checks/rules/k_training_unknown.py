"""A K other than the recommended one for a P-EAGLE head whose trained K is unknown.

Only a measurement shows whether such a K is too large.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import is_parallel
from peagle.checks.rules.k_above_trained import k_trained
from peagle.findings import Finding, note

CODE = "k-training-unknown"
ABOUT = "load"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A note for such a K."""
    drafter = case.drafter
    if drafter is None or not is_parallel(case) or k_trained(case) is not None:
        return
    if case.k != drafter.k_recommended:
        message = f"the trained K of {drafter.title} is unknown"
        fix = f"if few drafts are accepted, try --k {drafter.k_recommended}"
        yield note(CODE, "k", message, fix)
