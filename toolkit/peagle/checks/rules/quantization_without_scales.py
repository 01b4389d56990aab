"""A head whose config.json has a quantization_config but whose weights have no scales.

vLLM treats the weights as quantized and leaves the scales uninitialized: it starts, and nearly no
draft is accepted.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("quantization-without-scales", about="head", vllm_notices="never")

_SIGNS = ("scale", "qweight", "qzeros", "absmax", "packed")
"""Parts of the names of tensors that belong to quantized weights."""


@for_head
def check(case: Case, head: Head) -> Findings:
    if head.config.quantized and head.tensors and not any(map(head.named, _SIGNS)):
        message = (
            f"config.json of {head.location} has a quantization_config, but its weights have no "
            "scales"
        )
        fix = "remove quantization_config, or copy the quantized weights"
        yield RULE.error("drafter", message, fix)
