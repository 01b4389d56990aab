"""A head that reads a different number of target layers from what its ``fc`` is built for.

vLLM takes the layers from one key of config.json and the width of ``fc`` from another
(num_aux_hidden_states or eagle_config, else 3). When they differ, vLLM starts and crashes on the
first request.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("aux-layer-count", about="head", vllm_notices="on a request")


@for_head
def check(case: Case, head: Head) -> Findings:
    read, built_for = len(head.layers_read(case.architecture.layers)), head.config.built_for
    if head.config.uses_auxiliary and read != built_for:
        message = (
            f"{head.location} reads {read} layers of the target, but vLLM builds fc for {built_for}"
        )
        fix = (
            "list the layers in eagle_config.eagle_aux_hidden_state_layer_ids of the head's config"
        )
        yield RULE.error("drafter", message, fix)
