"""A P-EAGLE head without mask_hidden, the tensor of its masked slots.

vLLM rejects it when it loads the weights, after minutes on a paid instance.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import MASK

RULE = Rule("head-without-mask", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    if case.is_parallel and head.config.parallel_drafting and head.has_mask is False:
        message = f"{head.location} drafts in parallel but its weights have no {MASK}"
        yield RULE.error("drafter", message, f"copy the head again, or export it with {MASK}")
