"""Auxiliary layers that are not distinct, including those that vLLM uses by default.

For a head that lists none, vLLM reads layers 2, L/2 and L-3. In a shallow target two of these are
equal: ``fc`` gets fewer hidden states than it expects, drafts are wrong, and the engine crashes on
the first prompt whose size does not divide.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import auxiliary_layers, head_of, location_of, shape_of
from peagle.findings import Finding, error

CODE = "aux-layers-collide"
ABOUT = "head"
VLLM_NOTICES = "on a request"


def check(case: Case) -> Iterator[Finding]:
    """An error when two of the layers are equal."""
    head, layers = head_of(case), auxiliary_layers(case)
    if head is None or layers is None or len(set(layers)) == len(layers):
        return
    text = ", ".join(map(str, layers))
    reads = f"the head reads layers {text}"
    if not head.auxiliary_layers:
        reads = f"the head lists no layers, so vLLM reads {text}"
    message = (
        f"{location_of(case)}: {reads} of the {shape_of(case).layers} layers of {case.target.id}; "
        "two of them are equal"
    )
    fix = "list the trained layers in eagle_config.eagle_aux_hidden_state_layer_ids"
    yield error(CODE, "drafter", message, fix)
