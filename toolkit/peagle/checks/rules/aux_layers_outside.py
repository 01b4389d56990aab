"""Auxiliary layers that the target does not have, including those that vLLM uses by default.

Layer i is the hidden state after i layers, so 0 to L exist. For any other layer vLLM passes one
hidden state too few, and the engine crashes on a request.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import OTHER_HEAD
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("aux-layers-outside", about="head", vllm_notices="on a request")


@for_head
def check(case: Case, head: Head) -> Findings:
    depth = case.architecture.layers
    layers = head.layers_read(depth)
    if not all(0 <= layer <= depth for layer in layers):
        message = (
            f"{head.location}: the head reads layers {', '.join(map(str, layers))}, but "
            f"{case.target.id} has {depth} layers"
        )
        yield RULE.error("drafter", message, OTHER_HEAD)
