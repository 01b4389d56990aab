"""The head's tensors are numbers of a type that vLLM computes with.

vLLM copies 8-bit numbers, and a d2t of fractions, into its own type as they are. Without the
scales that a quantization_config announces they mean something else: it starts, and drafts noise.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, tensors_of
from peagle.findings import Finding, error

CODE = "tensor-dtype"
ABOUT = "head"
VLLM_NOTICES = "never"

_FRACTIONS = frozenset({"BF16", "F16", "F32", "F64"})
_WHOLE = frozenset({"I64", "I32", "I16"})


def check(case: Case) -> Iterator[Finding]:
    """An error that names the first tensor of another type."""
    head = head_of(case)
    if head is None or head.quantized:
        return
    for name, tensor in tensors_of(case).items():
        wanted = _WHOLE if "d2t" in name else _FRACTIONS
        if "t2d" in name or tensor.dtype in wanted:
            continue
        message = (
            f"{name} of {location_of(case)} is {tensor.dtype}, and its config.json has no "
            "quantization_config that says how to read it"
        )
        yield error(CODE, "drafter", message, "export the head in bfloat16")
        return
