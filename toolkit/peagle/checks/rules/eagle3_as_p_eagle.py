"""A plain EAGLE-3 head is not started as P-EAGLE.

With parallel_drafting vLLM asks for a placeholder token and for mask_hidden, which such a head does
not have, and refuses to start.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, is_parallel, like, location_of, masked
from peagle.findings import Finding, error

CODE = "eagle3-as-p-eagle"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error when the pair drafts in parallel and the head shows no sign that it can."""
    head = head_of(case)
    if head is None or not is_parallel(case) or head.parallel_drafting:
        return
    if masked(case) and head.speculators != "eagle3":
        return
    message = f"{location_of(case)} is a plain EAGLE-3 head, and the pair starts it as P-EAGLE"
    fix = f"name the pair {like(case, parallel=False)}, or give a P-EAGLE head"
    yield error(CODE, "drafter", message, fix)
