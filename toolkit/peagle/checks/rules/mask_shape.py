"""A mask_hidden whose shape is not [1, 1, auxiliary layers x the target's width].

vLLM copies it into a buffer of that size. It rejects a different size at start, but broadcasts a
single value without a warning. If fc has the same wrong width, the rule for fc reports it.
"""

from math import prod

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import MASK

RULE = Rule("mask-shape", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    name, width, states = head.named(MASK), head.config.target_hidden_size, head.config.built_for
    if name is None or not case.is_parallel or not width:
        return
    shape, fc = head.tensors[name].shape, head.shape("fc.weight")
    size, expected = prod(shape), states * width
    if size != expected and (fc is None or fc[-1:] != (size,)):
        message = (
            f"{name} of {head.location} has shape {list(shape)}; the head needs "
            f"[1, 1, {expected}]: {states} hidden states of {width:,}"
        )
        yield RULE.error("drafter", message, f"copy the head again, or export it with {MASK}")
