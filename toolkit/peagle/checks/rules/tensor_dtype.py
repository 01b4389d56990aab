"""Tensors of the head in a dtype that vLLM does not compute with.

vLLM casts 8-bit values, and a d2t of fractions, to its own dtype as they are. Without the scales
of a quantization_config the values are wrong: vLLM starts, and nearly no draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, tensors_of
from peagle.findings import Finding, error

CODE = "tensor-dtype"
ABOUT = "head"
VLLM_NOTICES = "never"

_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_INTEGERS = frozenset({"I64", "I32", "I16"})


def check(case: Case) -> Iterator[Finding]:
    """An error that names the first tensor of another dtype."""
    head = head_of(case)
    if head is None or head.quantized:
        return
    for name, tensor in tensors_of(case).items():
        expected = _INTEGERS if "d2t" in name else _FLOATS
        if "t2d" in name or tensor.dtype in expected:
            continue
        message = (
            f"{name} of {location_of(case)} is {tensor.dtype}, but its config.json has no "
            "quantization_config"
        )
        yield error(CODE, "drafter", message, "export the head in bfloat16")
        return
