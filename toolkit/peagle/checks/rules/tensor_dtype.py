"""Tensors of the head in a dtype that vLLM does not compute with.

vLLM casts 8-bit values, and a floating-point d2t, to its own dtype as they are. Without the scales
of a quantization_config the values are wrong: vLLM starts, and nearly no draft is accepted.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("tensor-dtype", about="head", vllm_notices="never")

_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_INTEGERS = frozenset({"I64", "I32", "I16"})


@for_head
def check(case: Case, head: Head) -> Findings:
    wrong = (
        (name, tensor.dtype)
        for name, tensor in head.tensors.items()
        if "t2d" not in name and tensor.dtype not in (_INTEGERS if "d2t" in name else _FLOATS)
    )
    name, dtype = next(wrong, ("", ""))
    if name and not head.config.quantized:
        message = (
            f"{name} of {head.location} is {dtype}, but its config.json has no quantization_config"
        )
        yield RULE.error("drafter", message, "export the head in bfloat16")
