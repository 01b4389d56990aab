"""A head without lm_head that cannot use the target's.

vLLM shares the target's. With a reduced vocabulary its rows belong to other tokens, and at another
width it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, shape_of, tensors_of
from peagle.findings import Finding, error

CODE = "lm-head-missing"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error when the head has none and the target's has another size."""
    head, tensors = head_of(case), tensors_of(case)
    if head is None or not tensors or any("lm_head" in name for name in tensors):
        return
    shape = shape_of(case)
    sizes = (head.draft_vocab_size or head.vocab_size, head.hidden_size)
    if head.vocab_size not in (None, shape.vocab_size) or sizes[0] is None:
        return
    if sizes[0] < shape.vocab_size:
        message = (
            f"{location_of(case)} drafts {sizes[0]:,} of {shape.vocab_size:,} tokens but has no "
            "lm_head"
        )
        yield error(CODE, "drafter", message, "copy the head again, or export it with lm_head")
