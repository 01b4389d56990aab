"""A P-EAGLE head is not started as a plain EAGLE-3 head.

vLLM then loads it without its mask, with one line in the log. It drafts, one token after the other
and from states that it was not trained on, and nothing tells that it is slow for no reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, is_eagle, is_parallel, like, location_of, masked
from peagle.findings import Finding, error

CODE = "p-eagle-as-eagle3"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error when the pair drafts token by token and the head was made to draft in parallel."""
    head = head_of(case)
    if head is None or not is_eagle(case) or is_parallel(case):
        return
    has_mask = masked(case)
    if has_mask or (has_mask is None and head.parallel_drafting):
        message = f"{location_of(case)} is a P-EAGLE head, and the pair starts it as plain EAGLE-3"
        fix = f"name the pair {like(case, parallel=True)}, or give an EAGLE-3 head"
        yield error(CODE, "drafter", message, fix)
