"""A P-EAGLE head that turns auxiliary hidden states off.

vLLM has no parallel drafting without them (use_aux_hidden_state) and refuses to start.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, is_parallel, location_of
from peagle.findings import Finding, error

CODE = "auxiliary-states-off"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for a P-EAGLE head whose config turns them off."""
    head = head_of(case)
    if head is None or not is_parallel(case) or head.uses_auxiliary:
        return
    if head.parallel_drafting:
        message = f"{location_of(case)} drafts in parallel but sets use_aux_hidden_state to false"
        fix = "set eagle_config.use_aux_hidden_state to true if the head was trained with it"
        yield error(CODE, "drafter", message, fix)
