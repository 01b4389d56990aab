"""A P-EAGLE head without mask_hidden, the tensor of its masked slots.

vLLM refuses it when it loads the weights, after minutes on a paid instance.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.heads import MASK
from peagle.checks.facts import head_of, is_parallel, location_of, masked
from peagle.findings import Finding, error

CODE = "head-without-mask"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error when the head's headers do not list the tensor."""
    head = head_of(case)
    if head is None or not is_parallel(case) or not head.parallel_drafting:
        return
    if masked(case) is False:
        message = f"{location_of(case)} drafts in parallel but its weights have no {MASK}"
        yield error(CODE, "drafter", message, "copy the head again, or export it with mask_hidden")
