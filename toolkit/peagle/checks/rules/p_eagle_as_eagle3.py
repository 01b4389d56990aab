"""A P-EAGLE head started as a plain EAGLE-3 head.

vLLM loads it without its mask, with one log line, and drafts token by token from states that the
head was not trained on: slow, without an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, is_eagle, is_parallel, location_of, masked, sibling_pair
from peagle.findings import Finding, error

CODE = "p-eagle-as-eagle3"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error when the pair drafts token by token with a P-EAGLE head."""
    head = head_of(case)
    if head is None or not is_eagle(case) or is_parallel(case):
        return
    has_mask = masked(case)
    if has_mask or (has_mask is None and head.parallel_drafting):
        message = f"{location_of(case)} is a P-EAGLE head, but the pair starts it as plain EAGLE-3"
        fix = f"use the pair {sibling_pair(case, parallel=True)}, or an EAGLE-3 head"
        yield error(CODE, "drafter", message, fix)
