"""A head with a reduced vocabulary but no d2t, which maps its tokens to the target's.

Without d2t vLLM uses the drafted ids as the target's first tokens, without a warning: the endpoint
becomes healthy, and nearly no draft is accepted.
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
    """An error for a draft vocabulary below the target's without d2t."""
    head, tensors = head_of(case), tensors_of(case)
    if head is None or head.draft_vocab_size is None or "lm_head.weight" not in tensors:
        return
    vocabulary = shape_of(case).vocab_size
    if head.draft_vocab_size < vocabulary and not any("d2t" in name for name in tensors):
        message = (
            f"{location_of(case)} drafts {head.draft_vocab_size:,} of {vocabulary:,} tokens, but "
            "its weights have no d2t that maps them"
        )
        yield error(CODE, "drafter", message, "copy the head again, or export it with d2t")
