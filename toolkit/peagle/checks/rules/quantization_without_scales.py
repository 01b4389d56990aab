"""A head whose config.json has a quantization_config but whose weights have no scales.

vLLM treats the weights as quantized and leaves the scales uninitialized: it starts, and nearly no
draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, tensors_of
from peagle.findings import Finding, error

CODE = "quantization-without-scales"
ABOUT = "head"
VLLM_NOTICES = "never"

_SIGNS = ("scale", "qweight", "qzeros", "absmax", "packed")
"""Parts of the names of tensors that belong to quantized weights."""


def check(case: Case) -> Iterator[Finding]:
    """An error when the headers were read and list no scales."""
    head, tensors = head_of(case), tensors_of(case)
    if head is None or not head.quantized or not tensors:
        return
    if not any(sign in name for name in tensors for sign in _SIGNS):
        message = (
            f"config.json of {location_of(case)} has a quantization_config, but its weights "
            "have no scales"
        )
        fix = "remove quantization_config, or copy the quantized weights"
        yield error(CODE, "drafter", message, fix)
