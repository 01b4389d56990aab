"""A plain EAGLE-3 head started as P-EAGLE.

With parallel_drafting vLLM requires a placeholder token and mask_hidden, which such a head lacks,
and does not start.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import sibling_pair
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("eagle3-as-p-eagle", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    if not case.is_parallel or head.config.parallel_drafting:
        return
    if not head.has_mask or head.config.speculators == "eagle3":
        message = f"{head.location} is a plain EAGLE-3 head, but the pair starts it as P-EAGLE"
        fix = f"use the pair {sibling_pair(case, parallel=False)}, or a P-EAGLE head"
        yield RULE.error("drafter", message, fix)
