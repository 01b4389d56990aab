"""The auxiliary layers of the target are distinct, also those that vLLM takes by default.

A head that names none gets layers 2, L/2 and L-3. In a shallow target two of these are the same
layer: fewer hidden states arrive than fc expects, the drafter is fed garbage, and the engine ends
with the first prompt whose numbers do not divide.
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
    """An error when two of the layers are the same."""
    head, layers = head_of(case), auxiliary_layers(case)
    if head is None or layers is None or len(set(layers)) == len(layers):
        return
    text = ", ".join(map(str, layers))
    reads = f"the head reads layers {text}"
    if not head.auxiliary_layers:
        reads = f"the head names no layers, for which vLLM takes {text}"
    message = (
        f"{location_of(case)}: {reads} of the {shape_of(case).layers} of {case.target.id}, of "
        "which two are the same"
    )
    fix = "name distinct layers in eagle_config.eagle_aux_hidden_state_layer_ids, as it was trained"
    yield error(CODE, "drafter", message, fix)
