"""Weights whose layers differ from num_hidden_layers of config.json.

vLLM rejects extra layers when it loads them. Missing layers stay uninitialized: vLLM starts, and
nearly no draft is accepted.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.head_layout import layers_in, required
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import MIXED_FILES

RULE = Rule("layers-mismatch", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    if not head.tensors or required(head.config) is None:
        return
    found, expected = layers_in(head.tensors), head.config.layers
    if found != set(range(expected or 0)):
        message = (
            f"the weights of {head.location} have layers "
            f"{', '.join(map(str, sorted(found))) or 'none'}, but config.json sets "
            f"num_hidden_layers to {expected}"
        )
        yield RULE.error("drafter", message, MIXED_FILES)
