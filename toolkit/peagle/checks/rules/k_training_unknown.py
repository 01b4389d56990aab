"""It is known for which K a parallel head was trained.

Where it is not, too large a K cannot be distinguished from a good one before it is measured.
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
    """A note when another K than the recommended one was chosen for such a head."""
    drafter = case.drafter
    if drafter is None or not is_parallel(case) or k_trained(case) is not None:
        return
    if case.k != drafter.k_recommended:
        message = f"it is not known which K {drafter.title} was trained for"
        fix = f"if few drafts are accepted, try --k {drafter.k_recommended}"
        yield note(CODE, "k", message, fix)
