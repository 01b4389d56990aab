"""A head that drafts in parallel has the tensor of its masked slots, mask_hidden.

vLLM refuses a head without it when it loads the weights, after minutes of a paid instance.
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
    """An error when the head's headers were read and the tensor is not among them."""
    head = head_of(case)
    if head is None or not is_parallel(case) or not head.parallel_drafting:
        return
    if masked(case) is False:
        message = f"{location_of(case)} drafts in parallel, but its weights have no tensor {MASK}"
        yield error(CODE, "drafter", message, "copy the head again, or train it with its mask")
