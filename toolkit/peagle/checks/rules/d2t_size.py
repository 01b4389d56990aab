"""A d2t, which maps drafted tokens to the target's, without one entry per drafted token.

vLLM refuses it when it loads the weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, shape_of, tensors_of
from peagle.findings import Finding, error

CODE = "d2t-size"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error when the size differs from draft_vocab_size."""
    head = head_of(case)
    name = next((name for name in tensors_of(case) if "d2t" in name), None)
    if head is None or name is None:
        return
    drafted = head.draft_vocab_size or head.vocab_size or shape_of(case).vocab_size
    shape = tensors_of(case)[name].shape
    if shape != (drafted,):
        message = (
            f"{name} of {location_of(case)} has shape {list(shape)}, but the head drafts "
            f"{drafted:,} tokens"
        )
        yield error(CODE, "drafter", message, "copy the head again, or export it again")
