"""A head in the speculators format is of a type that the pair can start: eagle3 or peagle.

vLLM refuses a type that it does not know when it starts, and makes another kind of drafter of one
that it does.
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
            f"{location_of(case)} has the speculators_model_type {head.speculators!r}, which is "
            "neither eagle3 nor peagle"
        )
        yield error(CODE, "drafter", message, "give an EAGLE-3 or P-EAGLE head")
