"""A head that reads a different number of target layers from what its ``fc`` is built for.

vLLM takes the layers from one key of config.json and the width of ``fc`` from another: in a head
with Llama layers from num_aux_hidden_states or the list in eagle_config, else 3; in one with Qwen3
layers from the list that it reads. When they differ, vLLM starts and crashes on the first request.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import layers_key
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("aux-layer-count", about="head", vllm_notices="on a request")


@for_head
def check(case: Case, head: Head) -> Findings:
    depth, built_for = case.architecture.layers, head.config.built_for
    layers = head.layers_read(depth)
    if not head.config.uses_auxiliary or len(layers) == built_for:
        return
    message = (
        f"{head.location} reads {len(layers)} layers of the target, but vLLM builds fc for "
        f"{built_for}"
    )
    yield RULE.error("drafter", message, list_layers(head, layers, depth))


def list_layers(head: Head, layers: tuple[int, ...], depth: int) -> str:
    """How to list as many layers as the weights of ``fc`` take; ``layers`` are listed now."""
    fc, width = head.shape("fc.weight"), head.config.target_hidden_size
    states = fc[-1] // width if fc and width else len(layers)
    key = layers_key(head, states)
    if states == len(layers):
        counts = [name for name in _COUNTS if head.counts_with(name)]
        remove = f", and remove {' and '.join(counts)}" if counts else ""
        return f"list the layers {list(layers)} in {key}{remove}"
    # Training lists the last layer too: its hidden states are what the head learns to predict.
    drop = f": without {depth}, the target's last" if layers[-1] == depth else ""
    return f"list the {states} layers for which fc was trained in {key}{drop}"


_COUNTS = ("num_aux_hidden_states", "num_aux_layers")
"""Keys with which a config overrides the number of listed layers."""
