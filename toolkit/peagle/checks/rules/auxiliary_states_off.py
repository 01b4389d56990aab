"""A P-EAGLE head that turns auxiliary hidden states off.

vLLM has no parallel drafting without them (use_aux_hidden_state) and does not start.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("auxiliary-states-off", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    if case.is_parallel and head.config.parallel_drafting and not head.config.uses_auxiliary:
        message = f"{head.location} drafts in parallel but sets use_aux_hidden_state to false"
        nested = "transformer_layer_config." if head.config.speculators_format else ""
        key = f"{nested}eagle_config.use_aux_hidden_state"
        fix = f"set {key} to true if the head was trained with it"
        yield RULE.error("drafter", message, fix)
