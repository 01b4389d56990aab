"""A head for another hidden size than the target's.

vLLM loads it and crashes on the first request, when it multiplies the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.heads import HeadConfig
from peagle.checkpoints.models import Tensor
from peagle.checks.facts import OTHER_HEAD, head_of, location_of, shape_of, tensors_of
from peagle.findings import Finding, error

CODE = "hidden-size-mismatch"
ABOUT = "head"
VLLM_NOTICES = "on a request"


def check(case: Case) -> Iterator[Finding]:
    """An error for another width, unless the target itself is another one, or only the head's
    config.json is wrong; other rules report these."""
    head, fc = head_of(case), tensors_of(case).get("fc.weight")
    width = head.target_hidden_size if head else None
    if width in (None, shape_of(case).hidden_size, case.target.architecture.hidden_size):
        return
    if head is None or _fits(head, fc, shape_of(case).hidden_size):
        return
    message = (
        f"{location_of(case)}: the head takes hidden states of size {width:,}; {case.target.id} "
        f"has {shape_of(case).hidden_size:,}"
    )
    yield error(CODE, "drafter", message, OTHER_HEAD)


def _fits(head: HeadConfig, fc: Tensor | None, width: int) -> bool:
    """Whether the weights take hidden states of this width, whatever config.json states."""
    if fc is None or head.quantized or not head.uses_auxiliary:
        return False
    return fc.shape[-1:] == (head.built_for * width,)
