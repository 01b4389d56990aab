"""A mask_hidden whose shape is not [1, 1, auxiliary layers x the target's width].

vLLM copies it into a buffer of that size. It refuses another size at start, but broadcasts a single
value without a warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.heads import MASK
from peagle.checks.facts import head_of, is_parallel, location_of, tensors_of
from peagle.findings import Finding, error

CODE = "mask-shape"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for a mask of another size, unless fc has the same wrong width."""
    head, tensors = head_of(case), tensors_of(case)
    name = next((name for name in tensors if MASK in name), None)
    if head is None or name is None or not is_parallel(case) or not head.target_hidden_size:
        return
    expected = head.built_for * head.target_hidden_size
    size = math.prod(tensors[name].shape)
    fc = tensors.get("fc.weight")
    if size == expected or (fc is not None and fc.shape[-1:] == (size,)):
        return
    message = (
        f"{name} of {location_of(case)} has shape {list(tensors[name].shape)}; the head "
        f"needs [1, 1, {expected}]: {head.built_for} hidden states of {head.target_hidden_size:,}"
    )
    yield error(CODE, "drafter", message, f"copy the head again, or export it with {MASK}")
