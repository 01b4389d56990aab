"""A head in the speculators format that is neither eagle3 nor peagle.

vLLM refuses an unknown type at start, and starts another kind of drafter for other known types.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of
from peagle.findings import Finding, error

CODE = "speculators-type"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for any other speculators_model_type."""
    head = head_of(case)
    if head is not None and head.speculators not in (None, "eagle3", "peagle"):
        message = (
            f"{location_of(case)} has speculators_model_type {head.speculators!r}, neither "
            "eagle3 nor peagle"
        )
        yield error(CODE, "drafter", message, "use an EAGLE-3 or P-EAGLE head")
