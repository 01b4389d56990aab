"""A GPU that does not support the target's dtype or quantization.

vLLM rejects bfloat16 and 4-bit weights at start on a GPU without support for them.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.vllm.gpus import needed_capability

RULE = Rule("gpu-too-old", about="hardware", vllm_notices="at start")


def check(case: Case) -> Findings:
    instance, target = case.instance, case.target
    if instance is None or case.on_cpu:
        return
    needed = needed_capability(target.dtype, target.quantization)
    if instance.capability < needed:
        message = (
            f"{target.title} needs a GPU with compute capability {needed / 10}, but the "
            f"{instance.gpu} of {instance.type} has {instance.capability / 10}"
        )
        fix = "leave --instance-type out to use the cheapest type that fits"
        yield RULE.error("instance_type", message, fix)
