"""An ``fc`` whose input width is not auxiliary layers x the target's width.

vLLM builds ``fc`` from config.json and rejects weights of a different shape when it loads them.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import other_shape
from peagle.checks.head_layout import stored_width
from peagle.checks.registry import Findings, Rule, for_head
from peagle.checks.rules import aux_layer_count
from peagle_serve.heads import MIXED_FILES

RULE = Rule("fc-width", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    config, fc = head.config, head.shape("fc.weight")
    if fc is None or config.quantized or not config.uses_auxiliary:
        return
    if config.hidden_size is None or config.target_hidden_size is None:
        return
    states, expected = config.built_for, config.built_for * config.target_hidden_size
    if fc == (config.hidden_size, expected) or stored_width(head) is not None:
        return
    if any(aux_layer_count.check(case)):
        return
    width = case.architecture.hidden_size
    if fc == (config.hidden_size, states * width):
        message = (
            f"config.json of {head.location} sets target_hidden_size to "
            f"{config.target_hidden_size}, but fc.weight takes {states} hidden states of {width}, "
            f"the width of {case.target.id}"
        )
        fix = f"set target_hidden_size to {width}, or copy the head again"
        yield RULE.error("drafter", message, fix)
    else:
        shape = f"{[config.hidden_size, expected]}: {states} hidden states of"
        message = other_shape(head, "fc.weight", f"{shape} {config.target_hidden_size:,}")
        yield RULE.error("drafter", message, MIXED_FILES)
