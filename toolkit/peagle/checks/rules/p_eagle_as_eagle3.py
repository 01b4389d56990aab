"""A P-EAGLE head started as a plain EAGLE-3 head.

vLLM loads it without its mask, with one log line, and drafts token by token from states that the
head was not trained on: slow, without an error.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import sibling_pair
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("p-eagle-as-eagle3", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    masked = head.config.parallel_drafting if head.has_mask is None else head.has_mask
    if masked and not case.is_parallel:
        message = f"{head.location} is a P-EAGLE head, but the pair starts it as plain EAGLE-3"
        fix = f"use the pair {sibling_pair(case, parallel=True)}, or an EAGLE-3 head"
        yield RULE.error("drafter", message, fix)
