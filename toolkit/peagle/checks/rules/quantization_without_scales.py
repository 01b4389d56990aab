"""A head whose config announces quantised weights has the scales that they need.

vLLM takes the weights for quantised ones, and scales that no file has filled: it starts, and drafts
noise.
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
"""Parts of the names of tensors that go with quantised weights."""


def check(case: Case) -> Iterator[Finding]:
    """An error when the headers were read and none is there."""
    head, tensors = head_of(case), tensors_of(case)
    if head is None or not head.quantized or not tensors:
        return
    if not any(sign in name for name in tensors for sign in _SIGNS):
        message = (
            f"config.json of {location_of(case)} has a quantization_config, and its weights have "
            "no scales"
        )
        fix = "remove quantization_config, or copy the quantised weights"
        yield error(CODE, "drafter", message, fix)
