"""A t2d, which marks the target's tokens that are drafted, without one entry per token.

vLLM does not read t2d, but a head reduced for another vocabulary has a wrong d2t too.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, shape_of, tensors_of
from peagle.findings import Finding, warning

CODE = "t2d-size"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A warning for a table of another size than the target's vocabulary."""
    head = head_of(case)
    name = next((name for name in tensors_of(case) if "t2d" in name), None)
    vocabulary = shape_of(case).vocab_size
    if head is None or name is None or head.vocab_size not in (None, vocabulary):
        return
    shape = tensors_of(case)[name].shape
    if shape != (vocabulary,):
        message = (
            f"{name} of {location_of(case)} has shape {list(shape)}, but {case.target.id} has "
            f"{vocabulary:,} tokens: d2t may belong to another vocabulary too"
        )
        fix = "compare acceptance with the published value, or export the head again"
        yield warning(CODE, "drafter", message, fix)
