"""A head for a hidden size that differs from the target's.

vLLM loads it and crashes on the first request, when it multiplies the two. Other rules report a
wrong target, and a head of which only config.json is wrong.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import OTHER_HEAD
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("hidden-size-mismatch", about="head", vllm_notices="on a request")


@for_head
def check(case: Case, head: Head) -> Findings:
    own, width = head.config.target_hidden_size, case.architecture.hidden_size
    if own in (None, width, case.target.architecture.hidden_size) or _fits(head, width):
        return
    message = (
        f"{head.location}: the head takes hidden states of size {own:,}; {case.target.id} has "
        f"{width:,}"
    )
    yield RULE.error("drafter", message, OTHER_HEAD)


def _fits(head: Head, width: int) -> bool:
    """Whether the weights take hidden states of this width, whatever config.json states."""
    config, fc = head.config, head.shape("fc.weight")
    if fc is None or config.quantized or not config.uses_auxiliary:
        return False
    return fc[-1:] == (config.built_for * width,)
