"""A plain EAGLE-3 head started as P-EAGLE.

With parallel_drafting vLLM requires a placeholder token and mask_hidden, which such a head lacks,
and refuses to start.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, is_parallel, location_of, masked, sibling_pair
from peagle.findings import Finding, error

CODE = "eagle3-as-p-eagle"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error when the pair drafts in parallel and nothing marks the head as P-EAGLE."""
    head = head_of(case)
    if head is None or not is_parallel(case) or head.parallel_drafting:
        return
    if masked(case) and head.speculators != "eagle3":
        return
    message = f"{location_of(case)} is a plain EAGLE-3 head, but the pair starts it as P-EAGLE"
    fix = f"use the pair {sibling_pair(case, parallel=False)}, or a P-EAGLE head"
    yield error(CODE, "drafter", message, fix)
