"""A head with a reduced vocabulary has d2t, which turns its tokens into the target's.

Without it vLLM takes the drafted numbers for the target's first tokens, and says nothing: the
endpoint is green, and nearly no draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, shape_of, tensors_of
from peagle.findings import Finding, error

CODE = "d2t-missing"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error when the head drafts fewer tokens than there are and has no table."""
    head, tensors = head_of(case), tensors_of(case)
    if head is None or head.draft_vocab_size is None or "lm_head.weight" not in tensors:
        return
    vocabulary = shape_of(case).vocab_size
    if head.draft_vocab_size < vocabulary and not any("d2t" in name for name in tensors):
        message = (
            f"{location_of(case)} drafts {head.draft_vocab_size:,} of {vocabulary:,} tokens, and "
            "its weights have no d2t that says which"
        )
        yield error(CODE, "drafter", message, "copy the head again, or export it with its d2t")
