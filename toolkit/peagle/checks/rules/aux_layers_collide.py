"""Auxiliary layers that are not distinct, including those that vLLM uses by default.

For a head that lists none, vLLM reads layers 2, L/2 and L-3. In a shallow target two of these are
equal: ``fc`` gets fewer hidden states than it expects, drafts are wrong, and the engine crashes on
the first prompt whose size does not divide.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import layers_key
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("aux-layers-collide", about="head", vllm_notices="on a request")


@for_head
def check(case: Case, head: Head) -> Findings:
    depth = case.architecture.layers
    layers = head.layers_read(depth)
    if len(set(layers)) < len(layers):
        listed = head.config.auxiliary_layers
        reads = "the head reads layers" if listed else "the head lists no layers, so vLLM reads"
        message = (
            f"{head.location}: {reads} {', '.join(map(str, layers))} of the {depth} layers of "
            f"{case.target.id}, and these are not distinct"
        )
        fix = f"list the trained layers in {layers_key(head, len(layers))}"
        yield RULE.error("drafter", message, fix)
